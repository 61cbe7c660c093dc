//! The background thread that follows traces and publishes snapshots of them. The screen never waits for it.

mod follow;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use self::follow::Followed;
use crate::snapshot::Snapshot;

/// How often a snapshot is published at most: a screen does not need more.
const PUBLISH: Duration = Duration::from_millis(100);
/// How long to sleep when there was nothing to read.
const IDLE: Duration = Duration::from_millis(50);
/// The same when every process is gone.
const IDLE_WHEN_OVER: Duration = Duration::from_millis(500);
/// How often to look for traces that are new.
const FIND: Duration = Duration::from_millis(200);

/// Says which traces there are by now.
pub type Finder = Box<dyn FnMut() -> Vec<PathBuf> + Send>;

/// What is followed.
pub enum Source {
    /// Traces already opened.
    Traces(Vec<Followed>),
    /// Traces that appear while one looks.
    Appearing(Finder),
}

/// A running background thread; it ends when this is dropped.
pub struct Feed {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    snapshot: Mutex<Option<Arc<Snapshot>>>,
    stop: AtomicBool,
}

impl Feed {
    /// Begins to follow.
    pub fn start(source: Source) -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("memlab-feed".into()).spawn(move || {
            let (followed, finder) = match source {
                Source::Traces(followed) => (followed, None),
                Source::Appearing(finder) => (Vec::new(), Some(finder)),
            };
            Worker { shared: theirs, followed, finder, last_find: None }.run();
        });
        Self { shared, thread: thread.ok() }
    }

    /// The newest snapshot, if there is one that was not taken yet.
    pub fn take(&self) -> Option<Arc<Snapshot>> {
        self.shared.snapshot.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its hook.
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    followed: Vec<Followed>,
    finder: Option<Finder>,
    last_find: Option<Instant>,
}

impl Worker {
    fn run(mut self) {
        let mut published: Option<Instant> = None;
        let mut interval = PUBLISH;
        let mut dirty = true;
        while !self.shared.stop.load(Ordering::Relaxed) {
            dirty |= self.find();
            let mut more = false;
            for followed in &mut self.followed {
                let shared = &self.shared;
                let polled = followed.poll(&|| shared.stop.load(Ordering::Relaxed));
                dirty |= polled.changed;
                more |= polled.more;
            }
            let now = Instant::now();
            if dirty && published.is_none_or(|published| now.duration_since(published) >= interval) {
                self.publish();
                dirty = false;
                published = Some(now);
                // Making snapshots takes at most a tenth of a core, however much there is to show.
                interval = PUBLISH.max(now.elapsed() * 10);
            }
            if !more {
                let over = self.finder.is_none() && self.followed.iter().all(Followed::is_over) && !dirty;
                std::thread::sleep(if over { IDLE_WHEN_OVER } else { IDLE });
            }
        }
    }

    fn publish(&self) {
        let mut processes: Vec<_> = self.followed.iter().map(Followed::snapshot).collect();
        processes.sort_by_key(|process| (process.header.rank, process.header.start_unix_ns, process.header.pid));
        let snapshot = Arc::new(Snapshot { processes });
        *self.shared.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
    }

    /// Opens traces that are new. A file that is still empty is tried again.
    fn find(&mut self) -> bool {
        let Some(finder) = &mut self.finder else { return false };
        if self.last_find.is_some_and(|last| last.elapsed() < FIND) {
            return false;
        }
        self.last_find = Some(Instant::now());
        let before = self.followed.len();
        for path in finder() {
            if !self.followed.iter().any(|followed| followed.path() == path)
                && let Ok(followed) = Followed::open(&path)
            {
                self.followed.push(followed);
            }
        }
        self.followed.len() != before
    }
}
