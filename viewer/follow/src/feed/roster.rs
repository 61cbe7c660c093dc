//! All shown traces.
//!
//! A few traces keep their whole models. In a large job only the ranks viewed last do; the others keep a summary, which is
//! updated in turns.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlab_job::{Interned, Job, RankSummary};
use memlab_trace::{Progress, ReadError, Scope};

use super::comparing::RankComparison;
use super::follow::{Followed, Polled};
use super::readers::{ReadRequest, Readers};
use super::trace_summary::TraceSummary;

/// Up to this number of traces, all keep their whole models.
const MAX_WHOLE_TRACES: usize = 8;

/// In larger rosters, number of recently viewed traces that keep their whole models.
const RECENT_WHOLE_TRACES: usize = 3;

/// Longest turn of the summaries, so that keys are answered soon.
const MAX_TURN: Duration = Duration::from_millis(10);

/// Shortest interval between rounds of turns.
const ROUND_INTERVAL: Duration = Duration::from_millis(250);

/// A round uses at most this fraction of a core (1/N).
const ROUND_SHARE_DIVISOR: u32 = 30;

/// Rereads use at most this fraction of a core (1/N).
const REREAD_SHARE_DIVISOR: u32 = 40;

/// Interval between checks of the readers.
const READER_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A shown trace.
pub struct ShownTrace {
    /// The summary, which is always kept.
    pub summary: TraceSummary,
    /// The whole model, if kept.
    pub whole: Option<Followed>,
    /// Sequence number of its last view; the highest is the latest.
    looked_at: u64,
}

/// All traces.
#[derive(Default)]
pub struct Roster {
    traces: Vec<ShownTrace>,
    /// Reads the traces without models; started with the first of them.
    readers: Option<Readers>,
    names: Arc<Interned>,
    comparison: RankComparison,
    looks: u64,
    /// Index of the trace whose turn is next.
    next: usize,
    /// Duration of this round so far.
    round_took: Duration,
    round_due: Option<Instant>,
    reread_due: Option<Instant>,
}

impl Roster {
    /// Opens traces.
    ///
    /// Of a large number, only the first lines are read here.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, is empty, or is not a trace of a known version.
    pub fn open(paths: &[PathBuf]) -> Result<Self, ReadError> {
        let mut roster = Self::default();
        for path in paths {
            let whole = if paths.len() <= MAX_WHOLE_TRACES { Some(Followed::open(path)?) } else { None };
            roster.traces.push(ShownTrace { summary: TraceSummary::open(path)?, whole, looked_at: 0 });
        }
        Ok(roster)
    }

    /// Adds a trace, unless it is present or cannot be read yet.
    ///
    /// Returns true if it was added.
    pub fn add(&mut self, path: &Path) -> bool {
        if self.traces.iter().any(|trace| trace.summary.path() == path) {
            return false;
        }
        let Ok(summary) = TraceSummary::open(path) else { return false };
        let whole = if self.traces.len() < MAX_WHOLE_TRACES { Followed::open(path).ok() } else { None };
        self.traces.push(ShownTrace { summary, whole, looked_at: 0 });
        self.keep_recent();
        true
    }

    /// Number of traces.
    pub fn len(&self) -> usize {
        self.traces.len()
    }

    /// Returns true if the roster has no traces.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    /// Returns true if the traces include several ranks.
    pub fn has_ranks(&self) -> bool {
        let mut ranks = self.traces.iter().filter_map(|trace| trace.summary.header().rank);
        let first = ranks.next();
        first.is_some_and(|first| ranks.any(|rank| rank != first))
    }

    /// The traces, in the order in which they were opened.
    pub fn traces_mut(&mut self) -> &mut [ShownTrace] {
        &mut self.traces
    }

    /// Returns true if all traces are complete.
    pub fn is_over(&self) -> bool {
        self.traces.iter().all(|trace| match &trace.whole {
            Some(whole) => whole.is_over(),
            None => trace.summary.is_settled(),
        })
    }

    /// Sets the trace in front, which keeps its whole model from now on.
    pub fn set_front(&mut self, path: Option<&Path>) {
        let Some(index) = path.and_then(|path| self.traces.iter().position(|trace| trace.summary.path() == path))
        else {
            return;
        };
        self.looks += 1;
        let trace = &mut self.traces[index];
        trace.looked_at = self.looks;
        if trace.whole.is_none()
            && let Ok(whole) = Followed::open(trace.summary.path())
        {
            trace.whole = Some(whole);
            trace.summary.leave_following();
            self.keep_recent();
        }
    }

    /// Drops models of traces that were viewed long ago.
    fn keep_recent(&mut self) {
        let most = if self.traces.len() > MAX_WHOLE_TRACES { RECENT_WHOLE_TRACES } else { MAX_WHOLE_TRACES };
        let mut looks: Vec<u64> =
            self.traces.iter().filter(|trace| trace.whole.is_some()).map(|trace| trace.looked_at).collect();
        if looks.len() <= most {
            return;
        }
        looks.sort_unstable_by(|a, b| b.cmp(a));
        let oldest = looks[most - 1];
        let mut kept = 0;
        // Traces never viewed have equal numbers, so stop at the limit.
        for trace in &mut self.traces {
            if trace.whole.is_some() && trace.looked_at >= oldest && kept < most {
                kept += 1;
            } else if let Some(whole) = trace.whole.take() {
                summarize(&mut trace.summary, &whole, &self.names);
            }
        }
    }

