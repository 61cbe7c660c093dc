//! Growth over optimizer steps: lines that hold more at the end of every step.
//!
//! A program without an optimizer is compared at its iterations instead: when a forward begins after a backward, or at every
//! forward if the program never runs backward.

use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::history_views::{GrowthMoments, GrowthUnit, GrowthView};
use super::ledger::Ledger;
use super::line::Line;
use super::line_book::LineMove;
use super::scope::{ByScope, Scope};
use super::snapshots::{Cells, Snapshot, SteadyLines, grew_steadily, steady_lines};
use super::symbols::Symbols;
use super::windows::Windows;

/// Steps before the reference: the first one creates gradients and optimizer state.
const WARM_UP: u64 = 2;

/// Maximum number of snapshots.
const MAX_SNAPSHOTS: usize = 32;

/// Backwards between the iterations of a program without optimizer steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Backwards {
    /// True once the program has run backward.
    any: bool,
    /// True if backward ran since the last iteration began.
    since: bool,
}

/// Bytes of lines at the ends of steps, or at iterations, sampled over the run.
#[derive(Clone, Default)]
pub(crate) struct Growth {
    pub(crate) unit: GrowthUnit,
    pub(crate) backwards: Backwards,
    /// Number of steps ended, or of iterations begun.
    pub(crate) ended: u64,
    pub(crate) stride: u64,
    /// History of the lines of each scope.
    pub(crate) histories: ByScope<ScopeHistory>,
    /// Bytes of cells at the reference.
    pub(crate) cells_before: Cells,
    /// Bytes of cells at the last snapshot.
    pub(crate) cells_after: Cells,
    /// Growth that a release ended.
    pub(crate) windows: Windows,
}

/// Bytes of the lines of one scope at the ends of steps.
#[derive(Clone, Default)]
pub(crate) struct ScopeHistory {
    pub(crate) reference: Option<Snapshot>,
    pub(crate) snapshots: Vec<Snapshot>,
}

impl Growth {
    /// Handles the start of a backward.
    pub(crate) fn begin_backward(&mut self) {
        self.backwards = Backwards { any: true, since: true };
    }

    /// Handles the start of a forward: an iteration, until the first optimizer step has ended.
    pub(crate) fn begin_pass(&mut self, ledger: &mut Ledger, allocated: u64) {
        let is_first = self.ended == 0;
        let is_iteration = self.backwards.since || !self.backwards.any;
        if !is_iteration {
            return;
        }
        self.backwards.since = false;
        if is_first || self.unit == GrowthUnit::Iterations {
            self.unit = GrowthUnit::Iterations;
            self.note(ledger, allocated);
        } else {
            self.windows.after_steps.note(ledger, allocated);
        }
    }

    /// Handles the end of a step. `allocated`: bytes of PyTorch's blocks.
    pub(crate) fn end_step(&mut self, ledger: &mut Ledger, allocated: u64) {
        if self.unit == GrowthUnit::Iterations {
            let of_first_step = self.ended;
            *self = Self::default();
            self.windows.after_steps.usual = of_first_step;
        }
        self.note(ledger, allocated);
        self.windows.after_steps.end_step();
    }

    fn note(&mut self, ledger: &mut Ledger, allocated: u64) {
        for book in ledger.books_mut() {
            book.step_epoch = book.step_epoch.wrapping_add(1);
        }
        self.ended = self.ended.saturating_add(1);
        self.stride = self.stride.max(1);
        let is_reference = self.ended == WARM_UP;
        let is_sampled = self.ended.is_multiple_of(self.stride);
        for (history, book) in std::iter::zip(self.histories.values_mut(), ledger.books_mut()) {
            if is_reference {
                history.reference = Some(Snapshot::of(book, self.ended));
            }
            if is_sampled {
                history.snapshots.push(Snapshot::of(book, self.ended));
            }
        }
        if is_reference {
            self.cells_before = Cells::of(ledger, self.ended);
        }
        if is_sampled {
            self.cells_after = Cells::of(ledger, self.ended);
        }
        if self.moments() > MAX_SNAPSHOTS {
            self.keep_half();
        }
        self.windows.note(ledger, self.ended, allocated);
    }

    /// Returns the number of snapshots, without the reference.
    fn moments(&self) -> usize {
        self.histories[Scope::Users].snapshots.len()
    }

    /// Drops every second snapshot. Returns false if only a few exist.
    pub(crate) fn shorten(&mut self) -> bool {
        let are_many = self.moments() > MAX_SNAPSHOTS / 8;
        if are_many {
            self.keep_half();
        }
        are_many
    }

