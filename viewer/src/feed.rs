//! The background thread that follows traces and publishes snapshots of them. The screen never waits for it.

mod follow;
mod rates;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use self::follow::Followed;
use crate::query::{Comparison, ComparisonQuery, Detail, Query};
use crate::snapshot::{ProcessSnapshot, Snapshot};

/// How often a snapshot is published at most: a screen does not need more.
const PUBLISH: Duration = Duration::from_millis(200);
/// However long a snapshot takes, or a look into the past, they come at least so often.
const RAREST: Duration = Duration::from_secs(5);
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
    query: Mutex<Query>,
    /// Rises with `query`, so that work nobody waits for any more can be broken off.
    queries: AtomicU64,
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
            Worker { shared: theirs, followed, finder, last_find: None, comparison: None }.run();
        });
        Self { shared, thread: thread.ok() }
    }

    /// Says what the snapshots to come should show.
    pub fn set_query(&self, query: Query) {
        let mut current = self.shared.query.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != query {
            *current = query;
            self.shared.queries.fetch_add(1, Ordering::Release);
            if let Some(thread) = &self.thread {
                thread.thread().unpark();
            }
        }
    }

    /// The newest snapshot, if there is one that was not taken yet.
    pub fn take(&self) -> Option<Arc<Snapshot>> {
        self.shared.snapshot.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
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
    comparison: Option<Arc<Comparison>>,
}

impl Worker {
    fn run(mut self) {
        let mut published: Option<Instant> = None;
        let mut interval = PUBLISH;
        let mut dirty = true;
        let mut shown = Query::default();
        while !self.shared.stop.load(Ordering::Relaxed) {
            dirty |= self.find();
            let mut more = false;
            let count = self.followed.len();
            for followed in &mut self.followed {
                followed.share(count);
                let shared = &self.shared;
                let polled = followed.poll(&|| shared.stop.load(Ordering::Relaxed));
                dirty |= polled.changed;
                more |= polled.more;
            }
            let now = Instant::now();
            let queries = self.shared.queries.load(Ordering::Acquire);
            let query = self.shared.query.lock().unwrap_or_else(PoisonError::into_inner).clone();
            dirty |= query != shown;
            // Another moment or screen is answered at once. What is compared may change with every step that ends, and
            // has to wait as other news do.
            let is_urgent = Query { compare: None, ..query.clone() } != Query { compare: None, ..shown.clone() };
            let is_due = published.is_none_or(|published| now.duration_since(published) >= interval);
            if is_urgent || dirty && is_due {
                dirty = !self.publish(&query, queries);
                shown = query;
                published = Some(now);
                // Making snapshots takes at most a fortieth of a core, however much there is to show.
                interval = (now.elapsed() * 40).clamp(PUBLISH, RAREST);
            }
            if !more && self.shared.queries.load(Ordering::Acquire) == queries {
                let over = self.finder.is_none() && self.followed.iter().all(Followed::is_over) && !dirty;
                std::thread::park_timeout(if over { IDLE_WHEN_OVER } else { IDLE });
            }
        }
    }

    /// Makes the snapshot that is wanted; false if another one is wanted by now.
    fn publish(&mut self, query: &Query, queries: u64) -> bool {
        let shared = self.shared.clone();
        let is_stale = || shared.stop.load(Ordering::Relaxed) || shared.queries.load(Ordering::Acquire) != queries;
        let Some(snapshot) = look(&mut self.followed, query, self.comparison.clone(), &is_stale) else { return false };
        self.comparison.clone_from(&snapshot.comparison);
        *self.shared.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(snapshot));
        true
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

/// Looks at all traces as is wanted; `known`: the comparison made last. `None` if it `is_stale` before it is done.
pub fn look(
    followed: &mut [Followed],
    query: &Query,
    known: Option<Arc<Comparison>>,
    is_stale: &dyn Fn() -> bool,
) -> Option<Snapshot> {
    let process = |followed: &mut Followed| {
        let is_shown = query.trace.as_ref().is_none_or(|trace| trace == followed.path());
        let detail = if is_shown { query.detail } else { Detail::None };
        followed.choose(query.scope);
        match &query.cursor {
            None => Some(followed.snapshot(detail)),
            Some(cursor) => match followed.snapshot_at(cursor, detail, is_stale) {
                None if is_stale() => None,
                // The trace can no longer be read; the snapshot says why.
                None => Some(followed.snapshot(detail)),
                found => found,
            },
        }
    };
    let mut processes: Vec<ProcessSnapshot> = followed.iter_mut().map(process).collect::<Option<_>>()?;
    processes.sort_by_key(|process| (process.header.rank, process.header.start_unix_ns, process.header.pid));
    let comparison = match &query.compare {
        None => None,
        Some(compare) => match known.filter(|known| known.of == *compare) {
            None => compare_moments(followed, compare, is_stale),
            known => known,
        },
    };
    (!is_stale()).then(|| Snapshot {
        processes,
        cursor: query.cursor.clone(),
        detail: query.detail,
        trace: query.trace.clone(),
        comparison,
    })
}

fn compare_moments(
    followed: &mut [Followed],
    compare: &ComparisonQuery,
    is_stale: &dyn Fn() -> bool,
) -> Option<Arc<Comparison>> {
    let followed = followed.iter_mut().find(|followed| followed.path() == compare.trace)?;
    let before = followed.holdings(compare.device, compare.before, is_stale)?;
    let after = followed.holdings(compare.device, compare.after, is_stale)?;
    Some(Arc::new(Comparison { of: compare.clone(), before, after }))
}
