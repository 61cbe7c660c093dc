//! Accumulations: memory that grows over optimizer steps, or over forward passes without a backward, by whole stack.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::category::Category;
use super::classification::Classification;
use super::device::DeviceState;
use super::history_views::GrowthUnit;
use super::line::Line;
use super::passes::MIN_PASSES;
use super::scope::Scope;
use super::snapshots::SteadyLines;
use super::symbols::Symbols;
use super::windows::Window;
use memlab_format::record::TagCategory;

/// Memory that accumulated on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccumulationView {
    /// Steps or passes over which the memory accumulated.
    pub span: AccumulationSpan,
    /// Accumulation by stack, largest first.
    pub stacks: Vec<StackAccumulation>,
}

/// Steps or passes over which memory accumulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccumulationSpan {
    /// From the end of one optimizer step to the end of another. Both are counts of steps ended.
    Steps {
        /// Earlier count.
        from: u64,
        /// Later count.
        to: u64,
    },
    /// From the beginning of one iteration to that of another, in a program without optimizer steps. Both are counts.
    Iterations {
        /// Earlier count.
        from: u64,
        /// Later count.
        to: u64,
    },
    /// From one iteration to another after the last optimizer step, counted from that step.
    AfterSteps {
        /// Earlier count.
        from: u64,
        /// Later count.
        to: u64,
    },
    /// From one step or iteration to another, after which most of the memory was freed.
    Released {
        /// Earlier count of steps or iterations.
        from: u64,
        /// Later count.
        to: u64,
        /// Number of times that memory grew and was freed so.
        times: u64,
    },
    /// Forward passes before the peak, without a backward between them that would have used their results.
    Passes,
}

/// Memory that one stack accumulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackAccumulation {
    /// The stack.
    pub stack: u32,
    /// Line that counts the stack; `None`: the stack has no Python frame.
    pub line: Option<Arc<Line>>,
    /// Growth in bytes.
    pub bytes: u64,
    /// Bytes before it.
    pub before: u64,
    /// Category of most of the bytes.
    pub category: Category,
    /// Number of the stack's curve: stacks with one curve grew together, probably for one cause.
    pub curve: u32,
    /// True if operations of the stack create autograd nodes, which keep their inputs for backward.
    pub makes_graph: bool,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Stack whose innermost frame this is.
    pub stack: u32,
    /// File, line and function of the frame.
    pub line: Arc<Line>,
    /// True for the user's code.
    pub is_users: bool,
}

/// Returns the stacks on steadily growing lines that hold more at a late step or iteration than after warm-up.
pub(super) fn over_steps(state: &DeviceState, symbols: &Symbols) -> Option<AccumulationView> {
    let growth = &state.growth;
    let steady = growth.steady_lines(&state.ledger);
    let (from, to) = growth.compared()?;
    let piled = growth.by_cell();
    let held = |cell: u32| piled.get(&cell).copied().unwrap_or((0, 0));
    let expected = expected_growth(state, &steady, held);
    let stacks = by_stack(state, symbols, &steady, |cell| {
        let category = state.ledger.cells[cell as usize].key.classification.category();
        if expected.contains(&category) { (0, 0) } else { held(cell) }
    });
    let span = match growth.unit {
        GrowthUnit::Steps => AccumulationSpan::Steps { from, to },
        GrowthUnit::Iterations => AccumulationSpan::Iterations { from, to },
    };
    (!stacks.is_empty()).then_some(AccumulationView { span, stacks })
}

/// Returns the categories whose growth follows from the parameters: each parameter has one gradient and one set of state.
///
/// Layers that are unfrozen one by one grow so. If parameters grow too, their gradients and state are part of that growth.
fn expected_growth(state: &DeviceState, lines: &SteadyLines, held: impl Fn(u32) -> (u64, u64)) -> Vec<Category> {
    let book = state.ledger.book(Scope::Users);
    let parameters_grow = (0..).zip(&state.ledger.cells).any(|(index, cell)| {
        let (before, after) = held(index);
        cell.key.classification == Classification::Parameter
            && lines.contains_key(&book.line_of(cell))
            && after > before
    });
    if parameters_grow {
        return Vec::new();
    }
    let kinds = [(TagCategory::Gradient, Category::Gradient), (TagCategory::OptimizerState, Category::OptimizerState)];
    let is_one_set = |(tag, category): &(TagCategory, Category)| {
        state.tags.is_one_set(*tag, state.ledger.by_category[*category as usize])
    };
    kinds.into_iter().filter(is_one_set).map(|(_, category)| category).collect()
}

