//! The background thread that follows traces and publishes snapshots of them.
//!
//! The screen never waits for it.

mod build_snapshot;
mod comparing;
mod figures;
mod follow;
mod holders;
mod model_queries;
mod rates;
mod readers;
mod roster;
mod trace_summary;
mod worker;
mod writer;

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

pub use self::build_snapshot::build_snapshot;
pub use self::follow::{Followed, Polled};
pub use self::model_queries::ModelQueries;
pub use self::roster::Roster;
pub use self::worker::Finder;
use self::worker::Worker;
use crate::snapshot::Snapshot;
use memlab_base::query::Query;

/// Source of the traces.
pub enum Source {
    /// Traces already opened.
    Traces(Roster),
    /// Traces that appear later.
    Appearing(Finder),
}

/// A running background thread; it ends when this is dropped.
pub struct Feed {
    queries: Sender<Query>,
    query: Query,
    snapshots: Receiver<Arc<Snapshot>>,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    /// Starts to follow the traces.
    pub fn start(source: Source) -> Self {
        let (queries, new_queries) = unbounded();
        let (stop, stopped) = bounded(0);
        let (published, snapshots) = bounded(1);
        let ends = (published, snapshots.clone());
        let thread = std::thread::Builder::new().name("memlab-feed".into()).spawn(move || {
            let (roster, finder) = match source {
                Source::Traces(roster) => (roster, None),
                Source::Appearing(finder) => (Roster::default(), Some(finder)),
            };
            Worker::new(roster, finder, new_queries, ends, stopped).run();
        });
        Self { queries, query: Query::default(), snapshots, stop: Some(stop), thread: thread.ok() }
    }

    /// Sets the query for the next snapshots.
    pub fn set_query(&mut self, query: Query) {
        if self.query != query {
            self.query = query.clone();
            // The thread is gone only after a panic, which its hook reports. No snapshots arrive then.
            let _ = self.queries.send(query);
        }
    }

    /// Receives snapshots.
    ///
    /// Only the newest one waits here.
    pub fn snapshots(&self) -> &Receiver<Arc<Snapshot>> {
        &self.snapshots
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}
