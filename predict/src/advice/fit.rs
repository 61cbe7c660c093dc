//! Modules whose activations a program computes again in backward so that it fits a card.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use memlab_trace::Category;
use rustc_hash::{FxHashMap, FxHashSet};

use super::block_lifetimes::BlockLifetimes;
use super::modules::{Module, Modules};
use super::names;
use super::rules::checkpoint::{DEPTHS, PeakPass, checkpointing};
use super::times::Times;
use crate::plan::Recording;

/// A module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitModule {
    /// Class of its outermost module.
    pub root: String,
    /// Qualified name in the outermost module.
    pub name: String,
}

/// The cheapest modules to recompute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recomputation {
    /// The modules, in order.
    pub modules: Vec<FitModule>,
    /// Their names in prose, such as `blocks.3 … blocks.6`.
    pub place: String,
    /// Code that checkpoints them.
    pub code: String,
    /// Number of modules that could be recomputed.
    pub candidates: usize,
    /// Peak of allocated bytes with them.
    pub allocated_bytes: u64,
    /// Additional GPU time of a step in nanoseconds; `None`: the recording has no GPU times.
    pub cost_ns: Option<u64>,
}

/// Returns the names of modules in prose, with the class of their outermost module if there are several.
fn place(chosen: &[Module], class: impl Fn(u32) -> String) -> String {
    let of_a_root: Vec<String> = chosen
        .chunk_by(|one, next| one.root == next.root)
        .map(|modules| (names::grouped(modules), modules[0].root))
        .map(|(grouped, root)| format!("{grouped} of {}", class(root)))
        .collect();
    match &*of_a_root {
        [_] => names::grouped(chosen),
        of_a_root => of_a_root.join(", "),
    }
}

/// Returns the most bytes of activations that were live at once.
pub fn activation_bytes(recording: &Recording) -> u64 {
    let is_activation = |id: u32| recording.allocations[id as usize].category == Category::Activation;
    BlockLifetimes::new(recording).peak_live_bytes(is_activation)
}

/// GPU times of the modules' forwards in another recording, by the class of their outermost module and their name.
#[derive(Clone, Debug, Default)]
pub struct MeasuredCosts(FxHashMap<(String, String), u64>);

impl MeasuredCosts {
    /// Returns the times of a recording; none if it has no GPU times.
    pub fn of(recording: &Recording) -> MeasuredCosts {
        let (lifetimes, times) = (BlockLifetimes::new(recording), Times::of(recording));
        let mut costs = FxHashMap::default();
        for depth in DEPTHS {
            let modules = Modules::of(&lifetimes, depth);
            let forwards = times.forwards(&modules, depth).unwrap_or_default();
            for (module, time) in modules.list.iter().zip(forwards) {
                costs.insert((class(recording, module.root), module.name()), time);
            }
        }
        MeasuredCosts(costs)
    }

    /// Returns the times of these modules, if all are known.
    fn forwards(&self, recording: &Recording, modules: &Modules) -> Option<Vec<u64>> {
        let time = |module: &Module| self.0.get(&(class(recording, module.root), module.name())).copied();
        modules.list.iter().map(time).collect()
    }
}

fn class(recording: &Recording, root: u32) -> String {
    recording.model.layer_class(root).map_or_else(String::new, |class| class.to_string())
}

/// Selects modules to recompute so that at most `target` bytes are allocated: the cheapest selection, or the one with the
/// lowest peak if none is low enough.
///
/// `excluded`: names of modules that cannot be recomputed. `measured`: times that replace those of the recording. Returns `None` if no module would lower the peak.
pub fn recomputation(
    recording: &Recording,
    target: u64,
    excluded: &BTreeSet<String>,
    measured: &MeasuredCosts,
) -> Option<Recomputation> {
    let lifetimes = BlockLifetimes::new(recording);
    let times = Times::of(recording);
    let before = lifetimes.peak();
    let of_depth = |depth: usize| {
        let mut modules = Modules::of(&lifetimes, depth);
        let names: Vec<String> = modules.list.iter().map(Module::name).collect();
        modules.windows.retain(|window| !excluded.contains(&names[window.module]));
        let forwards = measured.forwards(recording, &modules).or_else(|| times.forwards(&modules, depth));
        let subject = PeakPass::at(&lifetimes, &modules, forwards.as_deref(), before)?;
        let outcome = subject.reaching(target).filter(|outcome| outcome.peak < before.bytes)?;
        let candidates: FxHashSet<usize> = modules.windows.iter().map(|window| window.module).collect();
        let chosen: Vec<Module> = outcome.modules.iter().map(|index| modules.list[*index].clone()).collect();
        let root = |id: u32| class(recording, id);
        let of_a_root = chosen.chunk_by(|one, next| one.root == next.root);
        let code = of_a_root.map(|modules| checkpointing(&root(modules[0].root), "before training", "", modules));
        Some(Recomputation {
            modules: chosen.iter().map(|module| FitModule { root: root(module.root), name: module.name() }).collect(),
            code: code.collect::<Vec<_>>().join("\n"),
            place: place(&chosen, root),
            candidates: candidates.len(),
            allocated_bytes: outcome.peak,
            cost_ns: forwards.is_some().then_some(outcome.choice.cost),
        })
    };
    // Of equal ones, the outer lists: fewer, larger modules.
    DEPTHS.into_iter().filter_map(of_depth).min_by_key(|found| {
        let is_enough = found.allocated_bytes <= target;
        (Reverse(is_enough), if is_enough { found.cost_ns.unwrap_or(0) } else { found.allocated_bytes })
    })
}
