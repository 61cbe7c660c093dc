//! Work on a device by launching optimizer step.

use std::collections::{BTreeMap, VecDeque};

use super::views::StepWorkView;
use memlab_format::record::StepWork;

/// Maximum number of entries; beyond that, neighbours are joined.
const MAX_ENTRIES: usize = 1 << 14;

/// Entries by their first step. Each step is in at most one entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepWorks(BTreeMap<u64, StepWorkView>);

impl StepWorks {
    pub(crate) fn add(&mut self, work: &StepWork) {
        self.insert(StepWorkView {
            step: work.step,
            steps: work.steps.max(1),
            calls: work.calls,
            nanoseconds: work.nanoseconds,
            to_device_bytes: work.to_device_bytes,
            to_host_bytes: work.to_host_bytes,
        });
    }

    /// Adds to the entries of the same steps, and merges them into one.
    pub(crate) fn insert(&mut self, mut new: StepWorkView) {
        // The last entry that begins before the end of the new one, as long as the two overlap.
        while let Some((&first, known)) = self.0.range(..=new.last()).next_back()
            && known.last() >= new.step
        {
            new = joined(known, &new);
            self.0.remove(&first);
        }
        self.0.insert(new.step, new);
        if self.0.len() > MAX_ENTRIES {
            let all: Vec<_> = std::mem::take(&mut self.0).into_values().collect();
            let pairs = all.chunks(2).map(|pair| match pair {
                [one, other] => joined(one, other),
                alone => alone[0],
            });
            self.0 = pairs.map(|entry| (entry.step, entry)).collect();
        }
    }

    /// Returns all entries, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &StepWorkView> {
        self.0.values()
    }
}

/// Ended steps whose GPU time has not arrived yet.
///
/// After a keyframe, the steps that waited before it count as arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingSteps {
    steps: VecDeque<u64>,
    /// True once any GPU time has arrived. Old traces have none.
    has_come: bool,
}

impl WaitingSteps {
    /// Adds an ended step whose GPU time is recorded, if any is.
    pub(crate) fn end(&mut self, step: u64) {
        // Bounds the list: without GPU times, no step leaves it.
        if self.steps.len() == MAX_ENTRIES {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// Removes the steps up to `last`, whose GPU time has arrived.
    pub(crate) fn gpu_time_known(&mut self, last: u64) {
        self.has_come = true;
        while self.steps.pop_front_if(|step| *step <= last).is_some() {}
    }

    /// Returns the number of steps without GPU time; `has_exited`: the process has ended, and everything has been written.
    pub(crate) fn count(&self, has_exited: bool) -> u64 {
        if has_exited && !self.has_come { 0 } else { self.steps.len() as u64 }
    }
}

fn joined(one: &StepWorkView, other: &StepWorkView) -> StepWorkView {
    let step = one.step.min(other.step);
    StepWorkView {
        step,
        steps: one.last().max(other.last()).saturating_sub(step).saturating_add(1),
        calls: one.calls.saturating_add(other.calls),
        nanoseconds: one.nanoseconds.saturating_add(other.nanoseconds),
        to_device_bytes: one.to_device_bytes.saturating_add(other.to_device_bytes),
        to_host_bytes: one.to_host_bytes.saturating_add(other.to_host_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(step: u64, steps: u64, calls: u64) -> StepWorkView {
        StepWorkView { step, steps, calls, ..StepWorkView::default() }
    }

    #[test]
    fn entries_of_the_same_steps_are_one() {
        // GIVEN three steps; WHEN more work of one arrives, and work of two together; THEN each step is in one entry
        let mut works = StepWorks::default();
        for new in [entry(0, 1, 1), entry(1, 1, 1), entry(2, 1, 1), entry(1, 1, 5)] {
            works.insert(new);
        }
        assert_eq!(works.entries().copied().collect::<Vec<_>>(), [entry(0, 1, 1), entry(1, 1, 6), entry(2, 1, 1)]);
        works.insert(entry(1, 2, 10));
        assert_eq!(works.entries().copied().collect::<Vec<_>>(), [entry(0, 1, 1), entry(1, 2, 17)]);
        // AND numbers from a broken trace do no harm
        works.insert(entry(u64::MAX, u64::MAX, 1));
        assert_eq!(works.entries().map(|entry| entry.calls).sum::<u64>(), 19);
    }

    #[test]
    fn steps_wait_until_their_time_comes() {
        // GIVEN three steps; WHEN the times of two have arrived, THEN one waits
        let mut waiting = WaitingSteps::default();
        (0..3).for_each(|step| waiting.end(step));
        assert_eq!((waiting.count(false), waiting.count(true)), (3, 0));
        waiting.gpu_time_known(1);
        assert_eq!((waiting.count(false), waiting.count(true)), (1, 1));
        // AND without GPU times their number is bounded
        (3..2 * MAX_ENTRIES as u64).for_each(|step| waiting.end(step));
        assert_eq!(waiting.count(false), MAX_ENTRIES as u64);
    }

    #[test]
    fn their_number_is_bounded() {
        let mut works = StepWorks::default();
        for step in 0..3 * MAX_ENTRIES as u64 {
            works.insert(entry(step, 1, 1));
        }
        assert!(works.entries().count() <= MAX_ENTRIES);
        assert_eq!(works.entries().map(|entry| entry.steps).sum::<u64>(), 3 * MAX_ENTRIES as u64);
        assert_eq!(works.entries().map(|entry| entry.calls).sum::<u64>(), 3 * MAX_ENTRIES as u64);
    }
}
