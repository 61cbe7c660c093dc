//! The background thread that follows traces and publishes snapshots of them. The screen never waits for it.

mod follow;
mod look;
mod rates;
mod worker;
mod writer;

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

pub use self::follow::Followed;
pub use self::look::look;
use self::worker::Worker;
pub use self::worker::{Finder, Visit};
use crate::query::Query;
use crate::snapshot::Snapshot;

/// What is followed.
pub enum Source {
    /// Traces already opened.
    Traces(Vec<Followed>),
    /// Traces that appear later.
    Appearing(Finder),
}

/// A running background thread; it ends when this is dropped.
pub struct Feed {
    queries: Sender<Query>,
    visits: Sender<Visit>,
    query: Query,
    snapshots: Receiver<Arc<Snapshot>>,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    /// Begins to follow, and to publish snapshots.
    pub fn start(source: Source) -> Self {
        Self::start_thread(source, true)
    }

    /// Begins to follow for those who visit: no snapshots are made.
    pub fn start_for_visits(source: Source) -> Self {
        Self::start_thread(source, false)
    }

    fn start_thread(source: Source, publishes: bool) -> Self {
        let (queries, new_queries) = unbounded();
        let (visits, visitors) = unbounded();
        let (stop, stopped) = bounded(0);
        let (published, snapshots) = bounded(1);
        let ends = (published, snapshots.clone());
        let thread = std::thread::Builder::new().name("memlab-feed".into()).spawn(move || {
            let (followed, finder) = match source {
                Source::Traces(followed) => (followed, None),
                Source::Appearing(finder) => (Vec::new(), Some(finder)),
            };
            let mut worker = Worker::new(followed, finder, new_queries, ends, stopped);
            (worker.visits, worker.publishes) = (visitors, publishes);
            worker.run();
        });
        Self { queries, visits, query: Query::default(), snapshots, stop: Some(stop), thread: thread.ok() }
    }

    /// Has the thread call `visit` with the traces as far as they have been read, soon. Nothing happens if the thread has ended
    /// by a panic, which its hook has reported.
    pub fn visit(&self, visit: Visit) {
        let _ = self.visits.send(visit);
    }

    /// Sets what the next snapshots are to show.
    pub fn set_query(&mut self, query: Query) {
        if self.query != query {
            self.query = query.clone();
            // Without the thread, which its panic hook reports, no snapshots come.
            let _ = self.queries.send(query);
        }
    }

    /// The snapshots. Only the newest one waits here.
    pub fn snapshots(&self) -> &Receiver<Arc<Snapshot>> {
        &self.snapshots
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its hook.
            let _ = thread.join();
        }
    }
}
