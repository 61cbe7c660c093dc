//! Memory of optimizers: temporaries of their steps, and their state.

use crate::plan::Event;
use memlab_trace::Category;
use memlab_trace::record::Phase;
use memlab_units::format::size;
use rustc_hash::FxHashSet;

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Span};
use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::report::{Advice, Figure, Kind};
use crate::advice::times::Times;

/// PyTorch's multi-tensor update functions of optimizers that also have a fused kernel.
const WITH_FUSED: [&str; 4] =
    ["_multi_tensor_adam", "_multi_tensor_adamw", "_multi_tensor_sgd", "_multi_tensor_adagrad"];

/// Serves the optimizers of frameworks too, which the program has no name for.
const FUSED: &str = "\
from torch.optim.optimizer import register_optimizer_step_pre_hook
# Before training. For an optimizer of your own: pass fused=True where it is made
def fuse(optimizer, *_):
    for group in optimizer.param_groups:
        group.update(foreach=False, fused=True)
register_optimizer_step_pre_hook(fuse)";
/// Code that keeps the state of optimizers on the host between steps.
pub const OFFLOADED_STATE: &str = "\
import torch
from torch.optim import optimizer as hooks
def move(optimizer, to):
    for state in optimizer.state.values():
        for key, value in state.items():
            if torch.is_tensor(value) and value.dim():
                state[key] = value.to(to)
hooks.register_optimizer_step_pre_hook(lambda optimizer, *_: move(optimizer, \"cuda\"))
hooks.register_optimizer_step_post_hook(lambda optimizer, *_: move(optimizer, \"cpu\"))";

/// Advises a fused kernel in place of a step's temporaries.
pub(crate) fn advise_fused(lifetimes: &BlockLifetimes<'_>, candidates: &mut Candidates) {
    let recording = lifetimes.recording;
    let mut change = Change::default();
    for (id, (span, allocation)) in (0..).zip(lifetimes.spans.iter().zip(&recording.allocations)) {
        let step = recording.steps.get(recording.steps.partition_point(|step| *step <= span.from));
        let is_temporary = allocation.flags.phase() == Phase::Optimizer
            && step.is_some_and(|step| span.to <= *step)
            && allocation.category != Category::OptimizerState;
        if is_temporary && has_fused(lifetimes, allocation.stack) {
            change.moved.push((id, Vec::new()));
        }
    }
    if change.moved.is_empty() {
        return;
    }
    let (before, after) = (lifetimes.peak().bytes, lifetimes.peak_with(&change).bytes);
    let taken: FxHashSet<u32> = change.moved.iter().map(|(id, _)| *id).collect();
    let most = lifetimes.peak_live_bytes(|id| taken.contains(&id));
    let advice = Advice {
        kind: Kind::FusedOptimizer,
        place: "optimizer.step()".to_owned(),
        saved_bytes: before.saturating_sub(after),
        figure: Figure::Allocated,
        bytes_after: after,
        cost: Cost::UNKNOWN,
        how: FUSED.to_owned(),
        because: format!("Its temporaries take up to {} in a step.", size(most)),
    };
    candidates.add(advice, Some(change));
}

fn has_fused(lifetimes: &BlockLifetimes<'_>, stack: u32) -> bool {
    let frames = lifetimes.recording.model.frames(stack);
    frames.iter().any(|frame| frame.file.contains("/torch/optim/") && WITH_FUSED.contains(&&*frame.function))
}

/// Advises keeping the state on the host between steps.
pub(crate) fn advise_offload(lifetimes: &BlockLifetimes<'_>, times: &Times, candidates: &mut Candidates) {
    let recording = lifetimes.recording;
    let begins = step_begins(lifetimes);
    let mut change = Change::default();
    let mut bytes = 0;
    for (id, (span, allocation)) in (0..).zip(lifetimes.spans.iter().zip(&recording.allocations)) {
        if allocation.category != Category::OptimizerState {
            continue;
        }
        let first = recording.steps.partition_point(|step| *step <= span.from);
        if recording.steps.get(first).is_none_or(|step| span.to <= *step) {
            continue;
        }
        bytes += allocation.size;
        let mut spans = vec![Span { from: span.from, to: recording.steps[first] }];
        let later = begins[first + 1..].iter().zip(&recording.steps[first + 1..]);
        spans.extend(later.filter(|(_, end)| **end <= span.to).map(|(from, to)| Span { from: *from, to: *to }));
        change.moved.push((id, spans));
    }
    if bytes == 0 {
        return;
    }
    let (before, after) = (lifetimes.peak().bytes, lifetimes.peak_with(&change).bytes);
    let takes = times.pageable_round_trip(bytes);
    let bus = match takes {
        Some(_) => ", at the speed of the run's copies between pageable memory and the GPU.",
        None if times.are_recorded() => {
            ". The run copied too little between pageable memory and the GPU to estimate the time."
        }
        None => ".",
    };
    let advice = Advice {
        kind: Kind::OffloadOptimizerState,
        place: "optimizer.state".to_owned(),
        saved_bytes: before.saturating_sub(after),
        figure: Figure::Allocated,
        bytes_after: after,
        cost: takes.map_or(Cost::UNKNOWN, Cost::known),
        how: OFFLOADED_STATE.to_owned(),
        because: format!(
            "The state takes {}, and only optimizer steps need it. Each step copies it to the host and back{bus}",
            size(bytes)
        ),
    };
    candidates.add(advice, Some(change));
}

/// Returns the start of the optimizer in each step: its first allocation, or the end of the step.
fn step_begins(lifetimes: &BlockLifetimes<'_>) -> Vec<usize> {
    let recording = lifetimes.recording;
    let mut begins = recording.steps.clone();
    for (at, event) in recording.events.iter().enumerate() {
        let Event::Allocate(id) = *event else { continue };
        if recording.allocations[id as usize].flags.phase() == Phase::Optimizer {
            let step = recording.steps.partition_point(|step| *step <= at);
            if let Some(begin) = begins.get_mut(step) {
                *begin = (*begin).min(at);
            }
        }
    }
    begins
        .iter()
        .zip(&recording.steps)
        .map(|(begin, end)| if begin == end { end.saturating_sub(1) } else { *begin })
        .collect()
}
