//! The background thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, select};

use super::build_snapshot::build_snapshot;
use super::roster::Roster;
use crate::cards::cards;
use crate::snapshot::Snapshot;
use memlab_base::query::{Comparison, Query};

/// Shortest interval between snapshots.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(200);
/// Longest interval between snapshots, even if they are slow to build.
const MAX_PUBLISH_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after nothing was left to read.
pub(super) const IDLE_INTERVAL: Duration = Duration::from_millis(50);
/// Pause after nothing was left to read and every process is gone.
const IDLE_INTERVAL_WHEN_OVER: Duration = Duration::from_millis(500);
/// Interval between searches for new traces.
pub(super) const FIND_INTERVAL: Duration = Duration::from_millis(200);

/// Lists the traces that exist now.
pub type Finder = Box<dyn FnMut() -> Vec<PathBuf> + Send>;

pub struct Worker {
    pub roster: Roster,
    pub finder: Option<Finder>,
    pub queries: Receiver<Query>,
    pub snapshots: Sender<Arc<Snapshot>>,
    /// Receiver of `snapshots`, to take back an unreceived snapshot before sending the next.
    pub unread: Receiver<Arc<Snapshot>>,
    /// Disconnected when the thread must end.
    pub stop: Receiver<()>,
    last_find: Option<Instant>,
    comparison: Option<Arc<Comparison>>,
}

impl Worker {
    pub fn new(
        roster: Roster,
        finder: Option<Finder>,
        queries: Receiver<Query>,
        (snapshots, unread): (Sender<Arc<Snapshot>>, Receiver<Arc<Snapshot>>),
        stop: Receiver<()>,
    ) -> Self {
        Self { roster, finder, queries, snapshots, unread, stop, last_find: None, comparison: None }
    }

    pub fn run(mut self) {
        let mut published: Option<Instant> = None;
        let mut interval = PUBLISH_INTERVAL;
        let mut dirty = true;
        let (mut query, mut shown) = (Query::default(), Query::default());
        while !self.is_stopped() {
            dirty |= self.find();
            let stop = self.stop.clone();
            let polled = self.roster.poll(&|| is_disconnected(&stop));
            dirty |= polled.changed;
            query = self.queries.try_iter().last().unwrap_or(query);
            self.roster.set_front(query.front.as_deref());
            let now = Instant::now();
            dirty |= query != shown;
            // Another moment or screen is answered at once. The comparison may change with every completed step, so it waits
            // like new data.
            let is_urgent = Query { compare: None, ..query.clone() } != Query { compare: None, ..shown.clone() };
            let is_due = published.is_none_or(|published| now.duration_since(published) >= interval);
            if is_urgent || dirty && is_due {
                dirty = !self.publish(&query);
                shown = query.clone();
                published = Some(now);
                // Building snapshots uses at most 1/40 of a core.
                interval = (now.elapsed() * 40).clamp(PUBLISH_INTERVAL, MAX_PUBLISH_INTERVAL);
            }
            if !polled.more && self.queries.is_empty() {
                let over = self.finder.is_none() && self.roster.is_over() && !dirty;
                select! {
                    recv(self.queries) -> next => query = next.unwrap_or(query),
                    recv(self.stop) -> _ => {}
                    default(if over { IDLE_INTERVAL_WHEN_OVER } else { IDLE_INTERVAL }) => {}
                }
            }
        }
    }

    fn is_stopped(&self) -> bool {
        is_disconnected(&self.stop)
    }

    /// Publishes the snapshot for `query`; returns false if another query arrived meanwhile.
    fn publish(&mut self, query: &Query) -> bool {
        let (stop, queries) = (self.stop.clone(), self.queries.clone());
        let is_stale = || is_disconnected(&stop) || !queries.is_empty();
        let Some(mut snapshot) = build_snapshot(&mut self.roster, query, self.comparison.clone(), &is_stale) else {
            return false;
        };
        self.comparison.clone_from(&snapshot.comparison);
        if !self.roster.is_over() {
            snapshot.cards = cards();
        }
        let mut snapshot = Arc::new(snapshot);
        while let Err(TrySendError::Full(newer)) = self.snapshots.try_send(snapshot) {
            let _ = self.unread.try_recv();
            snapshot = newer;
        }
        true
    }

    /// Opens new traces.
    ///
    /// A file that is still empty is retried.
    fn find(&mut self) -> bool {
        let Some(finder) = &mut self.finder else { return false };
        if self.last_find.is_some_and(|last| last.elapsed() < FIND_INTERVAL) {
            return false;
        }
        self.last_find = Some(Instant::now());
        finder().iter().fold(false, |found, path| found | self.roster.add(path))
    }
}

pub(super) fn is_disconnected(stop: &Receiver<()>) -> bool {
    stop.try_recv() == Err(TryRecvError::Disconnected)
}
