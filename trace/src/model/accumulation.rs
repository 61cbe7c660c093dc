//! Memory that piles up: over the optimizer steps, and over forward passes that no backward follows.
//!
//! The former is seen at the ends of steps ([`super::steps::Growth`]). The latter, as in an evaluation that keeps its
//! results, may be over before the next step ends, so that what lines hold is noted whenever a thread enters forward, from
//! one backward to the next; what counts is what had come together at the peak.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use super::Model;
use super::code_origin::{CodeOrigin, Scope};
use super::device::DeviceState;
use super::kind::Kind;
use super::ledger::Ledger;
use super::line_book::{LineBook, Moved};
use super::steps::{Snapshot, is_steady};
use super::symbols::Symbols;
use super::views::{Category, Line};
use crate::record::Phase;

/// The most passes of which is kept what lines held.
const SAMPLES: usize = 32;

/// With fewer passes nothing can be said.
const LEAST: usize = 5;

/// Memory that piled up on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccumulationView {
    /// Over what.
    pub span: AccumulationSpan,
    /// By whole stack, the most first.
    pub stacks: Vec<StackAccumulation>,
}

/// Over what memory piled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccumulationSpan {
    /// From the end of one optimizer step to the end of another; both as steps ended by then.
    Steps {
        /// The earlier.
        from: u64,
        /// The later.
        to: u64,
    },
    /// Forward passes before the peak, without a backward between them that would have used what they made.
    Passes,
}

/// What one stack has piled up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackAccumulation {
    /// The stack.
    pub stack: u32,
    /// The line it belongs to; `None`: no Python frame of the user's.
    pub line: Option<Arc<Line>>,
    /// How much.
    pub bytes: u64,
    /// What most of it is.
    pub category: Category,
    /// Whether operations there make autograd nodes: what they need for backward is kept with their results.
    pub makes_graph: bool,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The stack that ends with it.
    pub stack: u32,
    /// Where it is.
    pub line: Arc<Line>,
    /// Whether it is the user's code.
    pub is_users: bool,
}

/// What lines held when forward passes began, from one backward to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Passes {
    count: u64,
    stride: u64,
    /// With the events of the trace until then.
    samples: Vec<(u64, Snapshot)>,
    /// The peak that these passes led to: its event. 0: none yet.
    peak: u64,
    /// What lines held when the backward began that came next, and after it.
    before_backward: Option<Snapshot>,
    after_backward: Option<Snapshot>,
}

impl Passes {
    fn began(&self) -> u64 {
        self.samples.first().map_or(u64::MAX, |(event, _)| *event)
    }

    /// The samples until an event.
    fn until(&self, event: u64) -> impl Iterator<Item = &Snapshot> {
        self.samples.iter().filter(move |(at, _)| *at <= event).map(|(_, snapshot)| snapshot)
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

/// The passes since the last backward, and those that led to the peak.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Accumulation {
    pub(crate) now: Passes,
    pub(crate) to_peak: Passes,
}

impl Accumulation {
    /// A thread enters forward, after `events`; `peak` is the event of the device's peak.
    pub(crate) fn begin_pass(&mut self, ledger: &Ledger, events: u64, peak: u64) {
        self.backward_is_over(ledger);
        let passes = &mut self.now;
        passes.count = passes.count.saturating_add(1);
        passes.stride = passes.stride.max(1);
        if !passes.count.is_multiple_of(passes.stride) {
            return;
        }
        passes.samples.push((events, Snapshot::of(ledger.book(Scope::Users), passes.count)));
        if passes.samples.len() > SAMPLES {
            // What led to a peak that is past is thinned out no further.
            if peak >= passes.began() && self.to_peak.peak != peak {
                self.to_peak = Passes { peak, ..passes.clone() };
            }
            let passes = &mut self.now;
            passes.stride = passes.stride.saturating_mul(2);
            let stride = passes.stride;
            passes.samples.retain(|(_, snapshot)| snapshot.ended.is_multiple_of(stride));
        }
    }

