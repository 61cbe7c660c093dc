//! The first launch of each optimizer step.

use std::sync::atomic::{AtomicU64, Ordering};

/// 1 + the step of the latest launch; 0: none.
static LAUNCHED: AtomicU64 = AtomicU64::new(0);

/// Time of that step's first launch, by [`clock`](interpose_base::clock).
static FIRST: AtomicU64 = AtomicU64::new(0);

/// 1 + the step that ended last, and the time of its end.
static ENDED: AtomicU64 = AtomicU64::new(0);
static ENDED_AT: AtomicU64 = AtomicU64::new(0);

/// Records a launch in a step.
#[inline]
pub fn note(step: u64, time: u64) {
    if LAUNCHED.load(Ordering::Relaxed) != step + 1 && LAUNCHED.swap(step + 1, Ordering::Relaxed) != step + 1 {
        FIRST.store(time, Ordering::Relaxed);
    }
}

/// Records the end of a step, and returns the nanoseconds from the end of the previous step to this step's first launch.
///
/// Returns `None` for the first step, or if no launch was recorded.
pub fn end_step(step: u64, now: u64) -> Option<u64> {
    let has_launched = LAUNCHED.load(Ordering::Relaxed) == step + 1;
    let begun = (ENDED.swap(step + 1, Ordering::Relaxed) == step && step > 0).then(|| ENDED_AT.load(Ordering::Relaxed));
    ENDED_AT.store(now, Ordering::Relaxed);
    begun.filter(|_| has_launched).map(|begun| FIRST.load(Ordering::Relaxed).saturating_sub(begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_waits_until_its_first_launch() {
        // GIVEN two steps of several launches; THEN the second waited from the first's end to its first launch
        note(0, 10);
        assert_eq!(end_step(0, 100), None);
        note(1, 130);
        note(1, 170);
        assert_eq!(end_step(1, 200), Some(30));
        // AND without a recorded launch the wait is unknown
        assert_eq!(end_step(2, 300), None);
        note(3, 350);
        assert_eq!(end_step(3, 400), Some(50));
        // AND after a missing step too
        note(5, 600);
        assert_eq!(end_step(5, 700), None);
    }
}
