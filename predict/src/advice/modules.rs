//! Modules of repeated lists (`blocks.3`), other modules with submodules (`middle`), and the memory each of their
//! passes keeps for backward.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::plan::{Allocation, Event};
use memlab_trace::Category;
use memlab_trace::record::Phase;
use rustc_hash::FxHashMap;

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Span};

/// A module of a list, or a single module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Module {
    /// Layer id of the outermost module.
    pub root: u32,
    /// Name of the list within the outermost module; empty if the outermost module is the list.
    ///
    /// For a module outside lists, its own name.
    pub list: String,
    /// Index in the list.
    pub index: Option<u32>,
}

impl Module {
    /// Returns the list module that contains a layer.
    ///
    /// For nested lists, returns the `depth`-th from outside, or the innermost if the nesting is shallower. Without a
    /// list, returns the child of the outermost module.
    pub fn around(root: u32, layer: &str, depth: usize) -> Option<Module> {
        let numbers = layer.split('.').enumerate().filter_map(|(at, part)| Some((at, part.parse::<u32>().ok()?)));
        match numbers.take(depth).last() {
            Some((at, index)) => {
                let list = layer.split('.').take(at).collect::<Vec<_>>().join(".");
                Some(Module { root, list, index: Some(index) })
            }
            None => {
                let outer = layer.split('.').next().filter(|outer| !outer.is_empty())?;
                Some(Module { root, list: outer.to_owned(), index: None })
            }
        }
    }

    pub fn name(&self) -> String {
        match self.index {
            None => self.list.clone(),
            Some(index) if self.list.is_empty() => index.to_string(),
            Some(index) => format!("{}.{index}", self.list),
        }
    }

    /// Returns true if a layer is inside this module, which is in no list.
    fn has(&self, (root, layer): &(u32, Arc<str>)) -> bool {
        *root == self.root && layer.strip_prefix(&*self.list).is_some_and(|rest| rest.starts_with('.'))
    }
}

/// A forward of a module and its backward.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// Index of the module in [`Modules::list`].
    pub module: usize,
    /// Events of its first and last allocation in forward.
    pub first: usize,
    pub last: usize,
    /// Event of its first allocation in backward.
    pub backward: usize,
    /// Blocks that it keeps for backward and that checkpointing drops.
    pub kept: Vec<u32>,
    /// Bytes of these blocks.
    pub kept_bytes: u64,
    /// Possible inputs: blocks allocated earlier in the pass and freed between its forward and its backward.
    pub inputs: Vec<u32>,
    /// Peak bytes of its recomputation.
    pub again_bytes: u64,
}

/// The modules of a recording that can be checkpointed.
pub(crate) struct Modules {
    pub list: Vec<Module>,
    /// All forwards that have a backward, in order.
    pub windows: Vec<Window>,
    /// Number of forwards of each module, with or without a backward.
    pub forwards: Vec<u64>,
}

/// A forward of a module: events of its first and last allocation.
struct Forward {
    module: usize,
    first: usize,
    last: usize,
    /// First allocation of its pass.
    pass: u32,
}

