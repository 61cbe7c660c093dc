//! Growth over optimizer steps: lines that hold more at the end of every step.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::history_views::GrowthView;
use super::ledger::Ledger;
use super::line::Line;
use super::line_book::{LineBook, LineMove};
use super::scope::{ByScope, Scope};
use super::symbols::Symbols;
use crate::record::Phase;

/// Steps before the reference: the first one creates gradients and optimizer state.
const WARM_UP: u64 = 2;

/// Maximum number of snapshots.
const MAX_SNAPSHOTS: usize = 32;

/// Maximum number of cells in a snapshot; the largest are kept.
const MAX_CELLS: usize = 4096;

/// Bytes of every line at the end of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Number of steps ended, or of passes begun.
    pub(crate) ended: u64,
    /// Line slots and their bytes.
    lines: Vec<(u32, u64)>,
}

impl Snapshot {
    /// Returns a snapshot of all lines.
    pub(crate) fn of(book: &LineBook, ended: u64) -> Self {
        let lines = std::iter::zip(0.., &book.lines).filter(|(_, line)| line.bytes > 0);
        Self { ended, lines: lines.map(|(slot, line)| (slot, line.bytes)).collect() }
    }

    /// Returns a snapshot of all lines, without the bytes allocated in backward.
    pub(crate) fn without_backward(ledger: &Ledger) -> Self {
        let book = ledger.book(Scope::Users);
        let mut lines = BTreeMap::new();
        for cell in ledger.cells.iter().filter(|cell| cell.bytes > 0 && cell.key.phase != Phase::Backward) {
            let held = lines.entry(book.line_of(cell)).or_insert(0_u64);
            *held = held.saturating_add(cell.bytes);
        }
        Self { ended: 0, lines: lines.into_iter().collect() }
    }

    /// Returns bytes by line slot. Moved slots count at their current slot.
    pub(crate) fn by_slot(&self, book: &LineBook) -> Vec<u64> {
        let mut bytes = vec![0_u64; book.lines.len()];
        for (slot, held) in &self.lines {
            let slot = book.current_line(*slot) as usize;
            if let Some(bytes) = bytes.get_mut(slot) {
                *bytes = bytes.saturating_add(*held);
            }
        }
        bytes
    }

    /// Moves bytes to the lines that count them from now on.
    pub(crate) fn moved(&mut self, moves: &[LineMove]) {
        for moved in moves {
            let Some(index) = self.lines.iter().position(|(slot, _)| *slot == moved.from) else { continue };
            let bytes = moved.share_of(self.lines[index].1);
            self.lines[index].1 -= bytes;
            self.lines.push((moved.to, bytes));
        }
        self.lines.retain(|(_, bytes)| *bytes > 0);
    }

    /// Returns the snapshot with moved slots at their current slots.
    pub(crate) fn with_current_lines(&self, book: &LineBook) -> Self {
        let mut lines = BTreeMap::new();
        for (slot, bytes) in &self.lines {
            let held = lines.entry(book.current_line(*slot)).or_insert(0_u64);
            *held = held.saturating_add(*bytes);
        }
        Self { ended: self.ended, lines: lines.into_iter().collect() }
    }
}

/// Bytes of lines at the ends of steps, sampled over the run.
#[derive(Clone, Default)]
pub(crate) struct Growth {
    pub(crate) ended: u64,
    pub(crate) stride: u64,
    /// History of the lines of each scope.
    pub(crate) histories: ByScope<ScopeHistory>,
    /// Bytes of cells at the reference.
    pub(crate) cells_before: Cells,
    /// Bytes of cells at the last snapshot.
    pub(crate) cells_after: Cells,
}

/// Bytes of the lines of one scope at the ends of steps.
#[derive(Clone, Default)]
pub(crate) struct ScopeHistory {
    pub(crate) reference: Option<Snapshot>,
    pub(crate) snapshots: Vec<Snapshot>,
}

