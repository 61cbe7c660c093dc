//! Optimizer steps: how much each one took, and which lines hold more after every one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ledger::{Ledger, Moved};
use super::symbols::Symbols;
use super::views::{GrowthView, Line, StepView};

/// The most steps kept apart; beyond, neighbours are joined.
const STEPS: usize = 1 << 16;

/// So few are kept apart even where there is little room.
const FEW: usize = 64;

/// Steps whose ends are not compared: the first makes gradients and optimizer state.
const WARM_UP: u64 = 2;

/// The most moments at which what lines hold is kept.
const SNAPSHOTS: usize = 32;

/// The steps of one device, or of all together.
#[derive(Clone, Default)]
pub(crate) struct Steps {
    pub(crate) list: Vec<StepView>,
    /// How many steps an entry joins; 0: none yet.
    pub(crate) joined: u64,
    /// The most allocated since the last step ended.
    pub(crate) peak: u64,
}

impl Steps {
    /// `allocated` bytes are allocated now.
    #[inline]
    pub(crate) fn note(&mut self, allocated: u64) {
        self.peak = self.peak.max(allocated);
    }

    /// Takes the rest of the state over from a keyframe.
    pub(crate) fn restore(&mut self, joined: u64, peak: u64) {
        (self.joined, self.peak) = (joined, peak);
    }

    /// A step ended.
    pub(crate) fn end(&mut self, index: u64, time: u64, allocated: u64, event: u64) {
        self.joined = self.joined.max(1);
        let step = StepView {
            index,
            steps: 1,
            end_time: time,
            peak_allocated_bytes: self.peak.max(allocated),
            allocated_bytes_at_end: allocated,
            end_event: event,
        };
        self.peak = allocated;
        match self.list.last_mut() {
            Some(last) if last.steps < self.joined => join(last, step),
            _ => self.list.push(step),
        }
        if self.list.len() > STEPS {
            self.join_neighbours();
        }
    }

    /// Halves the list; false if it is short.
    pub(crate) fn shorten(&mut self) -> bool {
        let is_long = self.list.len() > FEW;
        if is_long {
            self.join_neighbours();
        }
        is_long
    }

    fn join_neighbours(&mut self) {
        self.joined = self.joined.saturating_mul(2);
        let joined = self.joined;
        self.list.dedup_by(|later, earlier| {
            let fits = earlier.steps.saturating_add(later.steps) <= joined;
            if fits {
                join(earlier, *later);
            }
            fits
        });
    }
}

fn join(earlier: &mut StepView, later: StepView) {
    *earlier = StepView {
        steps: earlier.steps.saturating_add(later.steps),
        peak_allocated_bytes: earlier.peak_allocated_bytes.max(later.peak_allocated_bytes),
        ..later
    };
}

/// What every line held at the end of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Steps ended by then.
    ended: u64,
    /// Line slots and their bytes.
    lines: Vec<(u32, u64)>,
}

impl Snapshot {
    /// Some of what lines held is counted at other lines from now on.
    fn moved(&mut self, moves: &[Moved]) {
        for moved in moves {
            let Some(index) = self.lines.iter().position(|(slot, _)| *slot == moved.from) else { continue };
            let bytes = moved.share_of(self.lines[index].1);
            self.lines[index].1 -= bytes;
            self.lines.push((moved.to, bytes));
        }
        self.lines.retain(|(_, bytes)| *bytes > 0);
    }

    /// With slots that moved counted where they are now.
    pub(crate) fn with_current_lines(&self, ledger: &Ledger) -> Self {
        let mut lines = BTreeMap::new();
        for (slot, bytes) in &self.lines {
            let held = lines.entry(ledger.current_line(*slot)).or_insert(0_u64);
            *held = held.saturating_add(*bytes);
        }
        Self { ended: self.ended, lines: lines.into_iter().collect() }
    }
}

/// What lines hold at the ends of steps, sampled over the run.
#[derive(Clone, Default)]
pub(crate) struct Growth {
    pub(crate) ended: u64,
    pub(crate) stride: u64,
    pub(crate) reference: Option<Snapshot>,
    pub(crate) snapshots: Vec<Snapshot>,
}