impl Modules {
    pub fn of(lifetimes: &BlockLifetimes<'_>, depth: usize) -> Modules {
        let mut list = Vec::new();
        let of_layer = modules_by_layer(lifetimes, depth, &mut list);
        let mut forwards: Vec<Forward> = Vec::new();
        // By module: first allocations of its backwards.
        let mut backwards: Vec<Vec<usize>> = vec![Vec::new(); list.len()];
        let mut in_backward = None;
        let mut running = false;
        let (mut pass, mut is_over) = (0, false);
        let mut steps = lifetimes.recording.steps.iter().copied().peekable();
        for (at, event) in lifetimes.recording.events.iter().enumerate() {
            if steps.next_if(|step| *step <= at).is_some() {
                (running, is_over) = (false, true);
            }
            let Event::Allocate(id) = *event else { continue };
            let allocation = &lifetimes.recording.allocations[id as usize];
            let module = of_layer.get(&allocation.layer).copied();
            if is_over {
                pass = id;
            }
            is_over = allocation.flags.phase() == Phase::Backward;
            match (allocation.flags.phase(), module) {
                (Phase::Forward, Some(module)) => match forwards.last_mut().filter(|_| running) {
                    Some(forward) if forward.module == module => forward.last = at,
                    _ => {
                        forwards.push(Forward { module, first: at, last: at, pass });
                        running = true;
                    }
                },
                (Phase::Forward, None) => {}
                (Phase::Backward, Some(module)) => {
                    if in_backward.replace(module) != Some(module) {
                        backwards[module].push(at);
                    }
                    running = false;
                }
                _ => running = false,
            }
            if allocation.flags.phase() != Phase::Backward {
                in_backward = None;
            }
        }
        let mut counts = vec![0; list.len()];
        forwards.iter().for_each(|forward| counts[forward.module] += 1);
        let windows = forwards.iter().enumerate().filter_map(|(index, forward)| {
            let backward = backward_of(lifetimes, &forwards[index..], &backwards[forward.module])?;
            Some(window(lifetimes, forward, backward)).filter(|window| window.kept_bytes > 0)
        });
        Modules { windows: windows.collect(), list, forwards: counts }
    }

    /// Returns the change that checkpointing these modules makes.
    pub fn checkpointed(&self, lifetimes: &BlockLifetimes<'_>, modules: &[usize]) -> Change {
        let mut moved: FxHashMap<u32, Vec<Span>> = FxHashMap::default();
        let mut inputs: FxHashMap<u32, usize> = FxHashMap::default();
        let mut needed = Vec::new();
        for window in self.windows.iter().filter(|window| modules.contains(&window.module)) {
            for id in &window.kept {
                let Span { from, to } = lifetimes.spans[*id as usize];
                let spans = vec![Span { from, to: window.last + 1 }, Span { from: window.backward, to }];
                moved.insert(*id, spans);
            }
            needed.push((window.backward, window.again_bytes));
            for id in &window.inputs {
                let until = inputs.entry(*id).or_default();
                *until = window.backward.max(*until);
            }
        }
        // Inputs live until the backward of the last module that received them.
        let given = inputs.into_iter().map(|(id, to)| (id, vec![Span { from: lifetimes.spans[id as usize].from, to }]));
        moved.extend(given);
        Change { moved: moved.into_iter().collect(), needed, ..Change::default() }
    }
}

/// Maps each layer to its module: one of a list of at least two modules, or one that has submodules but no list.
fn modules_by_layer(lifetimes: &BlockLifetimes<'_>, depth: usize, list: &mut Vec<Module>) -> FxHashMap<u32, usize> {
    let recording = lifetimes.recording;
    let mut layers: FxHashMap<u32, (u32, Arc<str>)> = FxHashMap::default();
    for allocation in recording.allocations.iter().filter(|allocation| allocation.flags.phase() == Phase::Forward) {
        let layer = recording.layer(&Allocation { owner: 0, ..*allocation });
        if let Some(name) = layer.name {
            layers.insert(allocation.layer, (layer.root, name));
        }
    }
    let around = |(root, name): &(u32, Arc<str>)| Module::around(*root, name, depth);
    let mut modules: Vec<Module> = layers.values().filter_map(around).collect();
    modules.sort_by(|a, b| (a.root, &a.list, a.index).cmp(&(b.root, &b.list, b.index)));
    modules.dedup();
    let is_wanted = |module: &&Module| match module.index {
        Some(_) => modules.iter().any(|other| {
            (other.root, &other.list) == (module.root, &module.list)
                && other.index.is_some()
                && other.index != module.index
        }),
        None => {
            let mut inside = layers.values().filter(|layer| module.has(layer)).peekable();
            inside.peek().is_some() && inside.all(|layer| around(layer).is_some_and(|around| around.index.is_none()))
        }
    };
    list.extend(modules.iter().filter(is_wanted).cloned());
    let index = |layer: &(u32, Arc<str>)| list.iter().position(|listed| around(layer).as_ref() == Some(listed));
    layers.iter().filter_map(|(id, layer)| Some((*id, index(layer)?))).collect()
}

