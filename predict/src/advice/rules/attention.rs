//! Weights that `nn.MultiheadAttention` computes because its calls ask for them, by default.

use memlab_units::format::size;
use rustc_hash::FxHashSet;

use crate::advice::block_lifetimes::{BlockLifetimes, Change};
use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::names::of_line;
use crate::advice::report::{Advice, Figure, Kind};

pub(crate) fn advise(lifetimes: &BlockLifetimes<'_>, candidates: &mut Candidates) {
    let recording = lifetimes.recording;
    let stack = |id: u32| recording.allocations[id as usize].stack;
    let blocks = || 0..lifetimes.spans.len() as u32;
    let weights: Vec<u32> = blocks().filter(|id| recording.model.makes_attention_weights(stack(*id))).collect();
    let Some(first) = weights.first() else { return };
    let most = lifetimes.peak_live_bytes(|id| weights.binary_search(&id).is_ok());
    // Scores before the softmax, and gradients, are as large, and are gone too.
    let sizes: FxHashSet<u64> = weights.iter().map(|id| lifetimes.size(*id)).collect();
    let is_gone = |id: &u32| sizes.contains(&lifetimes.size(*id)) && recording.model.is_of_attention(stack(*id));
    let change = Change { moved: blocks().filter(is_gone).map(|id| (id, Vec::new())).collect(), ..Change::default() };
    let (before, after) = (lifetimes.peak().bytes, lifetimes.peak_with(&change).bytes);
    let place = recording.model.line_of(stack(*first)).map_or("a library".to_owned(), |line| of_line(recording, &line));
    let advice = Advice {
        kind: Kind::AttentionWeights,
        how: format!(
            "from functools import partial; from torch.nn import MultiheadAttention\n\
             def without_weights(model):  # call it before training, or pass need_weights=False at {place}\n    \
                 for module in model.modules():\n        \
                     if isinstance(module, MultiheadAttention):\n            \
                         module.forward = partial(module.forward, need_weights=False)"
        ),
        place,
        saved_bytes: before.saturating_sub(after),
        figure: Figure::Allocated,
        bytes_after: after,
        cost: Cost::UNKNOWN,
        because: format!(
            "nn.MultiheadAttention returns its weights unless need_weights=False, and keeps up to {} of them. Leave them \
             out if the program does not read them.",
            size(most)
        ),
    };
    candidates.add(advice, Some(change));
}
