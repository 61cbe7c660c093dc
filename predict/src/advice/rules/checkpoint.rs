//! Recomputes the activations of modules in backward (`torch.utils.checkpoint`).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memlab_trace::Framework;
use memlab_units::format::size;
use rustc_hash::FxHashSet;

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Peak};
use crate::advice::cache;
use crate::advice::candidates::Candidates;
use crate::advice::choice::{Choice, Pass, PassModule};
use crate::advice::modules::{Module, Modules, Window};
use crate::advice::names::{self, grouped, list_of_names};
use crate::advice::report::{Advice, Figure, Kind, is_about_as_much};
use crate::advice::times::Times;

/// Nesting depths tried for lists in lists: the outer and the inner.
pub(crate) const DEPTHS: [usize; 2] = [1, 2];

/// Number of peaks tried between the lowest and the recorded one if no target is given.
const TARGET_PEAKS: u64 = 32;

/// Selections count as equally good if they save at least this percentage of the best one's saving per cost.
const NEAR_BEST_PERCENT: u128 = 95;

/// Maximum number of times that a target is lowered because passes other than the one at the peak exceed it.
const MAX_ATTEMPTS: usize = 4;

/// A selection, replayed on the recording.
pub(crate) struct Outcome {
    pub choice: Choice,
    pub modules: Vec<usize>,
    pub peak: u64,
}

/// Code that checkpoints modules of an outermost module of class `root`. `at`: when to call it. `cache`: a line before.
pub(crate) fn checkpointing(root: &str, at: &str, cache: &str, chosen: &[Module]) -> String {
    format!(
        "from functools import partial; from torch.utils.checkpoint import checkpoint\n\
         def checkpoint_layers(model):  # call it with your {root}, {at}\n\
         {cache}    for name in {}:\n        module = model.get_submodule(name)\n        \
         module.forward = partial(checkpoint, module.forward, use_reentrant=False)",
        list_of_names(chosen),
    )
}

pub(crate) fn advise(lifetimes: &BlockLifetimes<'_>, times: &Times, target: Option<u64>, candidates: &mut Candidates) {
    let peak = lifetimes.peak();
    let mut best: Option<(Advice, Change)> = None;
    let mut has_modules = false;
    for depth in DEPTHS {
        let modules = Modules::of(lifetimes, depth);
        has_modules |= !modules.list.is_empty();
        let forwards = times.forwards(&modules, depth);
        let Some(subject) = PeakPass::at(lifetimes, &modules, forwards.as_deref(), peak) else { continue };
        let found = match target {
            _ if subject.is_switched_by_trainer() => Some(subject.simulate(subject.all_of_them())),
            Some(target) => subject.reaching(target),
            None => subject.best_for_its_cost(),
        };
        let Some(outcome) = found.filter(|outcome| outcome.peak < peak.bytes) else { continue };
        let advice = subject.advice(&outcome, times, target);
        if best.as_ref().is_none_or(|(best, _)| is_better(&advice, best, target)) {
            best = Some((advice, modules.checkpointed(lifetimes, &outcome.modules)));
        }
    }
    match best {
        Some((advice, change)) => candidates.add(advice, Some(change)),
        None if has_modules => {
            candidates.reject(Kind::Checkpoint, "modules", "no module holds recomputable activations at the peak")
        }
        None => {}
    }
}

fn is_better(advice: &Advice, than: &Advice, target: Option<u64>) -> bool {
    let reaches = |advice: &Advice| target.is_some_and(|target| advice.bytes_after <= target);
    match (reaches(advice), reaches(than)) {
        (true, true) => advice.cost.rank() < than.cost.rank(),
        (false, false) => {
            let (least, most) = (advice.saved_bytes.min(than.saved_bytes), advice.saved_bytes.max(than.saved_bytes));
            let by_cost = than.cost.rank().cmp(&advice.cost.rank());
            let by_saving = advice.saved_bytes.cmp(&than.saved_bytes);
            if is_about_as_much(least, most) { by_cost.then(by_saving).is_gt() } else { by_saving.is_gt() }
        }
        (reaches, _) => reaches,
    }
}

/// The pass around the peak, and its possible selections.
pub(crate) struct PeakPass<'a> {
    lifetimes: &'a BlockLifetimes<'a>,
    modules: &'a Modules,
    windows: Vec<&'a Window>,
    pass: Pass,
    has_times: bool,
    peak: u64,
}