    /// Backward begins: it may use what the passes have made.
    pub(crate) fn begin_backward(&mut self, ledger: &Ledger, peak: u64) {
        let passes = std::mem::take(&mut self.now);
        let led_to_peak = peak >= passes.began();
        if led_to_peak && (self.to_peak.peak != peak || passes.until(peak).count() >= LEAST) {
            self.to_peak = Passes { peak, ..passes };
        }
        if led_to_peak && self.to_peak.before_backward.is_none() && self.to_peak.samples.len() >= LEAST {
            self.to_peak.before_backward = Some(Snapshot::of(ledger.book(Scope::Users), 0));
        }
    }

    /// What backward has used is gone.
    pub(crate) fn backward_is_over(&mut self, ledger: &Ledger) {
        if self.to_peak.before_backward.is_some() && self.to_peak.after_backward.is_none() {
            self.to_peak.after_backward = Some(Snapshot::of(ledger.book(Scope::Users), 0));
        }
    }

    /// Some of what the user's lines held is counted at other lines from now on.
    pub(crate) fn moved(&mut self, ledger: &Ledger, moves: &[Moved]) {
        if moves.is_empty() {
            return;
        }
        for snapshot in self.now.snapshots_mut().chain(self.to_peak.snapshots_mut()) {
            *snapshot = snapshot.with_current_lines(ledger.book(Scope::Users));
            snapshot.moved(moves);
        }
    }

    /// For a keyframe.
    pub(crate) fn with_current_lines(&self, ledger: &Ledger) -> Self {
        let book = ledger.book(Scope::Users);
        Self { now: self.now.with_current_lines(book), to_peak: self.to_peak.with_current_lines(book) }
    }

    /// The slots of the user's lines that piled up until the peak and were not used by the backward after it.
    fn lines(&self, ledger: &Ledger, peak: u64) -> Vec<u32> {
        let book = ledger.book(Scope::Users);
        let passes = if peak >= self.now.began() { &self.now } else { &self.to_peak };
        let passes =
            if passes.until(peak).count() < LEAST && self.to_peak.peak == peak { &self.to_peak } else { passes };
        let samples: Vec<Vec<u64>> = passes.until(peak).map(|snapshot| snapshot.by_slot(book)).collect();
        if samples.len() < LEAST {
            return Vec::new();
        }
        let before = passes.before_backward.as_ref().map(|snapshot| snapshot.by_slot(book));
        let after = passes.after_backward.as_ref().map(|snapshot| snapshot.by_slot(book));
        let was_used = |slot: usize, held: u64| match (&before, &after) {
            (Some(before), Some(after)) => before[slot] >= held / 2 && after[slot] < before[slot] / 2,
            _ => false,
        };
        let piles_up = |slot: &usize| {
            let held: Vec<u64> = samples.iter().map(|lines| lines[*slot]).collect();
            is_steady(&held) && !was_used(*slot, held.last().copied().unwrap_or(0))
        };
        (0..book.lines.len()).filter(piles_up).map(|slot| slot as u32).collect()
    }
}

impl Model {
    /// What piles up on a device: over the steps, and over the passes before the peak.
    pub fn accumulations(&self, device: i32) -> Vec<AccumulationView> {
        let Some(state) = self.state(device) else { return Vec::new() };
        [over_steps(state, &self.symbols), over_passes(state, &self.symbols)].into_iter().flatten().collect()
    }

    /// Whether PyTorch's allocator has expandable segments on a device.
    pub fn has_expandable_segments(&self, device: i32) -> bool {
        self.state(device).is_some_and(|state| state.driver.has_expandable_segments())
    }

    /// The frames of a stack, innermost first, with the stacks that end there.
    pub fn callers(&self, stack: u32) -> Vec<Caller> {
        let caller = |(stack, frame): (u32, &super::symbols::Frame)| Caller {
            stack,
            line: frame.line.clone(),
            is_users: frame.origin == CodeOrigin::User,
        };
        self.symbols.climb_stacks(stack).map(caller).collect()
    }

