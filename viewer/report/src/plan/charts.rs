//! Charts for the page of a plan: memory over the batch size, and over the steps.

use memlab_predict::plan::PlannedTimeline;

use super::answer::{Answer, BatchRow, Question, row, search_on};

/// Number of batch sizes on the curve.
const POINTS: u64 = 24;

/// Number of buckets that the steps are divided into.
const TIMELINE_BUCKETS: usize = 600;

/// Charts for the page of a plan.
#[derive(Clone, Debug)]
pub struct PlanCharts {
    /// Batch sizes from 1 to beyond the largest shown; empty if the batch cannot be chosen.
    pub batches: Vec<BatchRow>,
    /// Steps at the batch of the peak.
    pub timeline: PlannedTimeline,
}

impl PlanCharts {
    /// Computes the charts of an answer.
    ///
    /// # Errors
    ///
    /// If the settings are not valid.
    pub fn of(question: &Question, answer: &Answer) -> anyhow::Result<PlanCharts> {
        let Question { program, card, settings, .. } = question;
        let today = search_on(program, card, settings)?;
        let batches = if answer.largest_batch.is_some() { chosen(answer) } else { Vec::new() };
        let (family, in_family) = program.at(answer.peak.batch);
        Ok(PlanCharts {
            batches: batches.into_iter().map(|batch| row(card, &today, Some(batch))).collect(),
            timeline: family.timeline(&family.sizes(in_family), today.settings(), TIMELINE_BUCKETS),
        })
    }
}

/// Batch sizes for the curve: evenly spaced, plus those of the table.
fn chosen(answer: &Answer) -> Vec<u64> {
    let table = answer.batches.iter().filter_map(|row| row.batch);
    let most = table.clone().chain(answer.recorded_batches.iter().copied()).max().unwrap_or(1);
    // A batch far beyond the card would compress the part that fits.
    let largest = answer.largest_batch.unwrap_or(0);
    let end = if largest > 0 { most.min(largest.saturating_mul(2)).max(largest + 1) } else { most };
    let step = end.div_ceil(POINTS).max(1);
    let even = (1..).map(|index| index * step).take_while(|batch| *batch <= end);
    // The crossing of the curve and the card needs both neighbours.
    let others = [1, end, largest.max(1), largest + 1];
    let mut batches: Vec<u64> = even.chain(others).chain(table).filter(|batch| *batch <= end).collect();
    batches.sort_unstable();
    batches.dedup();
    batches
}
