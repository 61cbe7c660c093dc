//! The search for the cheapest changes with which a program fits.

use std::collections::BTreeSet;

use memlab_base::error::bad_input;
use memlab_base::output;
use memlab_predict::advice::{MeasuredCosts, Recomputation, activation_bytes, advise, recomputation};
use memlab_predict::plan::Recording;
use memlab_trace::record::Phase;
use memlab_units::format::size;

use super::changes::{ACTIVATIONS, Changes, GRADIENTS, LOSS, Offloaded, STATE, WEIGHTS, WORKSPACES};
use super::fitted::{Attempt, Chosen, Fitted, variables};
use super::paged::{PagedModule, change_budgets};
use super::trial::{CardNeeds, Environment, Outcome, Rehearsal, Trial, Tried, step_ns};
use crate::allocator_settings::AllocatorSettings;

/// Number of selections of modules that are tried with the same other changes.
const MAX_ATTEMPTS: usize = 5;

/// The part of the target that may stay unused when weights are paged, as a divisor.
const PAGED_TOLERANCE: u64 = 32;

/// The least part of the activations that may stay on the GPU, as a divisor.
const LEAST_ACTIVATIONS: u64 = 16;

/// Shares of the activations that compiled graphs keep, in percent. A smaller one may need more memory.
const SHARES: [u32; 5] = [70, 50, 35, 20, 10];

/// Share of the target that stays free, in percent: the model of the allocator is that inaccurate.
const MARGIN_PERCENT: u64 = 1;

/// The search for changes.
pub(super) struct Fitting<'a> {
    pub trial: Trial<'a>,
    pub program: String,
    /// Most memory on the card.
    pub target: u64,
    pub settings: AllocatorSettings,
    /// Modules and other changes that are left out.
    pub excluded: BTreeSet<String>,
    pub allows_rounding: bool,
    pub measured: MeasuredCosts,
    pub tried: Vec<Attempt>,
}

