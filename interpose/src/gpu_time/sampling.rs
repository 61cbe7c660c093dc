//! Chooses the recorded optimizer steps.
//!
//! With `MEMLAB_TIME_EVERY=8`, one of each eight in a row is recorded.
//!
//! CUPTI takes time for each launch. That delays a step whose GPU waits for its host, but not a step that keeps its GPU
//! busy.

use std::sync::OnceLock;

use crate::recorder::Recorder;
use interpose_base::config::config;

/// One of this many steps in a row is recorded.
///
/// If unset, all are.
static SAMPLING_PERIOD: OnceLock<u64> = OnceLock::new();

/// Reads the sampling period from `MEMLAB_TIME_EVERY`.
pub fn choose(recorder: &Recorder) {
    let Some(text) = config().time_every.as_deref().filter(|text| !text.is_empty()) else { return };
    match text.parse() {
        Ok(every @ 1..) => {
            let _ = SAMPLING_PERIOD.set(every);
        }
        _ => recorder
            .warn(&format!("MEMLAB_TIME_EVERY is {text:?}, not a number of steps: GPU time is recorded in every step")),
    }
}

/// Returns true if all steps are recorded.
pub fn is_complete() -> bool {
    every() == 1
}

/// Returns true if an optimizer step is in the sample.
pub fn includes(step: u64) -> bool {
    is_chosen(step, every())
}

/// Returns true if work between two recorded steps was not recorded.
pub fn has_gap(earlier: u64, later: u64) -> bool {
    !is_complete() && later > earlier.saturating_add(1)
}

fn every() -> u64 {
    SAMPLING_PERIOD.get().copied().unwrap_or(1)
}

/// Chooses the first step, and then one pseudo-random step of each `every`.
///
/// So optimizers that take turns each get their share. The choice is the same on all ranks.
fn is_chosen(step: u64, every: u64) -> bool {
    /// 2⁶⁴ divided by the golden ratio: its multiples are scattered.
    const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
    let (round, place) = (step / every, step % every);
    place == (round.wrapping_mul(GOLDEN_RATIO) >> 32) % every
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_of_each_row_is_recorded_and_the_first_is() {
        for every in [1, 2, 3, 8, 100] {
            // GIVEN rows of steps; THEN each row contains one chosen step, AND the first row its first step
            for row in 0..50 {
                assert_eq!((row * every..(row + 1) * every).filter(|step| is_chosen(*step, every)).count(), 1);
            }
            assert!(is_chosen(0, every));
        }
    }

    #[test]
    fn optimizers_that_take_turns_each_have_their_share() {
        // GIVEN as many optimizers as steps in a row
        for every in [2, 4, 8] {
            let mut steps = vec![0; every as usize];
            for step in (0..every * 400).filter(|step| is_chosen(*step, every)) {
                steps[(step % every) as usize] += 1;
            }
            // THEN each is recorded about as often as the others
            assert!(steps.iter().all(|count| (300 / every..=500 / every).contains(count)), "{every}: {steps:?}");
        }
    }
}
