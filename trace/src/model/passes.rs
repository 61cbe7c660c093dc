//! Bytes of lines at the start of forward passes, to find memory that accumulates over passes without a backward between
//! them.
//!
//! [`super::growth`] finds accumulation over optimizer steps, at the ends of steps. Accumulation over passes, as in an
//! evaluation that keeps its results, may be over before the next step ends. This module therefore samples the lines
//! whenever a thread enters forward, from one backward to the next. It keeps the samples that led to the peak.

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::line_book::{LineBook, LineMove};
use super::scope::Scope;
use super::snapshots::{Cells, Snapshot, SteadyLines, steady_lines};

/// Maximum number of sampled passes.
const MAX_SAMPLED_PASSES: usize = 32;

/// Minimum number of passes that show an accumulation.
pub(super) const MIN_PASSES: usize = 5;

/// Bytes of lines at the start of forward passes, from one backward to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Passes {
    count: u64,
    stride: u64,
    /// Snapshots, each with the number of events up to then.
    samples: Vec<(u64, Snapshot)>,
    /// Event of the peak that these passes led to; 0: none yet.
    peak: u64,
    /// Lines at the start of the next backward, and after it, without allocations of backward such as gradients.
    before_backward: Option<Snapshot>,
    after_backward: Option<Snapshot>,
    /// Cells at the start of the last pass, with the number of events up to then.
    #[serde(default)]
    last: (u64, Cells),
    /// Cells at the start of the pass with the peak, if that is an earlier one.
    #[serde(default)]
    before_peak: Cells,
}

impl Passes {
    fn began(&self) -> u64 {
        self.samples.first().map_or(u64::MAX, |(event, _)| *event)
    }

    /// Returns the samples up to an event.
    fn until(&self, event: u64) -> impl Iterator<Item = &Snapshot> {
        self.samples.iter().filter(move |(at, _)| *at <= event).map(|(_, snapshot)| snapshot)
    }

    /// Records the cells at the start of a pass.
    ///
    /// Unless the pass is sampled, this costs no more than the events since the last record.
    fn note_cells(&mut self, ledger: &Ledger, events: u64, peak: u64, is_sampled: bool) {
        if peak >= self.last.0 {
            self.before_peak.clone_from(&self.last.1);
        }
        if is_sampled || events.saturating_sub(self.last.0) >= ledger.cells.len() as u64 {
            self.last = (events, Cells::of(ledger, self.count));
        }
    }

    /// Returns the cells at the start of the pass with the peak.
    fn cells_before(&self, peak: u64) -> &Cells {
        if peak >= self.last.0 { &self.last.1 } else { &self.before_peak }
    }

    fn snapshots_mut(&mut self) -> impl Iterator<Item = &mut Snapshot> {
        let others = self.before_backward.iter_mut().chain(&mut self.after_backward);
        self.samples.iter_mut().map(|(_, snapshot)| snapshot).chain(others)
    }

    fn with_current_lines(&self, book: &LineBook) -> Self {
        let mut passes = self.clone();
        passes.snapshots_mut().for_each(|snapshot| *snapshot = snapshot.with_current_lines(book));
        passes
    }
}

/// Passes since the last backward, and the passes that led to the peak.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Accumulation {
    pub(crate) now: Passes,
    pub(crate) to_peak: Passes,
}

impl Accumulation {
    /// Handles a thread that enters forward, after `events`; `peak` is the event of the device's peak.
    pub(crate) fn begin_pass(&mut self, ledger: &Ledger, events: u64, peak: u64) {
        self.backward_is_over(ledger);
        let passes = &mut self.now;
        passes.count = passes.count.saturating_add(1);
        passes.stride = passes.stride.max(1);
        let is_sampled = passes.count.is_multiple_of(passes.stride);
        passes.note_cells(ledger, events, peak, is_sampled);
        if !is_sampled {
            return;
        }
        passes.samples.push((events, Snapshot::of(ledger.book(Scope::Users), passes.count)));
        if passes.samples.len() > MAX_SAMPLED_PASSES {
            // Samples before a past peak are thinned out no further.
            if peak >= passes.began() && self.to_peak.peak != peak {
                self.to_peak = Passes { peak, ..passes.clone() };
            }
            let passes = &mut self.now;
            passes.stride = passes.stride.saturating_mul(2);
            let stride = passes.stride;
            passes.samples.retain(|(_, snapshot)| snapshot.ended.is_multiple_of(stride));
        }
    }

    /// Handles the start of a backward, which may use allocations of the passes.
    pub(crate) fn begin_backward(&mut self, ledger: &Ledger, peak: u64) {
        let passes = std::mem::take(&mut self.now);
        let led_to_peak = peak >= passes.began();
        if led_to_peak && (self.to_peak.peak != peak || passes.until(peak).count() >= MIN_PASSES) {
            self.to_peak = Passes { peak, ..passes };
        }
        if led_to_peak && self.to_peak.before_backward.is_none() && self.to_peak.samples.len() >= MIN_PASSES {
            self.to_peak.before_backward = Some(Snapshot::without_backward(ledger));
        }
    }

    /// Handles the end of a backward, after it freed its inputs.
    pub(crate) fn backward_is_over(&mut self, ledger: &Ledger) {
        if self.to_peak.before_backward.is_some() && self.to_peak.after_backward.is_none() {
            self.to_peak.after_backward = Some(Snapshot::without_backward(ledger));
        }
    }

    /// Moves bytes to the lines that count them from now on.
    pub(crate) fn moved(&mut self, ledger: &Ledger, moves: &[LineMove]) {
        if moves.is_empty() {
            return;
        }
        for snapshot in self.now.snapshots_mut().chain(self.to_peak.snapshots_mut()) {
            *snapshot = snapshot.with_current_lines(ledger.book(Scope::Users));
            snapshot.moved(moves);
        }
    }

    /// Returns the accumulation with current line slots, for a keyframe.
    pub(crate) fn with_current_lines(&self, ledger: &Ledger) -> Self {
        let book = ledger.book(Scope::Users);
        Self { now: self.now.with_current_lines(book), to_peak: self.to_peak.with_current_lines(book) }
    }

    /// Returns the passes that led to a peak.
    fn passes_to(&self, peak: u64) -> &Passes {
        let passes = if peak >= self.now.began() { &self.now } else { &self.to_peak };
        if passes.until(peak).count() < MIN_PASSES && self.to_peak.peak == peak { &self.to_peak } else { passes }
    }

    /// Returns the bytes of cells from earlier passes, at the start of the pass with the peak.
    pub(super) fn cells_before(&self, peak: u64) -> &Cells {
        self.passes_to(peak).cells_before(peak)
    }

    /// Returns the lines that accumulated up to the peak and that the backward after it did not use.
    pub(super) fn lines(&self, ledger: &Ledger, peak: u64) -> SteadyLines {
        let book = ledger.book(Scope::Users);
        let passes = self.passes_to(peak);
        if passes.until(peak).count() < MIN_PASSES {
            return SteadyLines::new();
        }
        let before = passes.before_backward.as_ref().map(|snapshot| snapshot.by_slot(book));
        let after = passes.after_backward.as_ref().map(|snapshot| snapshot.by_slot(book));
        let was_used = |slot: u32, piled: u64| match (&before, &after) {
            (Some(before), Some(after)) => {
                let (before, after) = (before[slot as usize], after[slot as usize]);
                before >= piled / 2 && after < before / 2
            }
            _ => false,
        };
        steady_lines(book, passes.until(peak), |slot, piled| !was_used(slot, piled))
    }
}