impl Fitting<'_> {
    /// `recorded`: the unchanged program, if it need not be recorded.
    pub fn choose(mut self, recorded: Option<Recording>) -> anyhow::Result<Fitted> {
        let target = self.target;
        let is_wanted = |change: &str| !self.excluded.contains(change);
        let mut changes = Changes {
            early_gradients: is_wanted(GRADIENTS),
            loss_in_rows: is_wanted(LOSS),
            host_state_bytes: 0,
            recomputed: None,
            offloaded: None,
            compiled_percent: None,
            small_workspaces: false,
            modules_moved: Vec::new(),
        };
        let (may_move_state, may_page, may_offload) = (is_wanted(STATE), is_wanted(WEIGHTS), is_wanted(ACTIVATIONS));
        let (recording, changed) = match recorded {
            Some(recording) => (recording, None),
            None => {
                // Most programs need the first changes. They run beside the unchanged program to save time.
                let unchanged = self.trial.start(Environment::new())?;
                let changed = self.start(&changes)?;
                (unchanged.recording()?, Some(changed))
            }
        };
        let peaks = recording.model.peaks(recording.device);
        let taken = peaks.used_bytes;
        if taken <= target {
            return Ok(Fitted { program: self.program, taken, chosen: None });
        }
        // The context, and memory that PyTorch's allocator does not manage.
        let rest = taken.saturating_sub(peaks.reserved_bytes);
        let Some(budget) = target.checked_sub(rest) else {
            return Err(bad_input(format!(
                "{} does not fit in {}: its context and libraries alone take {}",
                self.program,
                size(target),
                size(rest)
            )));
        };
        let is_training = recording.model.steps_ended() > 0;
        changes.early_gradients &= is_training;
        if let Some(base) = self.attempt(&mut changes, changed)? {
            if !is_training && may_page {
                self.page(&mut changes, &base)?;
            }
            self.select_modules(&mut changes, &base, budget)?;
            let before = changes.clone();
            if !self.has_fitted() {
                self.change_most(&mut changes, &base, may_move_state)?;
            }
            if !self.has_fitted() && is_training && may_offload {
                self.offload_activations(&mut changes, &base)?;
            }
            if !self.has_fitted() && self.allows_rounding && base.is_compiled {
                changes = before;
                if self.shrink_graphs(&mut changes, &base)? && !self.has_fitted() {
                    self.change_most(&mut changes, &base, may_move_state)?;
                }
            }
            if !self.has_fitted() && self.allows_rounding {
                self.shrink_workspaces()?;
            }
        }
        // The model of the allocator is inaccurate: a run that needs at most this fits.
        let tight = target - target / 100 * MARGIN_PERCENT;
        let cheapest = |fits: &dyn Fn(&CardNeeds) -> bool| {
            let fitting = self.tried.iter().enumerate().filter(|(_, attempt)| fits(&attempt.needs));
            Some(fitting.min_by_key(|(_, attempt)| attempt.cost())?.0)
        };
        let chosen = cheapest(&|needs| needs.at_ease <= target).or_else(|| cheapest(&|needs| needs.least <= tight));
        let Some(chosen) = chosen else {
            return Err(self.hopeless(&recording, tight, budget));
        };
        let (attempt, unchanged_ns) = (self.tried.swap_remove(chosen), step_ns(&recording));
        let chosen = Chosen { attempt, target, budget, unchanged_ns, settings: self.settings };
        Ok(Fitted { program: self.program, taken, chosen: Some(chosen) })
    }

    /// Tries selections of modules to recompute beside the other changes, until they fit closely.
    ///
    /// `base`: the program with the other changes alone.
    fn select_modules(&mut self, changes: &mut Changes, base: &Outcome, budget: u64) -> anyhow::Result<()> {
        let recording = &base.recording;
        let (mut needs, mut predicted) = (base.needs, recording.model.peaks(recording.device).allocated_bytes);
        // Bounds of the peak to aim at: the largest that fitted, and the smallest that did not.
        let (mut fitting, mut too_large) = (0, i128::from(predicted));
        for _ in 0..MAX_ATTEMPTS {
            let slack = i128::from(self.target) - i128::from(needs.at_ease);
            if slack >= 0 && slack < i128::from(of_a_module(changes, recording)) {
                return Ok(());
            }
            let aim = i128::from(predicted) + slack;
            // The prediction may be off by different amounts for different selections.
            let is_inside = changes.recomputed.is_none() || (fitting < aim && aim < too_large);
            let aim = if is_inside { aim } else { i128::midpoint(fitting, too_large) };
            let found = recomputation(recording, u64::try_from(aim).unwrap_or(0), &self.excluded, &self.measured);
            let Some(found) = found.filter(|found| found.allocated_bytes <= budget && !self.is_known(found)) else {
                return Ok(());
            };
            let of_modules = found.allocated_bytes;
            changes.recomputed = Some(found);
            if let Some(outcome) = self.attempt(changes, None)? {
                (needs, predicted) = (outcome.needs, of_modules);
                match needs.at_ease <= self.target {
                    true => fitting = fitting.max(aim),
                    false => too_large = too_large.min(aim),
                }
            }
        }
        Ok(())
    }

    /// Recomputes all modules, and moves as much of the optimizer's state as is still necessary.
    ///
    /// `base`: the program without both.
    fn change_most(&mut self, changes: &mut Changes, base: &Outcome, may_move_state: bool) -> anyhow::Result<()> {
        let mut last = None;
        for _ in 0..MAX_ATTEMPTS {
            changes.recomputed = recomputation(&base.recording, 0, &self.excluded, &self.measured);
            let Some(outcome) = self.attempt(changes, None)? else { continue };
            let missing = outcome.needs.at_ease.saturating_sub(self.target);
            if missing == 0 || !may_move_state || last == Some(outcome.host_state_bytes) {
                return Ok(()); // It fits, or there is no more state.
            }
            last = Some(outcome.host_state_bytes);
            changes.host_state_bytes = outcome.host_state_bytes + missing + missing / 16;
        }
        Ok(())
    }

    /// Keeps activations within a budget that is small enough: instead of recomputed modules, and then beside them.
    ///
    /// `base`: the program with all its activations.
    fn offload_activations(&mut self, changes: &mut Changes, base: &Outcome) -> anyhow::Result<()> {
        let of_bytes = activation_bytes(&base.recording);
        let least_bytes = of_bytes / LEAST_ACTIVATIONS;
        let most = std::mem::take(&mut changes.recomputed);
        let (mut budget_bytes, mut needs) = (of_bytes, base.needs);
        let mut has_effect = true;
        for recomputed in [None, most] {
            changes.recomputed = recomputed;
            for _ in 0..MAX_ATTEMPTS {
                let missing = needs.at_ease.saturating_sub(self.target);
                if missing == 0 {
                    return Ok(());
                }
                let is_again = budget_bytes == least_bytes;
                if is_again && changes.recomputed.is_none() {
                    break;
                }
                // Several outermost modules have a budget each: a large one may be more than each of them needs.
                let less = if has_effect { missing + missing / 8 } else { budget_bytes / 2 };
                budget_bytes = budget_bytes.saturating_sub(less).max(least_bytes);
                changes.offloaded = Some(Offloaded { budget_bytes, of_bytes });
                let Some(outcome) = self.attempt(changes, None)? else { return Ok(()) };
                has_effect = outcome.needs.at_ease + missing / 4 <= needs.at_ease;
                needs = outcome.needs;
                if is_again {
                    break;
                }
                if !has_effect && base.is_compiled {
                    return Ok(()); // A compiled backward gets all of them at once.
                }
            }
        }
        Ok(())
    }

    /// Makes compiled graphs keep fewer activations. Returns true if that lowers what the program needs.
    ///
    /// `base`: the program whose graphs keep all of them.
    fn shrink_graphs(&mut self, changes: &mut Changes, base: &Outcome) -> anyhow::Result<bool> {
        let enough = base.needs.at_ease - base.needs.at_ease / 100 * MARGIN_PERCENT;
        let mut least: Option<(u64, u32)> = None;
        for percent in SHARES {
            changes.compiled_percent = Some(percent);
            let Some(outcome) = self.attempt(changes, None)? else { continue };
            let needed = outcome.needs.at_ease;
            if needed < least.map_or(enough, |(least, _)| least) {
                least = Some((needed, percent));
            }
            if needed <= self.target {
                break;
            }
        }
        changes.compiled_percent = least.map(|(_, percent)| percent);
        Ok(least.is_some())
    }

    /// Adds small workspaces to the changes that need the least memory.
    fn shrink_workspaces(&mut self) -> anyhow::Result<()> {
        let best = self.tried.iter().min_by_key(|attempt| attempt.needs.at_ease);
        if let Some(mut changes) = best.map(|attempt| attempt.changes.clone())
            && std::env::var_os(WORKSPACES.0).is_none()
        {
            changes.small_workspaces = true;
            self.attempt(&mut changes, None)?;
        }
        Ok(())
    }

    /// Returns true if changes that were tried fit.
    fn has_fitted(&self) -> bool {
        self.tried.iter().any(|attempt| attempt.needs.at_ease <= self.target)
    }

    /// Pages as much of the weights as is necessary, for a program that trains nothing.
    ///
    /// `base`: the program with all its weights on the GPU.
    fn page(&mut self, changes: &mut Changes, base: &Outcome) -> anyhow::Result<()> {
        let mut needs = base.needs;
        changes.modules_moved.clone_from(&base.moved.modules);
        let (target, tolerance) = (i128::from(self.target), i128::from(self.target / PAGED_TOLERANCE));
        for _ in 0..MAX_ATTEMPTS {
            let missing = i128::from(needs.at_ease) - target;
            if (-tolerance..=0).contains(&missing) {
                return Ok(());
            }
            // A paged module also needs memory that is not part of its budget.
            if !change_budgets(&mut changes.modules_moved, missing + tolerance / 2) {
                return Ok(());
            }
            let Some(outcome) = self.attempt(changes, None)? else { return Ok(()) };
            if let Some(why) = outcome.moved.refused.first() {
                let (program, target) = (&self.program, size(self.target));
                return Err(bad_input(format!(
                    "{program} does not fit in {target}, and its weights cannot be paged: {why}. It was not started"
                )));
            }
            needs = outcome.needs;
        }
        Ok(())
    }

    /// Returns true if this selection was tried.
    fn is_known(&self, found: &Recomputation) -> bool {
        let tried = self.tried.iter().filter_map(|attempt| attempt.changes.recomputed.as_ref());
        tried.into_iter().any(|known| known.modules == found.modules)
    }

    fn start(&self, changes: &Changes) -> anyhow::Result<Rehearsal> {
        self.trial.start(variables(changes, &changes.rehearsed(), None, &self.settings))
    }

    /// Runs the changed program. Takes back other changes that it does not bear, or that have no effect. Returns `None` if
    /// modules were refused.
    fn attempt(&mut self, changes: &mut Changes, running: Option<Rehearsal>) -> anyhow::Result<Option<Outcome>> {
        let mut running = running;
        loop {
            let started = running.take().map_or_else(|| self.start(changes), Ok)?;
            match started.finish(&self.settings.value)? {
                Tried::Ran(outcome) => {
                    changes.loss_in_rows &= outcome.has_loss;
                    changes.host_state_bytes = changes.host_state_bytes.min(outcome.host_state_bytes);
                    let Outcome { needs, step_ns, .. } = *outcome;
                    self.tried.push(Attempt { changes: changes.clone(), needs, step_ns });
                    return Ok(Some(*outcome));
                }
                Tried::Refused(names) => {
                    output::note(format_args!("activations of {} cannot be recomputed", names.join(", ")));
                    self.excluded.extend(names);
                    return Ok(None);
                }
                Tried::KeepsActivations(why) => {
                    output::note(format_args!("activations cannot leave the GPU: {why}"));
                    return Ok(None);
                }
                Tried::ReadsGradients => changes.early_gradients = false,
                Tried::ChangesLogits => changes.loss_in_rows = false,
                Tried::Failed(error) => match changes.paged().next() {
                    Some(PagedModule { class, .. }) => {
                        let text = error.to_string();
                        let why = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
                        let (program, target) = (&self.program, size(self.target));
                        return Err(bad_input(format!(
                            "{program} does not fit in {target}, and fails if the weights of {class} are paged: {why}. It was \
                             not started"
                        )));
                    }
                    None => return Err(error),
                },
            }
        }
    }

    /// The error for a program that fits with no changes: what was tried, by how much it misses, and the batch that would
    /// fit.
    fn hopeless(&self, recording: &Recording, target: u64, budget: u64) -> anyhow::Error {
        let most = self.tried.iter().min_by_key(|attempt| attempt.needs.least);
        let missing = most.map_or_else(String::new, |Attempt { changes, needs, .. }| {
            format!(": with {}, it misses by {}", changes.described(), size(needs.least.saturating_sub(target)))
        });
        let is_training = recording.model.steps_ended() > 0;
        let is_paged = self.tried.iter().any(|attempt| attempt.changes.paged().next().is_some());
        let has_backward = recording.allocations.iter().any(|one| one.flags.phase() == Phase::Backward);
        let unpaged = match is_training || is_paged || self.excluded.contains(WEIGHTS) {
            true => "",
            false if has_backward => {
                ". It computes gradients, but calls no `step` of a PyTorch optimizer: memlab changes trainings that do"
            }
            false => ". Its weights are not paged: no large module moves to the GPU by `to`, `cuda` or `device_map`",
        };
        let batch = advise(recording, Some(budget), &[]).batch.filter(|batch| batch.percent < 100);
        let batch = batch.map_or_else(String::new, |batch| {
            format!(". A batch {}.{:02} times as large should fit", batch.percent / 100, batch.percent % 100)
        });
        let rounding = if is_training && !self.allows_rounding {
            ". With `--fit-allow rounding`, changes that alter the last bits of results are tried, too"
        } else {
            ""
        };
        bad_input(format!(
            "{} does not fit in {}{missing}{unpaged}{batch}{rounding}. It was not started",
            self.program,
            size(self.target)
        ))
    }
}

/// Returns about how much memory one recomputed module saves; all memory without such modules.
fn of_a_module(changes: &Changes, unchanged: &Recording) -> u64 {
    let before = unchanged.model.peaks(unchanged.device).allocated_bytes;
    changes
        .recomputed
        .as_ref()
        .map_or(u64::MAX, |found| before.saturating_sub(found.allocated_bytes) / (found.modules.len() as u64).max(1))
}
