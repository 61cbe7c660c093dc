//! Figures by optimizer step: work on a device by the step that launched it, and waits of the program.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use super::views::{StepWaitView, StepWorkView};
use memlab_format::record::{StepWait, StepWork};

/// Maximum number of entries; beyond that, neighbours are joined.
const MAX_ENTRIES: usize = 1 << 14;

/// Figures of one or more consecutive steps.
pub(crate) trait OfSteps: Copy {
    fn first(&self) -> u64;
    fn last(&self) -> u64;
    /// Returns the figures of both, which may have steps between them.
    fn joined(self, other: Self) -> Self;
}

/// Entries by their first step. Each step is in at most one entry.
#[derive(Clone, Debug)]
pub(crate) struct BySteps<T>(BTreeMap<u64, T>);

impl<T> Default for BySteps<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: OfSteps> BySteps<T> {
    /// Adds to the entries of the same steps, and merges them into one.
    pub(crate) fn insert(&mut self, mut new: T) {
        // The last entry that begins before the end of the new one, as long as the two overlap.
        while let Some((&first, known)) = self.0.range(..=new.last()).next_back()
            && known.last() >= new.first()
        {
            new = known.joined(new);
            self.0.remove(&first);
        }
        self.0.insert(new.first(), new);
        if self.0.len() > MAX_ENTRIES {
            let all: Vec<_> = std::mem::take(&mut self.0).into_values().collect();
            let pairs = all.chunks(2).map(|pair| match pair {
                [one, other] => one.joined(*other),
                alone => alone[0],
            });
            self.0 = pairs.map(|entry| (entry.first(), entry)).collect();
        }
    }

    /// Returns all entries, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    /// Returns the joined entries of these steps, and of the steps that their entries include.
    pub(crate) fn of(&self, steps: RangeInclusive<u64>) -> Option<T> {
        let before = self.0.range(..steps.start()).next_back().filter(|(_, entry)| entry.last() >= *steps.start());
        before.into_iter().chain(self.0.range(steps)).map(|(_, entry)| *entry).reduce(T::joined)
    }
}

/// Returns the first of two ranges of steps together, and their number.
fn united(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    let first = one.0.min(other.0);
    (first, one.1.max(other.1).saturating_sub(first).saturating_add(1))
}

impl OfSteps for StepWorkView {
    fn first(&self) -> u64 {
        self.step
    }

    fn last(&self) -> u64 {
        self.step.saturating_add(self.steps.max(1) - 1)
    }

    fn joined(self, other: Self) -> Self {
        let (step, steps) = united((self.step, self.last()), (other.step, other.last()));
        Self {
            step,
            steps,
            calls: self.calls.saturating_add(other.calls),
            nanoseconds: self.nanoseconds.saturating_add(other.nanoseconds),
            to_device_bytes: self.to_device_bytes.saturating_add(other.to_device_bytes),
            to_host_bytes: self.to_host_bytes.saturating_add(other.to_host_bytes),
        }
    }
}

impl From<&StepWork> for StepWorkView {
    fn from(work: &StepWork) -> Self {
        Self {
            step: work.step,
            steps: work.steps.max(1),
            calls: work.calls,
            nanoseconds: work.nanoseconds,
            to_device_bytes: work.to_device_bytes,
            to_host_bytes: work.to_host_bytes,
        }
    }
}

impl OfSteps for StepWaitView {
    fn first(&self) -> u64 {
        self.step
    }

    fn last(&self) -> u64 {
        self.step.saturating_add(self.steps.max(1) - 1)
    }

    fn joined(self, other: Self) -> Self {
        let (step, steps) = united((self.step, self.last()), (other.step, other.last()));
        Self {
            step,
            steps,
            data_ns: self.data_ns.saturating_add(other.data_ns),
            launch_ns: self.launch_ns.saturating_add(other.launch_ns),
            launch_steps: self.launch_steps.saturating_add(other.launch_steps),
        }
    }
}

impl From<&StepWait> for StepWaitView {
    fn from(wait: &StepWait) -> Self {
        let (launch_ns, launch_steps) = (wait.launch_ns.unwrap_or(0), u64::from(wait.launch_ns.is_some()));
        Self { step: wait.step, steps: 1, data_ns: wait.data_ns, launch_ns, launch_steps }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(step: u64, steps: u64, calls: u64) -> StepWorkView {
        StepWorkView { step, steps, calls, ..StepWorkView::default() }
    }

    #[test]
    fn entries_of_the_same_steps_are_one() {
        // GIVEN three steps; WHEN more work of one arrives, and work of two together; THEN each step is in one entry
        let mut works = BySteps::default();
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
    fn waits_of_some_steps_are_those_of_their_entries() {
        // GIVEN the waits of three steps, one of which launched nothing
        let mut waits = BySteps::<StepWaitView>::default();
        for (step, launch_ns) in [(0, Some(10)), (1, None), (2, Some(30))] {
            waits.insert((&StepWait { time: 0, step, data_ns: step, launch_ns }).into());
        }
        // THEN those of two are joined, AND later steps have none
        let two = StepWaitView { step: 1, steps: 2, data_ns: 3, launch_ns: 30, launch_steps: 1 };
        assert_eq!((waits.of(1..=2), waits.of(3..=9)), (Some(two), None));
        // AND an entry of several steps answers for each of them
        waits.insert(two);
        assert_eq!(waits.of(2..=2).map(|wait| wait.steps), Some(2));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut works = BySteps::default();
        for step in 0..3 * MAX_ENTRIES as u64 {
            works.insert(entry(step, 1, 1));
        }
        assert!(works.entries().count() <= MAX_ENTRIES);
        assert_eq!(works.entries().map(|entry| entry.steps).sum::<u64>(), 3 * MAX_ENTRIES as u64);
        assert_eq!(works.entries().map(|entry| entry.calls).sum::<u64>(), 3 * MAX_ENTRIES as u64);
    }
}
