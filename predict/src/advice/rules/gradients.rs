//! Finds gradients kept after an optimizer's step, through the next forward or an evaluation.

use memlab_trace::Category;
use memlab_trace::record::Phase;
use memlab_units::format::size;

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Span};
use crate::advice::candidates::Candidates;
use crate::advice::report::{Advice, Figure, Kind};
use crate::advice::times::Times;

/// Serves the loops of frameworks too, which call `zero_grad` at other moments.
const HOW: &str = "\
from torch.optim.optimizer import register_optimizer_step_post_hook
# Or, in a loop of your own: optimizer.zero_grad(set_to_none=True) after optimizer.step()
register_optimizer_step_post_hook(lambda optimizer, *_: optimizer.zero_grad(set_to_none=True))";

pub(crate) fn advise(lifetimes: &BlockLifetimes<'_>, times: &Times, candidates: &mut Candidates) {
    let recording = lifetimes.recording;
    let forwards: Vec<usize> = lifetimes.allocated_in(Phase::Forward).collect();
    let mut change = Change::default();
    let mut longest_kept = 0;
    for (id, (span, allocation)) in (0..).zip(lifetimes.spans.iter().zip(&recording.allocations)) {
        if allocation.category != Category::Gradient {
            continue;
        }
        let ended = recording.steps.partition_point(|step| *step <= span.from);
        let Some(&step) = recording.steps.get(ended) else { continue };
        let next_forward = forwards.get(forwards.partition_point(|at| *at < step));
        if next_forward.is_none_or(|forward| span.to <= *forward) {
            continue;
        }
        longest_kept += allocation.size;
        change.moved.push((id, spans_without(lifetimes, *span, ended)));
    }
    if change.moved.is_empty() {
        return;
    }
    let (before, after) = (lifetimes.peak().bytes, lifetimes.peak_with(&change).bytes);
    let kept = longest_kept / recording.steps.len().max(1) as u64;
    let advice = Advice {
        kind: Kind::Gradients,
        place: "gradients of parameters".to_owned(),
        saved_bytes: before.saturating_sub(after),
        figure: Figure::Allocated,
        bytes_after: after,
        cost: times.cost(Some(0)),
        how: HOW.to_owned(),
        because: format!(
            "{} of gradients are still allocated when the forward of the next step begins.{}",
            size(kept),
            if before.saturating_sub(after) < kept { " Without them, the peak is at another moment." } else { "" }
        ),
    };
    candidates.add(advice, Some(change));
}

/// Lifetimes of a gradient if each step frees it: from the backward that makes it to the end of that step.
fn spans_without(lifetimes: &BlockLifetimes<'_>, span: Span, first_step: usize) -> Vec<Span> {
    let steps = &lifetimes.recording.steps;
    let mut spans = vec![Span { from: span.from, to: steps[first_step] }];
    // A gradient that is only set to zero serves many steps. If it is freed, each backward makes a new one.
    for pair in steps[first_step..].windows(2).take_while(|pair| pair[1] < span.to) {
        let in_step = |at: &usize| (pair[0]..pair[1]).contains(at);
        if let Some(from) = lifetimes.allocated_in(Phase::Backward).find(in_step) {
            spans.push(Span { from, to: pair[1] });
        }
    }
    spans
}