/// Bytes of cells at the end of a step, or at the start of a pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cells {
    /// Number of steps ended, or of passes begun; 0: not noted yet.
    pub(crate) ended: u64,
    cells: Vec<(u32, u64)>,
}

impl Cells {
    pub(crate) fn of(ledger: &Ledger, ended: u64) -> Self {
        let held = std::iter::zip(0.., &ledger.cells).filter(|(_, cell)| cell.bytes > 0);
        let mut cells: Vec<(u32, u64)> = held.map(|(index, cell)| (index, cell.bytes)).collect();
        if cells.len() > MAX_CELLS {
            cells.sort_unstable_by_key(|(index, bytes)| (std::cmp::Reverse(*bytes), *index));
            cells.truncate(MAX_CELLS);
        }
        Self { ended, cells }
    }

    /// Returns bytes by cell.
    pub(crate) fn by_cell(&self) -> HashMap<u32, u64> {
        self.cells.iter().copied().collect()
    }
}

impl Growth {
    /// Handles the end of a step.
    pub(crate) fn end(&mut self, ledger: &mut Ledger) {
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
        let (from, to) = (self.cells_before.ended, self.cells_after.ended);
        (from > 0 && to > from).then_some((from, to))
    }

    /// Returns the bytes of cells after warm-up, and at the last step noted.
    pub(crate) fn by_cell(&self) -> HashMap<u32, (u64, u64)> {
        let mut held: HashMap<u32, (u64, u64)> = HashMap::new();
        for (cell, bytes) in &self.cells_before.cells {
            held.entry(*cell).or_default().0 = *bytes;
        }
        for (cell, bytes) in &self.cells_after.cells {
            held.entry(*cell).or_default().1 = *bytes;
        }
        held
    }

    /// Returns the slots of the program's steadily growing lines.
    pub(crate) fn steady_lines(&self, ledger: &Ledger) -> Vec<u32> {
        let (book, history) = (ledger.book(Scope::Users), &self.histories[Scope::Users]);
        let Some(reference) = &history.reference else { return Vec::new() };
        let later = history.snapshots.iter().filter(|snapshot| snapshot.ended > reference.ended);
        let samples: Vec<Vec<u64>> =
            std::iter::once(reference).chain(later).map(|snapshot| snapshot.by_slot(book)).collect();
        let is_steady = |slot: &usize| is_steady(&samples.iter().map(|lines| lines[*slot]).collect::<Vec<u64>>());
        (0..book.lines.len()).filter(is_steady).map(|slot| slot as u32).collect()
    }

    /// Returns the lines of a scope that held more at the end of the last step than after warm-up, largest growth first.
    pub(crate) fn view(&self, ledger: &Ledger, scope: Scope, symbols: &Symbols) -> Vec<GrowthView> {
        let (book, history) = (ledger.book(scope), &self.histories[scope]);
        // After two steps, only the first is available for comparison.
        let from = match &history.reference {
            Some(reference) if self.ended > WARM_UP => reference,
            _ => match history.snapshots.first() {
                Some(first) if first.ended < self.ended => first,
                _ => return Vec::new(),
            },
        };
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
                is_steady: is_steady(&samples),
            });
        }
        views.sort_by(|a, b| (b.to_bytes - b.from_bytes, &a.line).cmp(&(a.to_bytes - a.from_bytes, &b.line)));
        views
    }
}

/// Returns true if the bytes grew repeatedly, rather than once or by chance.
///
/// Only bytes that stayed until the end count.
pub(crate) fn is_steady(held: &[u64]) -> bool {
    let mut kept = held.to_vec();
    let mut least = u64::MAX;
    for bytes in kept.iter_mut().rev() {
        least = least.min(*bytes);
        *bytes = least;
    }
    let [first, .., last] = kept[..] else { return false };
    let more = last - first;
    let largest = kept.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let by_half_time = kept[(kept.len() - 1) / 2] - first;
    more > 0 && largest <= more / 5 * 3 && by_half_time >= more / 5
}