/// Returns the start of the backward of the first of `forwards`, among all `backwards` of its module.
///
/// Several forwards before one backward are undone in reverse order. The matching backward is the one that frees most
/// of the forward's blocks.
fn backward_of(lifetimes: &BlockLifetimes<'_>, forwards: &[Forward], backwards: &[usize]) -> Option<usize> {
    let (forward, later) = forwards.split_first()?;
    let after = &backwards[backwards.partition_point(|at| *at <= forward.last)..];
    let next = *after.first()?;
    let mut before_it = later.iter().take_while(|other| other.first < next);
    if !before_it.any(|other| other.module == forward.module) {
        return Some(next);
    }
    let ends = kept(lifetimes, forward, next).into_iter().map(|id| lifetimes.spans[id as usize].to);
    let mut ends: Vec<usize> = ends.collect();
    ends.sort_unstable();
    let median = ends.get(ends.len() / 2)?;
    after[..after.partition_point(|at| at <= median)].last().copied()
}

fn allocated(lifetimes: &BlockLifetimes<'_>, forward: &Forward) -> impl DoubleEndedIterator<Item = u32> {
    let events = lifetimes.recording.events[forward.first..=forward.last].iter();
    events.filter_map(|event| match *event {
        Event::Allocate(id) => Some(id),
        _ => None,
    })
}

/// Returns the blocks of a forward that are live at `backward`, without its output.
fn kept(lifetimes: &BlockLifetimes<'_>, forward: &Forward, backward: usize) -> Vec<u32> {
    // The output is the last allocated of the live blocks.
    let output = allocated(lifetimes, forward).rev().find(|id| lifetimes.spans[*id as usize].to > forward.last + 1);
    let is_kept = |id: &u32| {
        let category = lifetimes.recording.allocations[*id as usize].category;
        let is_of_model = matches!(category, Category::Parameter | Category::Buffer | Category::OptimizerState);
        Some(*id) != output && lifetimes.spans[*id as usize].to > backward && !is_of_model
    };
    allocated(lifetimes, forward).filter(is_kept).collect()
}

fn window(lifetimes: &BlockLifetimes<'_>, forward: &Forward, backward: usize) -> Window {
    let Forward { module, first, last, pass } = *forward;
    let kept = kept(lifetimes, forward, backward);
    let kept_bytes = kept.iter().map(|id| lifetimes.size(*id)).sum();
    let again_bytes = again_bytes(lifetimes, first..=last, kept.last().copied());
    let made_before = pass..allocated(lifetimes, forward).next().unwrap_or(0);
    let is_gone = |id: &u32| lifetimes.spans[*id as usize].to < backward;
    let inputs =
        made_before.filter(|id| lifetimes.is_live(*id, first) && is_gone(id) && is_of_graph(lifetimes, *id)).collect();
    Window { module, first, last, backward, kept, kept_bytes, inputs, again_bytes }
}

/// Returns the peak bytes of recomputing a module. PyTorch stops after the operation that makes the last kept block.
fn again_bytes(lifetimes: &BlockLifetimes<'_>, forward: RangeInclusive<usize>, last_kept: Option<u32>) -> u64 {
    let (first, last) = (*forward.start(), *forward.end());
    let recording = lifetimes.recording;
    let stack = |id: u32| recording.allocations[id as usize].stack;
    let made_with_it =
        |event: &&Event| matches!(**event, Event::Allocate(id) if Some(stack(id)) == last_kept.map(stack));
    let made = last_kept.map_or(first, |id| lifetimes.spans[id as usize].from);
    let until = made + recording.events[made + 1..=last.max(made)].iter().take_while(made_with_it).count();
    let (mut level, mut most) = (0_u64, 0);
    for event in &recording.events[first..=until] {
        match *event {
            Event::Allocate(id) => level += lifetimes.size(id),
            Event::Free(id) | Event::FreeRequested(id) if lifetimes.spans[id as usize].from >= first => {
                level -= lifetimes.size(id);
            }
            _ => {}
        }
        most = most.max(level);
    }
    most
}

fn is_of_graph(lifetimes: &BlockLifetimes<'_>, id: u32) -> bool {
    matches!(
        lifetimes.recording.allocations[id as usize].category,
        Category::Activation | Category::Temporary | Category::Input
    )
}