/// Minimum number of stacks that a kept graph holds. A detached output of a model has one stack.
const MIN_GRAPH_STACKS: usize = 3;

/// Returns the stacks that kept autograd's graph from step to step until a release, as results of an epoch do.
///
/// Results without a graph are wanted: metrics collect them until the end of an epoch. A trace does not record `detach`, but
/// a graph holds the tensors of several operations.
pub(super) fn until_release(state: &DeviceState, symbols: &Symbols) -> Option<AccumulationView> {
    let (from, to, stacks) = of_window(state, symbols, &state.growth.windows.largest)?;
    let in_graph = stacks.iter().filter(|stack| stack.makes_graph && stack.category == Category::Activation);
    let keeps_graph = in_graph.count() >= MIN_GRAPH_STACKS;
    let span = AccumulationSpan::Released { from, to, times: state.growth.windows.times };
    keeps_graph.then_some(AccumulationView { span, stacks })
}

/// Returns the stacks that hold more from iteration to iteration after the last optimizer step.
pub(super) fn after_steps(state: &DeviceState, symbols: &Symbols) -> Option<AccumulationView> {
    let (from, to, stacks) = of_window(state, symbols, &state.growth.windows.after_steps.window)?;
    (!stacks.is_empty()).then_some(AccumulationView { span: AccumulationSpan::AfterSteps { from, to }, stacks })
}

/// Returns the first and the last moment of a window, and the stacks that grew steadily in between.
fn of_window(state: &DeviceState, symbols: &Symbols, window: &Window) -> Option<(u64, u64, Vec<StackAccumulation>)> {
    let steady = window.steady_lines(&state.ledger);
    if steady.is_empty() {
        return None;
    }
    let piled = window.by_cell();
    let stacks = by_stack(state, symbols, &steady, |cell| piled.get(&cell).copied().unwrap_or((0, 0)));
    let (from, to) = window.steps()?;
    Some((from, to, stacks))
}

/// Returns the bytes from earlier passes at the start of the pass with the peak, by stack, on lines that accumulated.
///
/// Temporaries of that pass are not included.
pub(super) fn over_passes(state: &DeviceState, symbols: &Symbols) -> Option<AccumulationView> {
    let peak = state.totals.peak.event;
    let steady = state.accumulation.lines(&state.ledger, peak);
    if steady.is_empty() {
        return None;
    }
    // Allocations keep counting in the cell that a block was created in, even if its category changes.
    let mut made: HashMap<(u32, u32), u64> = HashMap::new();
    for cell in &state.ledger.cells {
        let times = made.entry((cell.key.stack, cell.key.layer)).or_default();
        *times = times.saturating_add(cell.allocations);
    }
    let stays = |classification: Classification| {
        matches!(
            classification.category(),
            Category::Activation | Category::Input | Category::Temporary | Category::Other
        )
    };
    let held = state.accumulation.cells_before(peak).by_cell();
    let stacks = by_stack(state, symbols, &steady, |index| {
        let cell = &state.ledger.cells[index as usize];
        // Only stacks that allocated in every pass, not passes that have just begun.
        let times = made.get(&(cell.key.stack, cell.key.layer)).copied().unwrap_or(0);
        if stays(cell.key.classification) && times >= MIN_PASSES as u64 - 1 {
            (0, held.get(&index).copied().unwrap_or(0))
        } else {
            (0, 0)
        }
    });
    (!stacks.is_empty()).then_some(AccumulationView { span: AccumulationSpan::Passes, stacks })
}

/// Returns the stacks that hold more after than before, from sums over cells.
fn by_stack(
    state: &DeviceState,
    symbols: &Symbols,
    lines: &SteadyLines,
    held: impl Fn(u32) -> (u64, u64),
) -> Vec<StackAccumulation> {
    struct Sum {
        before: u64,
        after: u64,
        /// Bytes and index of the largest cell.
        most: (u64, u32),
        makes_graph: bool,
    }
    let book = state.ledger.book(Scope::Users);
    let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
    for (index, cell) in (0..).zip(&state.ledger.cells) {
        if !lines.contains_key(&book.line_of(cell)) {
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
            before: sum.before,
            category: cell.key.classification.category(),
            curve: lines.get(&book.line_of(cell)).copied().unwrap_or(0),
            makes_graph: sum.makes_graph,
        }
    };
    let mut stacks: Vec<StackAccumulation> = sums.into_iter().map(piled).filter(|stack| stack.bytes > 0).collect();
    stacks.sort_by_key(|stack| (std::cmp::Reverse(stack.bytes), stack.stack));
    stacks
}
