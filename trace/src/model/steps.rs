//! Optimizer steps: how much each one took.

use super::history_views::StepView;

/// The most entries kept; beyond that, neighbours are joined.
pub(super) const STEPS: usize = 1 << 16;

/// The fewest entries kept where space is short.
pub(super) const FEW: usize = 64;

/// The steps of one device, or of all together.
#[derive(Clone, Default)]
pub(crate) struct Steps {
    pub(crate) list: Vec<StepView>,
    /// The number of steps that an entry joins; 0: none yet.
    pub(crate) joined: u64,
    /// The most allocated since the last step ended.
    pub(crate) peak: u64,
}

impl Steps {
    /// `allocated` bytes are allocated now.
    #[inline]
    pub(crate) fn note(&mut self, allocated: u64) {
        self.peak = self.peak.max(allocated);
    }

    /// Restores the rest of the state from a keyframe.
    pub(crate) fn restore(&mut self, joined: u64, peak: u64) {
        (self.joined, self.peak) = (joined, peak);
    }

    /// A step ended.
    pub(crate) fn end(&mut self, index: u64, time: u64, allocated: u64, event: u64) {
        self.joined = self.joined.max(1);
        let step = StepView {
            index,
            steps: 1,
            end_time: time,
            peak_allocated_bytes: self.peak.max(allocated),
            allocated_bytes_at_end: allocated,
            end_event: event,
        };
        self.peak = allocated;
        match self.list.last_mut() {
            Some(last) if last.steps < self.joined => join(last, step),
            _ => self.list.push(step),
        }
        if self.list.len() > STEPS {
            self.join_neighbours();
        }
    }

    /// Halves the number of entries; false if there are few.
    pub(crate) fn shorten(&mut self) -> bool {
        let is_long = self.list.len() > FEW;
        if is_long {
            self.join_neighbours();
        }
        is_long
    }

    fn join_neighbours(&mut self) {
        self.joined = self.joined.saturating_mul(2);
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
