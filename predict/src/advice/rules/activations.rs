//! Offloads activations that autograd keeps for backward to the host (`memlab.offload_activations`).

use memlab_trace::record::Phase;
use memlab_trace::{Category, Framework};
use memlab_units::format::size;

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Span};
use crate::advice::cache;
use crate::advice::candidates::Candidates;
use crate::advice::names;
use crate::advice::offload::{Offloaded, offloaded};
use crate::advice::report::{Advice, Figure, Kind};
use crate::advice::times::Times;
use crate::plan::Event;

/// Smaller blocks stay on the GPU.
const MIN_OFFLOADED_BYTES: u64 = 1 << 20;

/// Smallest budget, as a multiple of the largest block.
const MIN_BUDGET_BLOCKS: u64 = 3;

/// Bytes by which PyTorch's allocator makes a large block larger than requested: it does not split off a smaller rest.
const MAX_UNSPLIT_BYTES: u64 = 1 << 20;

/// Number of budgets tried between the smallest and all kept bytes.
const TRIED_BUDGETS: u64 = 32;

/// A budget whose copies the bus hides is advised if it saves at least 1/N.
const MIN_SAVING_DIVISOR: u64 = 10;

/// Budgets are multiples of this.
const BUDGET_UNIT: u64 = 1 << 20;

pub(crate) fn advise(lifetimes: &BlockLifetimes<'_>, times: &Times, target: Option<u64>, candidates: &mut Candidates) {
    let kept = KeptActivations::of(lifetimes);
    if kept.most == 0 {
        return;
    }
    let least = (kept.largest * MIN_BUDGET_BLOCKS).next_multiple_of(BUDGET_UNIT);
    if kept.most <= least {
        let [most, least] = [kept.most, least].map(size);
        let because = format!("they hold {most} at most, and {least} of them must stay: three times the largest");
        candidates.reject(Kind::OffloadActivations, "tensors saved for backward", because);
        return;
    }
    let room = kept.most - least;
    let budgets = (0..TRIED_BUDGETS).map(|part| (least + room * part / TRIED_BUDGETS) / BUDGET_UNIT * BUDGET_UNIT);
    let mut outcomes: Vec<Outcome> = budgets.map(|budget| kept.simulate(budget, times)).collect();
    let peak = lifetimes.peak().bytes;
    let chosen = match target {
        Some(target) => outcomes.iter().rposition(|outcome| outcome.peak <= target),
        None => outcomes
            .iter()
            .position(|outcome| outcome.waits_ns == Some(0))
            .filter(|index| peak.saturating_sub(outcomes[*index].peak) >= peak / MIN_SAVING_DIVISOR),
    };
    // If the bus hides almost nothing, the smallest budget shows the possible saving.
    let outcome = outcomes.swap_remove(chosen.unwrap_or(0));
    candidates.add(kept.advice(&outcome, times), Some(outcome.change));
}

/// Result of a run with a budget.
struct Outcome {
    budget: u64,
    change: Change,
    peak: u64,
    /// Bytes copied to the host per step, and bytes copied back.
    leaving: u64,
    returning: u64,
    /// Time that the GPU waits for copies.
    waits_ns: Option<u64>,
}

/// Blocks that a forward makes and only its backward frees.
struct KeptActivations<'a> {
    lifetimes: &'a BlockLifetimes<'a>,
    /// By id.
    is_kept: Vec<bool>,
    largest: u64,
    /// Peak bytes of these blocks.
    most: u64,
}

/// Returns the blocks of losses, which stay beside the budget: backward reads them first, and each is larger than all blocks
/// of its forward before it. Of blocks that grow slowly, only the last is one.
fn of_losses(lifetimes: &BlockLifetimes<'_>, is_kept: &[bool]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut pass = Vec::new();
    let mut live = 0;
    for event in &lifetimes.recording.events {
        match *event {
            Event::Allocate(id) if is_kept[id as usize] => {
                live += 1;
                pass.push(id);
            }
            Event::Free(id) | Event::FreeRequested(id) if is_kept[id as usize] => {
                live -= 1;
                if live == 0 {
                    found.extend(last_and_largest(lifetimes, &pass));
                    pass.clear();
                }
            }
            _ => {}
        }
    }
    found
}

fn last_and_largest(lifetimes: &BlockLifetimes<'_>, pass: &[u32]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut most = u64::MAX;
    for (index, id) in pass.iter().enumerate().rev() {
        let size = lifetimes.size(*id);
        let before = pass[..index].iter().map(|before| lifetimes.size(*before)).max();
        if size > most || before.is_none_or(|before| size <= before) {
            break;
        }
        found.push(*id as usize);
        most = size / 2 + MAX_UNSPLIT_BYTES;
    }
    found
}

