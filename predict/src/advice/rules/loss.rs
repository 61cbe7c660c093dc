//! Computes logits over a large vocabulary and their cross-entropy in pieces, with only one piece in memory at a time.

use crate::plan::{Allocation, Event};
use memlab_trace::record::Phase;
use memlab_trace::{BlockLayer, Category, Scope};
use memlab_units::format::size;
use rustc_hash::FxHashMap;

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Span};
use crate::advice::candidates::Candidates;
use crate::advice::names::of_line;
use crate::advice::report::{Advice, Figure, Kind};
use crate::advice::times::Times;

/// Number of pieces of the loss.
const LOSS_PIECES: u64 = 8;

/// Losses below 1/N of the peak are ignored.
const MIN_PEAK_DIVISOR: u64 = 20;

/// Dropping the last word of each row makes logits smaller by less than 1/N.
const LOGITS_TOLERANCE_DIVISOR: u64 = 20;

/// Maximum number of allocations between logits and their loss.
const MAX_LOGITS_DISTANCE: u32 = 64;

pub(crate) fn advise(lifetimes: &BlockLifetimes<'_>, times: &Times, candidates: &mut Candidates) {
    let recording = lifetimes.recording;
    let before = lifetimes.peak().bytes;
    let mut of_loss: FxHashMap<u32, bool> = FxHashMap::default();
    let mut is_of_loss = |stack: u32| {
        *of_loss.entry(stack).or_insert_with(|| {
            let frames = recording.model.frames(stack);
            frames.iter().any(|frame| &*frame.function == "cross_entropy" && frame.file.ends_with("/nn/functional.py"))
        })
    };
    let mut change = Change::default();
    let mut losses = Vec::new();
    for (id, allocation) in (0..).zip(&recording.allocations) {
        if allocation.size < before / MIN_PEAK_DIVISOR || !is_of_loss(allocation.stack) {
            continue;
        }
        let is_backward = allocation.flags.phase() == Phase::Backward;
        if !is_backward && allocation.category != Category::Activation {
            continue;
        }
        change.resized.push((id, allocation.size / LOSS_PIECES));
        if !is_backward {
            let made = logits_of(lifetimes, id);
            losses.extend(made.last().map(|logits| (id, *logits)));
            change.resized.extend(made.into_iter().map(|logits| (logits, lifetimes.size(logits) / LOSS_PIECES)));
        }
    }
    change.resized.sort_unstable();
    change.resized.dedup();
    let Some(&(kept, logits)) = losses.last() else { return };
    let head = recording.layer(&Allocation { owner: 0, ..recording.allocations[logits as usize] });
    let begins: Vec<usize> = losses.iter().map(|(kept, _)| lifetimes.spans[*kept as usize].from).collect();
    add_pieces_of_gradient(lifetimes, &head, &begins, &mut change);
    let after = lifetimes.peak_with(&change).bytes;
    // The line to change is the program's, even if a library computes the loss.
    let line = recording.model.line_in(recording.allocations[kept as usize].stack, Scope::Users);
    let name = head.name.as_deref().unwrap_or("head").to_owned();
    // Recomputes the logits and loss of each piece.
    let of_losses = recording.model.gpu_nanoseconds(recording.device, |stack, backward| !backward && is_of_loss(stack));
    let again = times.forward_of_a_step(&head).map(|of_head| of_head + times.of_a_step(of_losses));
    let at = line.map_or(String::new(), |line| format!("{}, ", of_line(recording, &line)));
    let advice = Advice {
        kind: Kind::ChunkedLoss,
        place: format!("{at}logits of {name}"),
        saved_bytes: before.saturating_sub(after),
        figure: Figure::Allocated,
        bytes_after: after,
        cost: times.cost(again),
        how: format!(
            "import torch.nn.functional as F\n\
             from torch.utils.checkpoint import checkpoint\n\
             def loss_in_pieces(head, hidden, targets):  # head: the module {name}; hidden: its input, a row for each target\n    \
                 piece = lambda hidden, targets: F.cross_entropy(head(hidden), targets, reduction=\"sum\")\n    \
                 pieces = zip(hidden.chunk({LOSS_PIECES}), targets.chunk({LOSS_PIECES}))\n    \
                 return sum(checkpoint(piece, *each, use_reentrant=False) for each in pieces) / len(targets)"
        ),
        because: format!(
            "The logits take {}, and their cross-entropy keeps {} for backward, which allocates as much again. With \
             {LOSS_PIECES} pieces, one piece is in memory at a time.",
            size(lifetimes.size(logits)),
            size(lifetimes.size(kept))
        ),
    };
    candidates.add(advice, Some(change));
}

/// Returns the logits from which a loss made a block, and their copies in between, latest first.
///
/// They are about as large as the block, or half as large in 16-bit types. Blocks can be larger than the request. The
/// search ends at the layer that made the logits.
fn logits_of(lifetimes: &BlockLifetimes<'_>, kept: u32) -> Vec<u32> {
    let recording = lifetimes.recording;
    let (size, begins) = (lifetimes.size(kept), lifetimes.spans[kept as usize].from);
    let sizes = size / 2 - size / LOGITS_TOLERANCE_DIVISOR..=size * 2;
    let mut found = Vec::new();
    for id in (kept.saturating_sub(MAX_LOGITS_DISTANCE)..kept).rev() {
        if sizes.contains(&lifetimes.size(id)) && lifetimes.is_live(id, begins) {
            found.push(id);
            let layer = recording.layer(&Allocation { owner: 0, ..recording.allocations[id as usize] });
            if layer.name.is_some_and(|name| !name.is_empty()) {
                return found;
            }
        }
    }
    Vec::new()
}

/// Adds the gradients of the pieces.
///
/// Each piece makes a gradient of the head's weight, which is added to the sum of the earlier ones. That sum lives from
/// the first piece on, which follows the start of the losses.
fn add_pieces_of_gradient(lifetimes: &BlockLifetimes<'_>, head: &BlockLayer, begins: &[usize], change: &mut Change) {
    let recording = lifetimes.recording;
    for (at, event) in recording.events.iter().enumerate() {
        let Event::Allocate(id) = *event else { continue };
        let allocation = &recording.allocations[id as usize];
        let is_gradient = allocation.category == Category::Gradient && allocation.flags.phase() == Phase::Backward;
        let begin = begins.partition_point(|begin| *begin < at).checked_sub(1).map(|index| begins[index]);
        let Some(from) = begin.filter(|_| is_gradient) else { continue };
        if recording.layer(&Allocation { owner: 0, ..*allocation }) == *head {
            change.moved.push((id, vec![Span { from: from + 1, to: lifetimes.spans[id as usize].to }]));
            change.needed.extend([(at + 1, allocation.size), (at + 2, allocation.size)]);
        }
    }
}