    /// Whether backward ever came to what a stack, or one it called, has made on a device.
    pub fn reached_by_backward(&self, device: i32, stack: u32) -> bool {
        let Some(state) = self.state(device) else { return false };
        // Each stack is climbed to where another one has been before.
        let mut known = HashSet::new();
        let cells = state.ledger.cells.iter().filter(|cell| cell.key.phase == Phase::Backward);
        cells.map(|cell| cell.key.stack).any(|below| {
            let mut new = self.symbols.climb_stacks(below).map(|(at, _)| at).take_while(|at| known.insert(*at));
            new.any(|at| at == stack)
        })
    }
}

/// What stacks held more at a step late in the run than after warm-up, on lines that grow steadily.
fn over_steps(state: &DeviceState, symbols: &Symbols) -> Option<AccumulationView> {
    let growth = &state.growth;
    let steady: HashSet<u32> = growth.steady_lines(&state.ledger).into_iter().collect();
    let (from, to) = growth.compared()?;
    let piled = growth.by_cell();
    let stacks = by_stack(state, symbols, &steady, |cell| piled.get(&cell).copied().unwrap_or((0, 0)));
    (!stacks.is_empty()).then_some(AccumulationView { span: AccumulationSpan::Steps { from, to }, stacks })
}

/// What stacks held at the peak, on lines that piled up before it.
fn over_passes(state: &DeviceState, symbols: &Symbols) -> Option<AccumulationView> {
    let steady: HashSet<u32> = state.accumulation.lines(&state.ledger, state.totals.peak.event).into_iter().collect();
    if steady.is_empty() {
        return None;
    }
    // A block stays counted where it was made, whatever it turns out to be.
    let mut made: HashMap<(u32, u32), u64> = HashMap::new();
    for cell in &state.ledger.cells {
        let times = made.entry((cell.key.stack, cell.key.layer)).or_default();
        *times = times.saturating_add(cell.allocations);
    }
    let stays = |kind: Kind| {
        matches!(kind.category(), Category::Activation | Category::Input | Category::Temporary | Category::Other)
    };
    let stacks = by_stack(state, symbols, &steady, |index| {
        let cell = &state.ledger.cells[index as usize];
        // What was made once for each pass, rather than by passes that have only begun.
        let times = made.get(&(cell.key.stack, cell.key.layer)).copied().unwrap_or(0);
        if stays(cell.key.kind) && times >= LEAST as u64 - 1 { (0, state.ledger.at_peak(cell)) } else { (0, 0) }
    });
    (!stacks.is_empty()).then_some(AccumulationView { span: AccumulationSpan::Passes, stacks })
}

/// What cells held before and after, summed up by stack, where it has become more.
fn by_stack(
    state: &DeviceState,
    symbols: &Symbols,
    lines: &HashSet<u32>,
    held: impl Fn(u32) -> (u64, u64),
) -> Vec<StackAccumulation> {
    struct Sum {
        before: u64,
        after: u64,
        /// The cell that holds most, and how much.
        most: (u64, u32),
        makes_graph: bool,
    }
    let book = state.ledger.book(Scope::Users);
    let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
    for (index, cell) in (0..).zip(&state.ledger.cells) {
        if !lines.contains(&book.line_of(cell)) {
            continue;
        }
        let (before, after) = held(index);
        let sum =
            sums.entry(cell.key.stack).or_insert(Sum { before: 0, after: 0, most: (0, index), makes_graph: false });
        sum.before = sum.before.saturating_add(before);
        sum.after = sum.after.saturating_add(after);
        sum.makes_graph |= cell.makes_graph;
        if after > sum.most.0 {
            sum.most = (after, index);
        }
    }
    let piled = |(stack, sum): (u32, Sum)| {
        let cell = &state.ledger.cells[sum.most.1 as usize];
        StackAccumulation {
            stack,
            line: symbols.line(book.lines[book.line_of(cell) as usize].id).cloned(),
            bytes: sum.after.saturating_sub(sum.before),
            category: cell.key.kind.category(),
            makes_graph: sum.makes_graph,
        }
    };
    let mut stacks: Vec<StackAccumulation> = sums.into_iter().map(piled).filter(|stack| stack.bytes > 0).collect();
    stacks.sort_by_key(|stack| (std::cmp::Reverse(stack.bytes), stack.stack));
    stacks
}