impl<'a> KeptActivations<'a> {
    fn of(lifetimes: &'a BlockLifetimes<'a>) -> KeptActivations<'a> {
        let recording = lifetimes.recording;
        let begins: Vec<usize> = lifetimes.allocated_in(Phase::Backward).collect();
        let is_kept = |(span, allocation): (&Span, &crate::plan::Allocation)| {
            let first = begins.get(begins.partition_point(|begin| *begin < span.from));
            let end = recording.steps.get(recording.steps.partition_point(|step| *step <= span.from));
            // Keys and values that a forward keeps are also kept for backward, unless they need no gradient.
            matches!(allocation.category, Category::Activation | Category::KvCache)
                && allocation.size >= MIN_OFFLOADED_BYTES
                && matches!(allocation.flags.phase(), Phase::Forward | Phase::Other)
                && first.is_some_and(|begin| *begin < span.to)
                && end.is_some_and(|end| span.to <= *end)
        };
        let mut is_kept: Vec<bool> = lifetimes.spans.iter().zip(&recording.allocations).map(is_kept).collect();
        for id in of_losses(lifetimes, &is_kept) {
            is_kept[id] = false;
        }
        let sizes =
            recording.allocations.iter().zip(&is_kept).filter_map(|(allocation, kept)| kept.then_some(allocation.size));
        let largest = sizes.max().unwrap_or(0);
        let most = lifetimes.peak_live_bytes(|id| is_kept[id as usize]);
        KeptActivations { lifetimes, is_kept, largest, most }
    }

    fn simulate(&self, budget: u64, times: &Times) -> Outcome {
        let Offloaded { change, leaving, returning } = offloaded(self.lifetimes, &self.is_kept, budget, self.largest);
        let steps = self.lifetimes.recording.steps.len().max(1) as u64;
        let (leaving, returning) = (leaving / steps, returning / steps);
        Outcome {
            budget,
            peak: self.lifetimes.peak_with(&change).bytes,
            change,
            leaving,
            returning,
            waits_ns: times.waiting_for(leaving, returning),
        }
    }

    fn advice(&self, outcome: &Outcome, times: &Times) -> Advice {
        let bus = match (times.link_capacity(), outcome.waits_ns) {
            (Some(capacity), Some(waits)) => format!(
                " The bus carries {} during forward and {} during backward{}",
                size(capacity.leaving),
                size(capacity.returning),
                match waits {
                    0 => ".",
                    _ =>
                        "; the step waits for the rest. Without recompute=False, tensors that are cheaper to recompute \
                          than to copy are recomputed instead.",
                }
            ),
            _ => String::new(),
        };
        Advice {
            kind: Kind::OffloadActivations,
            place: "tensors saved for backward".to_owned(),
            saved_bytes: self.lifetimes.peak().bytes.saturating_sub(outcome.peak),
            figure: Figure::Allocated,
            bytes_after: outcome.peak,
            cost: times.cost(outcome.waits_ns),
            how: self.how(outcome.budget / BUDGET_UNIT),
            because: format!(
                "Autograd saves up to {} for backward; with this budget, up to {} of it on the GPU. Each step copies {} \
                 to the host, and copies back the {} that are no longer on the GPU when backward needs them.{bus}",
                size(self.most),
                size(outcome.budget),
                size(outcome.leaving),
                size(outcome.returning)
            ),
        }
    }

    /// Code that offloads within a budget, where the framework computes the loss.
    fn how(&self, budget_mib: u64) -> String {
        let kept = (0..).zip(&self.is_kept).filter(|(_, is_kept)| **is_kept).map(|(id, _)| id);
        let first = kept.clone().next();
        let offload = format!("memlab.offload_activations(budget=\"{budget_mib}MiB\", recompute=False)");
        let cache = cache::switched_off(self.lifetimes, first);
        let decorated = match names::framework(self.lifetimes, kept) {
            // The Trainer switches the cache off.
            Some(Framework::Transformers) => {
                return format!(
                    "import memlab\nfrom transformers import Trainer\n\
                     class OffloadingTrainer(Trainer):  # in place of Trainer\n    \
                         @{offload}\n    \
                         def compute_loss(self, *inputs, **options):\n        \
                             return super().compute_loss(*inputs, **options)"
                );
            }
            Some(Framework::Lightning) => "training_step of the LightningModule",
            Some(Framework::Accelerate) | None => "the function that computes the loss",
        };
        let prepare = if cache.is_empty() {
            String::new()
        } else {
            format!("\ndef prepare(model):  # call it with the model before training\n    {cache}")
        };
        format!("import memlab\n# @offloaded decorates {decorated}\noffloaded = {offload}{prepare}")
    }
}