    /// Reads new events for a limited time.
    ///
    /// Calls `cancelled` while it reads a compressed trace.
    pub fn poll(&mut self, cancelled: &dyn Fn() -> bool) -> Polled {
        let mut all = Polled::default();
        let wholes = self.traces.iter().filter(|trace| trace.whole.is_some()).count();
        for followed in self.traces.iter_mut().filter_map(|trace| trace.whole.as_mut()) {
            followed.split_checkpoint_budget(wholes);
            let polled = followed.poll(cancelled);
            all.changed |= polled.changed;
            all.more |= polled.more;
        }
        if wholes < self.traces.len() {
            all.changed |= self.take_read() | self.follow_in_turns();
            self.order_reading();
        }
        if all.changed {
            self.comparison.set_outdated();
        }
        // An overdue comparison also counts as a change, so that the events read last are compared too.
        all.changed |= self.traces.len() > 1 && self.comparison.is_overdue();
        all
    }

    /// Takes the traces that the readers have read.
    ///
    /// Returns true if any.
    fn take_read(&mut self) -> bool {
        let Some(readers) = &self.readers else { return false };
        let done: Vec<_> = readers.done().collect();
        for read in done.iter().filter(|read| read.summary.is_ok()) {
            self.reread_due = Some(Instant::now() + read.took * REREAD_SHARE_DIVISOR);
        }
        let is_any = !done.is_empty();
        for read in done {
            if let Some(trace) = self.traces.iter_mut().find(|trace| trace.summary.path() == read.path) {
                trace.summary.take(read);
                if trace.whole.is_some() {
                    trace.summary.leave_following();
                }
            }
        }
        is_any
    }

    /// Orders reads of all unread traces; without any, of one trace with an outdated summary.
    fn order_reading(&mut self) {
        let is_due = self.reread_due.is_none_or(|due| Instant::now() >= due);
        let is_unread = |trace: &ShownTrace| trace.whole.is_none() && trace.summary.is_unread();
        let mut orders: Vec<&mut TraceSummary> = Vec::new();
        let has_unread = self.traces.iter().any(is_unread);
        for trace in &mut self.traces {
            let is_wanted =
                if has_unread { is_unread(trace) } else { is_due && orders.is_empty() && trace.summary.is_outdated() };
            if is_wanted && trace.whole.is_none() {
                orders.push(&mut trace.summary);
            }
        }
        if orders.is_empty() {
            return;
        }
        let readers = self.readers.get_or_insert_with(|| Readers::start(&self.names));
        for summary in orders {
            summary.set_ordered();
            readers.order(ReadRequest { path: summary.path().to_owned(), follow: !summary.is_followed() });
        }
    }

    /// Follows traces without whole models, one after the other.
    ///
    /// Returns true if anything changed.
    fn follow_in_turns(&mut self) -> bool {
        let began = Instant::now();
        if self.round_due.is_some_and(|due| began < due) {
            return false;
        }
        let mut changed = false;
        while let Some(trace) = self.traces.get_mut(self.next) {
            self.next += 1;
            if trace.whole.is_none() {
                changed |= trace.summary.poll();
            }
            if began.elapsed() > MAX_TURN {
                self.round_took += began.elapsed();
                return changed;
            }
        }
        self.round_took += began.elapsed();
        self.round_due = Some(Instant::now() + (self.round_took * ROUND_SHARE_DIVISOR).max(ROUND_INTERVAL));
        (self.next, self.round_took) = (0, Duration::ZERO);
        changed
    }

    /// Reads all traces to their current ends.
    pub fn read_to_end(&mut self, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) {
        loop {
            let more = self.poll(&|| false).more;
            let is_left = |trace: &ShownTrace| match &trace.whole {
                Some(_) => more,
                None => trace.summary.summary().is_none() && !trace.summary.is_over(),
            };
            let left = self.traces.iter().filter(|trace| is_left(trace)).count();
            if left == 0 {
                return;
            }
            let told = self.traces.iter().filter(|trace| is_left(trace)).find_map(|trace| trace.whole.as_ref());
            let events = |trace: &ShownTrace| trace.summary.summary().map_or(0, |summary| summary.events);
            let (all, read) = (self.traces.len() as u64, (self.traces.len() - left) as u64);
            let told = told.map(Followed::progress).unwrap_or_else(|| Progress {
                bytes_read: read,
                bytes_total: all,
                events: self.traces.iter().map(events).sum(),
            });
            if progress(told).is_break() {
                return;
            }
            if !more {
                std::thread::sleep(READER_POLL_INTERVAL);
            }
        }
    }

    /// Returns the comparison of the job's ranks, if it has two.
    ///
    /// Recomputed only when due.
    pub fn compare_ranks(&mut self, scope: Option<Scope>) -> Option<Arc<Job>> {
        if !self.comparison.is_due(scope) {
            return self.comparison.job();
        }
        for trace in &mut self.traces {
            if let Some(whole) = &trace.whole {
                summarize(&mut trace.summary, whole, &self.names);
            }
        }
        let read: Vec<&RankSummary> = self.traces.iter().filter_map(|trace| trace.summary.summary()).collect();
        self.comparison.compare(&read, scope)
    }
}

/// Updates a summary from a model, unless the model is still being read.
fn summarize(summary: &mut TraceSummary, whole: &Followed, names: &Interned) {
    if let Some((model, skipped)) = whole.caught_up() {
        summary.set_summary(RankSummary::of(whole.path(), model, skipped, names), whole.state());
    }
}
