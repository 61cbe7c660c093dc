//! Optimizer steps: the memory of each one.

use super::history_views::StepView;

/// Maximum number of entries; beyond that, neighbours are joined.
pub(super) const MAX_STEPS: usize = 12 << 10;

/// Number of latest steps that stay separate.
pub(super) const LATEST_STEPS: usize = 8 << 10;

/// Maximum number of earlier entries left after joining neighbours.
pub(super) const MAX_EARLIER_STEPS: usize = (MAX_STEPS - LATEST_STEPS) / 2;

/// Minimum number of entries kept if space is short.
pub(super) const MIN_STEPS: usize = 64;

/// Steps of one device, or of all devices.
#[derive(Clone, Default)]
pub(crate) struct Steps {
    pub(crate) list: Vec<StepView>,
    /// Maximum number of steps that an earlier entry joins; 0: none yet.
    pub(crate) joined: u64,
    /// Peak allocated bytes since the last step ended.
    pub(crate) peak: u64,
}

impl Steps {
    /// Records the currently allocated bytes.
    #[inline]
    pub(crate) fn note(&mut self, allocated: u64) {
        self.peak = self.peak.max(allocated);
    }

    /// Restores the rest of the state from a keyframe.
    pub(crate) fn restore(&mut self, joined: u64, peak: u64) {
        (self.joined, self.peak) = (joined, peak);
    }

    /// Adds a step that ended.
    pub(crate) fn end(&mut self, index: u64, time: u64, allocated: u64, event: u64) {
        let step = StepView {
            index,
            steps: 1,
            end_time: time,
            peak_allocated_bytes: self.peak.max(allocated),
            allocated_bytes_at_end: allocated,
            end_event: event,
        };
        self.peak = allocated;
        if self.list.len() >= MAX_STEPS {
            self.join_earlier();
        }
        self.list.push(step);
    }

    /// Halves the number of entries. Returns false if only a few exist.
    pub(crate) fn shorten(&mut self) -> bool {
        let is_long = self.list.len() > MIN_STEPS;
        if is_long {
            self.join_more();
        }
        is_long
    }

    /// Joins neighbours before the latest steps.
    fn join_earlier(&mut self) {
        let latest = self.list.split_off(self.list.len() - LATEST_STEPS);
        self.join_neighbours();
        while self.list.len() > MAX_EARLIER_STEPS {
            self.join_more();
        }
        self.list.extend(latest);
    }

    fn join_more(&mut self) {
        self.joined = self.joined.max(1).saturating_mul(2);
        self.join_neighbours();
    }

    fn join_neighbours(&mut self) {
        let joined = self.joined;
        self.list.dedup_by(|later, earlier| {
            let fits = earlier.steps.saturating_add(later.steps) <= joined;
            if fits {
                join(earlier, *later);
            }
            fits
        });
    }
}

fn join(earlier: &mut StepView, later: StepView) {
    *earlier = StepView {
        steps: earlier.steps.saturating_add(later.steps),
        peak_allocated_bytes: earlier.peak_allocated_bytes.max(later.peak_allocated_bytes),
        ..later
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_training_keeps_its_latest_steps_its_peak_and_its_count() {
        // GIVEN many times the maximum number of steps, one of which allocated most
        let mut steps = Steps::default();
        let count = 20 * MAX_STEPS as u64;
        for index in 0..count {
            steps.note(if index == 777 { 1000 } else { index % 10 });
            steps.end(index, 10 * index, 5, index + 1);
            assert!(steps.list.len() <= MAX_STEPS);
        }
        // THEN the latest are separate, AND the earlier entries contain all steps and the peak
        let list = &steps.list;
        assert!(list[list.len() - LATEST_STEPS..].iter().all(|step| step.steps == 1));
        assert_eq!(list.iter().map(|step| step.steps).sum::<u64>(), count);
        assert!(list.is_sorted_by_key(|step| step.index) && list.len() >= LATEST_STEPS + MAX_EARLIER_STEPS / 2);
        let most = list.iter().max_by_key(|step| step.peak_allocated_bytes).expect("there are steps");
        assert!(most.peak_allocated_bytes == 1000 && most.indexes().contains(&777));
        // AND no step is in two entries
        let last = list.iter().fold(0, |next, step| if *step.indexes().start() == next { step.index + 1 } else { 0 });
        assert_eq!(last, count);
    }

    #[test]
    fn steps_of_a_broken_keyframe_are_joined_too() {
        // GIVEN more entries than the maximum, each of more steps than are possible
        let entry = StepView { steps: u64::MAX, ..StepView::default() };
        let mut steps = Steps { list: vec![entry; 3 * MAX_STEPS], ..Steps::default() };
        // WHEN a step ends THEN the number of entries is within the maximum
        steps.end(0, 0, 0, 0);
        assert!(steps.list.len() <= MAX_STEPS);
    }
}
