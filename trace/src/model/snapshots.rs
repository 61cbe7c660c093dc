//! Bytes of lines and cells at comparable moments: ends of steps, beginnings of passes.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::classification::Classification;
use super::ledger::Ledger;
use super::line_book::{LineBook, LineMove};
use super::scope::Scope;
use memlab_format::record::Phase;

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

/// Bytes of cells at the end of a step, or at the start of a pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cells {
    /// Number of steps ended, or of passes begun; 0: not noted yet.
    pub(crate) ended: u64,
    cells: Vec<(u32, u64)>,
    /// Blocks of the cells with key-value caches. One cache grows with its text, so growth means more caches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cache_blocks: Vec<(u32, u64)>,
}

impl Cells {
    pub(crate) fn of(ledger: &Ledger, ended: u64) -> Self {
        let held = std::iter::zip(0.., &ledger.cells).filter(|(_, cell)| cell.bytes > 0);
        let mut cells: Vec<(u32, u64)> = held.map(|(index, cell)| (index, cell.bytes)).collect();
        if cells.len() > MAX_CELLS {
            cells.sort_unstable_by_key(|(index, bytes)| (std::cmp::Reverse(*bytes), *index));
            cells.truncate(MAX_CELLS);
        }
        let is_cache = |index: u32| ledger.cells[index as usize].key.classification == Classification::KvCache;
        let caches = cells.iter().filter(|(index, _)| is_cache(*index));
        let cache_blocks = caches.map(|(index, _)| (*index, ledger.cells[*index as usize].blocks)).collect();
        Self { ended, cells, cache_blocks }
    }

    /// Returns the steps or passes from one moment to a later one; `None`: none lies between them, or one was not noted.
    pub(crate) fn span(before: &Self, after: &Self) -> Option<(u64, u64)> {
        (before.ended > 0 && after.ended > before.ended).then_some((before.ended, after.ended))
    }

    /// Returns bytes by cell at two moments. Key-value caches count only where their number grew.
    pub(crate) fn compared(before: &Self, after: &Self) -> HashMap<u32, (u64, u64)> {
        let mut held: HashMap<u32, (u64, u64)> = HashMap::new();
        for (cell, bytes) in &before.cells {
            held.entry(*cell).or_default().0 = *bytes;
        }
        for (cell, bytes) in &after.cells {
            held.entry(*cell).or_default().1 = *bytes;
        }
        let blocks_before: HashMap<u32, u64> = before.cache_blocks.iter().copied().collect();
        for (cell, blocks) in &after.cache_blocks {
            if *blocks <= blocks_before.get(cell).copied().unwrap_or(0) {
                held.remove(cell);
            }
        }
        held
    }

    /// Returns bytes by cell.
    pub(crate) fn by_cell(&self) -> HashMap<u32, u64> {
        self.cells.iter().copied().collect()
    }
}

/// Lines that grew steadily: the number of a curve by line slot. Lines with one curve grew together.
pub(crate) type SteadyLines = HashMap<u32, u32>;

/// Returns the lines that grew steadily over the snapshots.
pub(crate) fn steady_lines<'s>(
    book: &LineBook,
    snapshots: impl Iterator<Item = &'s Snapshot>,
    counts: impl Fn(u32, u64) -> bool,
) -> SteadyLines {
    let samples: Vec<Vec<u64>> = snapshots.map(|snapshot| snapshot.by_slot(book)).collect();
    let mut steady: Vec<(u64, u32, Vec<u64>)> = Vec::new();
    for slot in 0..book.lines.len() {
        let held = kept_until_end(samples.iter().map(|lines| lines[slot]).collect());
        let more = held.last().zip(held.first()).map_or(0, |(last, first)| last - first);
        if is_steady(&held) && counts(slot as u32, more) {
            steady.push((more, slot as u32, held));
        }
    }
    steady.sort_by_key(|(more, slot, _)| (std::cmp::Reverse(*more), *slot));
    let mut curves: Vec<Vec<f64>> = Vec::new();
    let mut lines = SteadyLines::new();
    for (more, slot, held) in steady {
        let curve: Vec<f64> = held.iter().map(|bytes| (bytes - held[0]) as f64 / more as f64).collect();
        let known = curves.iter().position(|known| is_same_curve(known, &curve));
        let number = known.unwrap_or(curves.len());
        if known.is_none() {
            curves.push(curve);
        }
        lines.insert(slot, number as u32);
    }
    lines
}

/// Returns true if two lines had the same share of their growth at each moment.
fn is_same_curve(one: &[f64], other: &[f64]) -> bool {
    const TOLERANCE: f64 = 0.1;
    std::iter::zip(one, other).all(|(one, other)| (one - other).abs() <= TOLERANCE)
}

/// Returns the bytes of each moment that stayed until the end.
fn kept_until_end(mut held: Vec<u64>) -> Vec<u64> {
    let mut least = u64::MAX;
    for bytes in held.iter_mut().rev() {
        least = least.min(*bytes);
        *bytes = least;
    }
    held
}

/// Returns true if bytes that stayed until the end grew repeatedly, rather than once or by chance, and had not stopped.
fn is_steady(kept: &[u64]) -> bool {
    let [first, .., last] = *kept else { return false };
    let more = last - first;
    let largest = kept.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let by_half_time = kept[(kept.len() - 1) / 2] - first;
    more > 0 && largest <= more / 5 * 3 && by_half_time >= more / 5 && !has_stopped(kept, more)
}

/// Returns true if the samples of a line grew steadily.
pub(crate) fn grew_steadily(samples: Vec<u64>) -> bool {
    is_steady(&kept_until_end(samples))
}

/// Returns true if no sample of the last quarter grew, and the pause is more than twice as long as each one before.
///
/// A cache that fills stops so. Growth by a small part of `more` does not end a pause.
fn has_stopped(kept: &[u64], more: u64) -> bool {
    let (mut grew_at, mut longest_pause) = (0, 0);
    for at in 1..kept.len() {
        if kept[at] - kept[grew_at] > more / 50 {
            longest_pause = longest_pause.max(at - grew_at);
            grew_at = at;
        }
    }
    let pause = kept.len() - 1 - grew_at;
    pause > 2 * longest_pause && pause > kept.len() / 4
}