impl Growth {
    /// A step ended.
    pub(crate) fn end(&mut self, ledger: &mut Ledger) {
        ledger.step_epoch = ledger.step_epoch.wrapping_add(1);
        self.ended = self.ended.saturating_add(1);
        self.stride = self.stride.max(1);
        let is_reference = self.ended == WARM_UP;
        let is_sampled = self.ended.is_multiple_of(self.stride);
        if !is_reference && !is_sampled {
            return;
        }
        let lines = std::iter::zip(0.., &ledger.lines).filter(|(_, line)| line.bytes > 0);
        let snapshot = Snapshot { ended: self.ended, lines: lines.map(|(slot, line)| (slot, line.bytes)).collect() };
        if is_reference {
            self.reference = Some(snapshot.clone());
        }
        if is_sampled {
            self.snapshots.push(snapshot);
        }
        if self.snapshots.len() > SNAPSHOTS {
            self.keep_half();
        }
    }

    /// Halves the moments; false if there are few.
    pub(crate) fn shorten(&mut self) -> bool {
        let are_many = self.snapshots.len() > SNAPSHOTS / 8;
        if are_many {
            self.keep_half();
        }
        are_many
    }

    fn keep_half(&mut self) {
        self.stride = self.stride.saturating_mul(2);
        let stride = self.stride;
        self.snapshots.retain(|snapshot| snapshot.ended.is_multiple_of(stride));
    }

    /// Some of what lines held is counted at other lines from now on.
    pub(crate) fn moved(&mut self, ledger: &Ledger, moves: &[Moved]) {
        if moves.is_empty() {
            return;
        }
        for snapshot in self.reference.iter_mut().chain(&mut self.snapshots) {
            *snapshot = snapshot.with_current_lines(ledger);
            snapshot.moved(moves);
        }
    }

    /// Takes a snapshot over from a keyframe.
    pub(crate) fn restore(&mut self, is_reference: bool, snapshot: Snapshot) {
        if is_reference {
            self.reference = Some(snapshot);
        } else {
            self.snapshots.push(snapshot);
        }
    }

    /// The lines that held more at the end of the last step than after warm-up, most growth first.
    pub(crate) fn view(&self, ledger: &Ledger, symbols: &Symbols) -> Vec<GrowthView> {
        // With two steps there is only the first to compare with.
        let from = match &self.reference {
            Some(reference) if self.ended > WARM_UP => reference,
            _ => match self.snapshots.first() {
                Some(first) if first.ended < self.ended => first,
                _ => return Vec::new(),
            },
        };
        let before = by_slot(from, ledger);
        let sampled =
            self.snapshots.iter().filter(|snapshot| snapshot.ended > from.ended && snapshot.ended < self.ended);
        let between: Vec<_> = sampled.map(|snapshot| (snapshot.ended, by_slot(snapshot, ledger))).collect();

        let mut views = Vec::new();
        for (slot, line) in ledger.lines.iter().enumerate() {
            let (from_bytes, to_bytes) = (before[slot], ledger.line_at_step(slot as u32));
            if to_bytes <= from_bytes {
                continue;
            }
            let samples = between.iter().map(|(ended, lines)| (*ended, lines[slot]));
            let samples = [(from.ended, from_bytes)].into_iter().chain(samples).chain([(self.ended, to_bytes)]);
            views.push(GrowthView {
                line: symbols.line(line.id).map(Arc::<Line>::clone),
                from_step: from.ended,
                to_step: self.ended,
                from_bytes,
                to_bytes,
                bytes_per_step: slope(samples),
            });
        }
        views.sort_by(|a, b| (b.to_bytes - b.from_bytes, &a.line).cmp(&(a.to_bytes - a.from_bytes, &b.line)));
        views
    }
}

/// A snapshot as one figure per line slot, with slots that moved counted where they are now.
fn by_slot(snapshot: &Snapshot, ledger: &Ledger) -> Vec<u64> {
    let mut bytes = vec![0_u64; ledger.lines.len()];
    for (slot, held) in &snapshot.lines {
        let slot = ledger.current_line(*slot) as usize;
        if let Some(bytes) = bytes.get_mut(slot) {
            *bytes = bytes.saturating_add(*held);
        }
    }
    bytes
}

/// The slope of the line through the samples, by least squares.
fn slope(samples: impl Iterator<Item = (u64, u64)>) -> f64 {
    let samples: Vec<(f64, f64)> = samples.map(|(x, y)| (x as f64, y as f64)).collect();
    let count = samples.len() as f64;
    let (mean_x, mean_y) =
        (samples.iter().map(|s| s.0).sum::<f64>() / count, samples.iter().map(|s| s.1).sum::<f64>() / count);
    let covariance: f64 = samples.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = samples.iter().map(|(x, _)| (x - mean_x) * (x - mean_x)).sum();
    if variance > 0.0 { covariance / variance } else { 0.0 }
}
