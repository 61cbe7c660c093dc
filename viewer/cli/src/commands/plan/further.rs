//! Recordings beyond the first two.
//!
//! Most programs grow evenly: each request has the same size in the first two recordings, or a proportional one. Two
//! recordings then predict a third, at a large batch. Other programs do not grow evenly, for example where cuDNN chooses its
//! kernels by image size. For those, every shown batch is recorded.

use memlab_predict::plan::{EXTRAPOLATION_LIMIT, Family, Program, Recording};

use crate::recording::{Recorder, Running};
use memlab_base::error::bad_input;
use memlab_report::plan::answer::{PlannedCard, choice, search_on};

/// The most batches recorded because the program does not grow evenly.
const MAX_BATCHES: usize = 8;

/// The most recordings of the largest batch.
///
/// Each recording can show that another batch is the largest.
const MAX_ATTEMPTS: usize = 3;

/// The plan options that decide which batches are recorded.
pub(super) struct BatchChoice<'o> {
    /// The batches to show; empty: a choice.
    pub(super) batches: &'o [u64],
    /// True to record the largest batch at any size.
    pub(super) check: bool,
}

/// Makes the recordings that a program needs after the first two.
///
/// # Errors
///
/// If the program fails.
pub(super) fn record(
    asked: &BatchChoice<'_>,
    card: &PlannedCard,
    settings: &str,
    recorder: &mut Recorder,
    program: &mut Program,
) -> anyhow::Result<()> {
    let Some((low, high)) = program.last().recorded_batches() else { return Ok(()) };
    let largest =
        |program: &Program| Ok::<u64, anyhow::Error>(search_on(program, card, settings)?.largest_batch(card.bytes));
    let BatchChoice { batches: asked, check } = *asked;
    let reach = high.saturating_mul(EXTRAPOLATION_LIMIT);

    let has_irregular_growth = program.has_irregular_growth();
    let fitting = largest(program)?;
    let far = if check { fitting } else { asked.iter().copied().max().unwrap_or(fitting).min(reach) };
    // Batches below the recorded ones most often run other code paths.
    let below = asked.iter().copied().filter(|batch| *batch < low).collect();
    record_singles(recorder, program, below)?;
    // A requested batch between the first two also shows whether the program grows evenly.
    let between = asked.iter().copied().find(|batch| (low + 1..high).contains(batch));
    let is_even = match far {
        far if far > high => record_beyond(recorder, program, far)?,
        _ => between.map_or(Ok(true), |batch| record_between(recorder, program, batch))?,
    };
    if is_even && !has_irregular_growth {
        return Ok(());
    }
    program.grows_unevenly();
    let shown = if asked.is_empty() { choice(low, largest(program)?) } else { asked.to_vec() };
    let recorded = program.recorded_batches();
    let missing = shown.into_iter().filter(|batch| *batch <= reach && !recorded.contains(batch)).take(MAX_BATCHES);
    record_singles(recorder, program, missing.collect())?;
    for _ in 0..MAX_ATTEMPTS {
        let largest = largest(program)?;
        if largest == 0 || largest > reach.max(far) || program.recorded_batches().contains(&largest) {
            break;
        }
        record_singles(recorder, program, vec![largest])?;
    }
    Ok(())
}

/// Records a batch beyond the others, and returns whether they predicted it.
///
/// Returns true if the GPU has no room for it.
fn record_beyond(recorder: &mut Recorder, program: &mut Program, batch: u64) -> anyhow::Result<bool> {
    let Some(recording) = recorded(recorder, batch)? else { return Ok(true) };
    let family = program.last().beyond((batch, recording)).map_err(|error| bad_input(error.to_string()))?;
    let is_even = program.predicts(&family, batch);
    program.add_beyond(family);
    Ok(is_even)
}

/// Records a batch between the first two, and returns whether they predicted it.
fn record_between(recorder: &mut Recorder, program: &mut Program, batch: u64) -> anyhow::Result<bool> {
    let Some(recording) = recorded(recorder, batch)? else { return Ok(true) };
    let family = Family::of_one(recording);
    let is_even = program.predicts(&family, batch);
    program.add_single(batch, family);
    Ok(is_even)
}

/// Records each batch separately, on simulated cards two at a time.
///
/// Leaves out batches that do not fit the GPU.
fn record_singles(recorder: &mut Recorder, program: &mut Program, batches: Vec<u64>) -> anyhow::Result<()> {
    if recorder.simulation.is_none() {
        for batch in batches {
            if let Some(recording) = recorded(recorder, batch)? {
                program.add_single(batch, Family::of_one(recording));
            }
        }
        return Ok(());
    }
    for two in batches.chunks(2) {
        let running = two.iter().map(|batch| recorder.start(Some(*batch))).collect::<anyhow::Result<Vec<Running>>>()?;
        let recordings = running.into_iter().map(Running::finish).collect::<anyhow::Result<Vec<Recording>>>()?;
        for (batch, recording) in std::iter::zip(two, recordings) {
            // The simulated card was too small; the next one is larger.
            let recording = if recording.ran_out_of_memory { recorder.record(Some(*batch))? } else { recording };
            program.add_single(*batch, Family::of_one(recording));
        }
    }
    Ok(())
}

/// Records a batch; `None`: it does not fit the GPU.
fn recorded(recorder: &mut Recorder, batch: u64) -> anyhow::Result<Option<Recording>> {
    if recorder.simulation.is_some() {
        return recorder.record(Some(batch)).map(Some);
    }
    let recording = recorder.start(Some(batch))?.finish()?;
    Ok((!recording.ran_out_of_memory).then_some(recording))
}