impl<'a> PeakPass<'a> {
    pub fn at(
        lifetimes: &'a BlockLifetimes<'a>,
        modules: &'a Modules,
        times: Option<&[u64]>,
        peak: Peak,
    ) -> Option<PeakPass<'a>> {
        let windows = nested(around(&modules.windows, peak.event));
        let (first, last) = (windows.first()?.first, windows.last()?);
        let levels = lifetimes.levels();
        let most =
            |from: usize, to: usize| levels.get(from..to.max(from)).into_iter().flatten().copied().max().unwrap_or(0);
        let mut pass = Pass { parts: Vec::new(), levels: Vec::new() };
        let next = modules.windows.iter().find(|window| window.first > windows[0].backward);
        // Blocks before and after the pass belong to other passes, or stay.
        let (mut after, mut until) = (first, next.map_or(levels.len(), |next| next.first));
        for window in &windows {
            // While fewer modules are over: before the end of this one's forward, and after its backward has begun.
            pass.levels.push(most(after, window.last + 1).max(most(window.backward, until)));
            let before_backward = levels[window.backward - 1].saturating_sub(window.kept_bytes);
            pass.parts.push(PassModule {
                dropped: window.kept_bytes,
                level_again: before_backward + window.again_bytes,
                cost: times.map_or(1, |times| times[window.module].max(1)),
            });
            (after, until) = (window.last + 1, window.backward);
        }
        pass.levels.push(most(last.last + 1, last.backward));
        Some(PeakPass { lifetimes, modules, windows, pass, has_times: times.is_some(), peak: peak.bytes })
    }

    fn simulate(&self, choice: Choice) -> Outcome {
        let mut modules: Vec<usize> = choice.chosen.iter().map(|index| self.windows[*index].module).collect();
        modules.sort_unstable();
        modules.dedup();
        let peak = self.lifetimes.peak_with(&self.modules.checkpointed(self.lifetimes, &modules)).bytes;
        Outcome { choice, modules, peak }
    }

    /// True if the Trainer of Transformers runs the pass, and can switch checkpointing of all its modules on.
    fn is_switched_by_trainer(&self) -> bool {
        self.framework() == Some(Framework::Transformers)
            && self.windows.iter().all(|window| self.is_checkpointable_by_transformers(window))
    }

    /// True if most of the bytes of a window are of a layer for which Transformers can switch checkpointing on.
    fn is_checkpointable_by_transformers(&self, window: &Window) -> bool {
        let recording = self.lifetimes.recording;
        let is_inside =
            |id: &&u32| recording.model.is_checkpointable_by_transformers(recording.allocations[**id as usize].stack);
        let inside: u64 = window.kept.iter().filter(is_inside).map(|id| self.lifetimes.size(*id)).sum();
        inside > window.kept_bytes / 2
    }

    fn framework(&self) -> Option<Framework> {
        names::framework(self.lifetimes, self.windows.iter().flat_map(|window| window.kept.iter().copied()))
    }

    /// Selects all modules, as the Trainer does.
    fn all_of_them(&self) -> Choice {
        let chosen = (0..self.windows.len()).collect();
        Choice { chosen, cost: self.pass.parts.iter().map(|part| part.cost).sum() }
    }

    /// Code that checkpoints modules.
    fn how(&self, chosen: &[Module], kept_first: Option<u32>) -> String {
        if self.is_switched_by_trainer() {
            return "from transformers import TrainingArguments\n\
                    TrainingArguments(gradient_checkpointing=True)  # add it to yours"
                .to_owned();
        }
        let root = chosen.first().and_then(|module| self.lifetimes.recording.model.layer_class(module.root));
        let root = root.map_or("model".to_owned(), |class| class.to_string());
        let at = match self.framework() {
            Some(Framework::Transformers) => "before the Trainer is made",
            Some(Framework::Lightning) => "in __init__ of the LightningModule",
            Some(Framework::Accelerate) => "before accelerator.prepare",
            None => "before training",
        };
        // The recomputation would append to the cache again.
        let cache = cache::switched_off(self.lifetimes, kept_first);
        let cache = if cache.is_empty() { String::new() } else { format!("    {cache}\n") };
        checkpointing(&root, at, &cache, chosen)
    }

    /// Returns true if a module runs several times before the backward of the pass.
    fn repeats(&self) -> bool {
        let modules: FxHashSet<usize> = self.windows.iter().map(|window| window.module).collect();
        modules.len() < self.windows.len()
    }

    /// Returns selections of whole modules, with all of their forwards in the pass.
    ///
    /// Each has one module more: the next best for its cost.
    fn of_whole_modules(&self) -> Vec<Outcome> {
        let mut by_module: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, window) in self.windows.iter().enumerate() {
            by_module.entry(window.module).or_default().push(index);
        }
        let mut modules: Vec<Vec<usize>> = by_module.into_values().collect();
        let cost = |windows: &[usize]| self.pass.parts[windows[0]].cost;
        modules.sort_by_key(|windows| {
            let dropped: u64 = windows.iter().map(|index| self.pass.parts[*index].dropped).sum();
            Reverse(worth(dropped, cost(windows)))
        });
        let choice = |count: usize| {
            let mut chosen = modules[..count].concat();
            chosen.sort_unstable();
            Choice { chosen, cost: modules[..count].iter().map(|windows| cost(windows)).sum() }
        };
        (1..=modules.len()).map(|count| self.simulate(choice(count))).collect()
    }

    /// Returns the cheapest selection that reaches a target, else the cheapest with the lowest peak.
    pub fn reaching(&self, target: u64) -> Option<Outcome> {
        if self.repeats() {
            let outcomes = self.of_whole_modules();
            let reaching = outcomes.iter().position(|outcome| outcome.peak <= target);
            // Of equal ones, the largest: the recording may end within a pass, whose forwards then count in full.
            let lowest = || (0..outcomes.len()).min_by_key(|index| (outcomes[*index].peak, Reverse(*index)));
            let index = reaching.or_else(lowest);
            return outcomes.into_iter().nth(index?);
        }
        let mut aim = target;
        for _ in 0..MAX_ATTEMPTS {
            let Some(choice) = self.pass.cheapest(aim) else { break };
            let outcome = self.simulate(choice);
            if outcome.peak <= target {
                return Some(outcome);
            }
            aim = aim.saturating_sub(outcome.peak - target);
        }
        self.pass.cheapest(self.pass.lowest()).map(|choice| self.simulate(choice))
    }

    /// Returns the best selection of the Pareto front: of those that save nearly the most per cost, the one that saves
    /// most.
    fn best_for_its_cost(&self) -> Option<Outcome> {
        let front = if self.repeats() { self.of_whole_modules() } else { self.front() };
        let worth = |outcome: &Outcome| worth(self.peak.saturating_sub(outcome.peak), outcome.choice.cost);
        let most = front.iter().map(worth).max()?;
        front
            .into_iter()
            .filter(|outcome| worth(outcome) * 100 >= most * NEAR_BEST_PERCENT)
            .min_by_key(|outcome| outcome.peak)
    }

    /// Returns the Pareto front of selections.
    fn front(&self) -> Vec<Outcome> {
        let lowest = self.pass.lowest();
        let aims = (0..TARGET_PEAKS).map(|aim| lowest + self.peak.saturating_sub(lowest) * aim / TARGET_PEAKS);
        let mut front: Vec<Outcome> = Vec::new();
        for aim in aims {
            let Some(choice) = self.pass.cheapest(aim) else { continue };
            if front.last().is_none_or(|last| last.choice != choice) {
                front.push(self.simulate(choice));
            }
        }
        front
    }

    fn advice(&self, outcome: &Outcome, times: &Times, target: Option<u64>) -> Advice {
        let chosen: Vec<_> = outcome.modules.iter().map(|index| self.modules.list[*index].clone()).collect();
        let kept: u64 = outcome.choice.chosen.iter().map(|index| self.windows[*index].kept_bytes).sum();
        let largest = outcome.choice.chosen.iter().map(|index| self.windows[*index].again_bytes).max().unwrap_or(0);
        let kept_first = self.windows.first().and_then(|window| window.kept.first().copied());
        let steps = self.lifetimes.recording.steps.len().max(1) as u64;
        let passes =
            |module: usize| self.modules.windows.iter().filter(|window| window.module == module).count() as u64;
        let passes_a_step =
            outcome.modules.iter().map(|module| passes(*module).div_ceil(steps)).max().unwrap_or(1).max(1);
        let which = match (target, self.has_times) {
            _ if self.is_switched_by_trainer() => "The Trainer checkpoints all of them",
            (Some(target), _) if outcome.peak > target => "No other choice has a lower peak",
            (Some(_), true) => "Of all choices that reach the target, this one costs the least GPU time",
            (Some(_), false) => {
                "Of all choices that reach the target, this one has the fewest layers (GPU time was not recorded)"
            }
            (None, true) => "Of the choices that save nearly the most memory per GPU time, this one saves most",
            (None, false) => "Of the choices that save nearly the most memory per layer, this one saves most",
        };
        Advice {
            kind: Kind::Checkpoint,
            place: grouped(&chosen),
            saved_bytes: self.peak.saturating_sub(outcome.peak),
            figure: Figure::Allocated,
            bytes_after: outcome.peak,
            cost: times.cost(self.has_times.then_some(outcome.choice.cost * passes_a_step)),
            how: self.how(&chosen, kept_first),
            because: format!(
                "At the peak, autograd keeps {} of these layers for backward. Recomputing one of them needs up to {}. \
                 {which}.",
                size(kept),
                size(largest)
            ),
        }
    }
}

/// Bytes saved per unit of cost.
fn worth(bytes: u64, cost: u64) -> u128 {
    u128::from(bytes) * 1_000_000 / u128::from(cost.max(1))
}

/// Returns the windows of the pass that contains an event.
///
/// A pass ends where a forward begins after another module's backward has begun.
fn around(windows: &[Window], event: usize) -> Vec<&Window> {
    let mut pass: Vec<&Window> = Vec::new();
    for window in windows {
        if pass.iter().any(|earlier| earlier.backward < window.first) {
            if window.first > event {
                break;
            }
            pass.clear();
        }
        pass.push(window);
    }
    pass
}

/// Keeps the windows that are nested in time, each in the one before it.
fn nested(windows: Vec<&Window>) -> Vec<&Window> {
    let mut nested: Vec<&Window> = Vec::new();
    for window in windows {
        if nested.last().is_none_or(|outer| window.backward < outer.backward) {
            nested.push(window);
        }
    }
    nested
}
