//! Results that the Trainer of Transformers collects on the GPU during an evaluation.

use std::collections::BTreeMap;

use memlab_units::format::size;

use crate::advice::block_lifetimes::{BlockLifetimes, Change};
use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::report::{Advice, Figure, Kind};

/// Batches after which the results move to the host.
const STEPS: u64 = 8;
const PLACE: &str = "results of Trainer.evaluate";

pub(crate) fn advise(lifetimes: &BlockLifetimes<'_>, candidates: &mut Candidates) {
    let recording = lifetimes.recording;
    // By stack: the results so far, joined after each batch.
    let mut joined: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (id, allocation) in (0..).zip(&recording.allocations) {
        if recording.model.collects_logits(allocation.stack) {
            joined.entry(allocation.stack).or_default().push(id);
        }
    }
    if joined.is_empty() {
        return;
    }
    let most = lifetimes.peak_live_bytes(|id| joined.contains_key(&recording.allocations[id as usize].stack));
    let Some(resized) = joined.values().map(|ids| of_few_batches(lifetimes, ids)).collect::<Option<Vec<_>>>() else {
        let because =
            format!("they hold {} at most, of several tensors a batch, whose sizes are not told apart", size(most));
        candidates.reject(Kind::EvaluationResults, PLACE, because);
        return;
    };
    let change = Change { resized: resized.concat(), ..Change::default() };
    let (before, after) = (lifetimes.peak().bytes, lifetimes.peak_with(&change).bytes);
    let advice = Advice {
        kind: Kind::EvaluationResults,
        place: PLACE.to_owned(),
        saved_bytes: before.saturating_sub(after),
        figure: Figure::Allocated,
        bytes_after: after,
        cost: Cost::UNKNOWN,
        how: format!(
            "from transformers import TrainingArguments\n\
             TrainingArguments(eval_accumulation_steps={STEPS})  # add it to yours"
        ),
        because: format!(
            "The evaluation joins the logits of all batches on the GPU, up to {}, twice while a batch is added. With this \
             argument, they move to the host after {STEPS} batches. If the metrics need less than the logits, pass a function \
             that computes it to the Trainer as preprocess_logits_for_metrics.",
            size(most)
        ),
    };
    candidates.add(advice, Some(change));
}

/// Returns the sizes of the joined results if they move to the host in between; `None`: they are of several tensors.
///
/// The first result of an evaluation joins two batches. The later ones are no smaller.
fn of_few_batches(lifetimes: &BlockLifetimes<'_>, ids: &[u32]) -> Option<Vec<(u32, u64)>> {
    let sizes: Vec<u64> = ids.iter().map(|id| lifetimes.size(*id)).collect();
    let first = *sizes.first()?;
    let is_one_tensor = sizes.windows(2).all(|pair| pair[1] >= pair[0] || pair[1] == first);
    let limit = first / 2 * STEPS;
    is_one_tensor.then(|| ids.iter().zip(sizes).map(|(id, size)| (*id, size.min(limit))).collect())
}
