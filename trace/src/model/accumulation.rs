//! Accumulations: memory that grows over optimizer steps, or over forward passes that no backward follows, by whole stack.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::category::Category;
use super::device::DeviceState;
use super::kind::Kind;
use super::line::Line;
use super::passes::MIN_PASSES;
use super::scope::Scope;
use super::symbols::Symbols;

/// Memory that accumulated on a device.
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

/// What stacks held more at a step late in the run than after warm-up, on lines that grow steadily.
pub(super) fn over_steps(state: &DeviceState, symbols: &Symbols) -> Option<AccumulationView> {
    let growth = &state.growth;
    let steady: HashSet<u32> = growth.steady_lines(&state.ledger).into_iter().collect();
    let (from, to) = growth.compared()?;
    let piled = growth.by_cell();
    let stacks = by_stack(state, symbols, &steady, |cell| piled.get(&cell).copied().unwrap_or((0, 0)));
    (!stacks.is_empty()).then_some(AccumulationView { span: AccumulationSpan::Steps { from, to }, stacks })
}

/// What stacks held at the peak, on lines that piled up before it.
pub(super) fn over_passes(state: &DeviceState, symbols: &Symbols) -> Option<AccumulationView> {
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
        if stays(cell.key.kind) && times >= MIN_PASSES as u64 - 1 { (0, state.ledger.at_peak(cell)) } else { (0, 0) }
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