    fn keep_half(&mut self) {
        self.stride = self.stride.saturating_mul(2);
        let stride = self.stride;
        for history in self.histories.values_mut() {
            history.snapshots.retain(|snapshot| snapshot.ended.is_multiple_of(stride));
        }
    }

    /// Moves bytes to the lines of the scope that count them from now on.
    pub(crate) fn moved(&mut self, ledger: &Ledger, scope: Scope, moves: &[LineMove]) {
        if moves.is_empty() {
            return;
        }
        let history = &mut self.histories[scope];
        for snapshot in history.reference.iter_mut().chain(&mut history.snapshots) {
            *snapshot = snapshot.with_current_lines(ledger.book(scope));
            snapshot.moved(moves);
        }
        if scope == Scope::Users {
            self.windows.moved(ledger, moves);
        }
    }

    /// Restores a snapshot from a keyframe.
    pub(crate) fn restore(&mut self, scope: Scope, is_reference: bool, snapshot: Snapshot) {
        let history = &mut self.histories[scope];
        if is_reference {
            history.reference = Some(snapshot);
        } else {
            history.snapshots.push(snapshot);
        }
    }

    /// Returns the steps that [`Growth::by_cell`] compares; `None`: too few have ended.
    pub(crate) fn compared(&self) -> Option<(u64, u64)> {
        Cells::span(&self.cells_before, &self.cells_after)
    }

    /// Returns the bytes of cells after warm-up, and at the last step noted.
    pub(crate) fn by_cell(&self) -> HashMap<u32, (u64, u64)> {
        Cells::compared(&self.cells_before, &self.cells_after)
    }

    /// Returns the program's steadily growing lines.
    pub(crate) fn steady_lines(&self, ledger: &Ledger) -> SteadyLines {
        let history = &self.histories[Scope::Users];
        let Some(reference) = &history.reference else { return SteadyLines::new() };
        let later = history.snapshots.iter().filter(|snapshot| snapshot.ended > reference.ended);
        steady_lines(ledger.book(Scope::Users), std::iter::once(reference).chain(later), |_, _| true)
    }

    /// Returns the snapshot of a scope that the last step is compared with: after warm-up, or after the first of two steps.
    fn reference(&self, scope: Scope) -> Option<&Snapshot> {
        let history = &self.histories[scope];
        let after_warm_up = history.reference.as_ref().filter(|_| self.ended > WARM_UP);
        after_warm_up.or_else(|| history.snapshots.first().filter(|first| first.ended < self.ended))
    }

    /// Returns the moments that [`Growth::view`] compares; `None`: too few so far.
    pub(crate) fn moments_compared(&self) -> Option<GrowthMoments> {
        let reference = self.reference(Scope::Users)?;
        Some(GrowthMoments { unit: self.unit, from: reference.ended, to: self.ended })
    }

    /// Returns the lines of a scope that held more at the end of the last step than after warm-up, largest growth first.
    pub(crate) fn view(&self, ledger: &Ledger, scope: Scope, symbols: &Symbols) -> Vec<GrowthView> {
        let (book, history) = (ledger.book(scope), &self.histories[scope]);
        let Some(from) = self.reference(scope) else { return Vec::new() };
        let before = from.by_slot(book);
        let sampled =
            history.snapshots.iter().filter(|snapshot| snapshot.ended > from.ended && snapshot.ended < self.ended);
        let between: Vec<_> = sampled.map(|snapshot| snapshot.by_slot(book)).collect();

        let mut views = Vec::new();
        for (slot, line) in book.lines.iter().enumerate() {
            let (from_bytes, to_bytes) = (before[slot], book.line_at_step(slot as u32));
            if to_bytes <= from_bytes {
                continue;
            }
            let samples = between.iter().map(|lines| lines[slot]);
            let samples: Vec<u64> = [from_bytes].into_iter().chain(samples).chain([to_bytes]).collect();
            views.push(GrowthView {
                line: symbols.line(line.id).map(Arc::<Line>::clone),
                from_step: from.ended,
                to_step: self.ended,
                from_bytes,
                to_bytes,
                bytes_per_step: (to_bytes - from_bytes) as f64 / self.ended.saturating_sub(from.ended).max(1) as f64,
                is_steady: grew_steadily(samples),
            });
        }
        views.sort_by(|a, b| (b.to_bytes - b.from_bytes, &a.line).cmp(&(a.to_bytes - a.from_bytes, &b.line)));
        views
    }
}
