//! A device's memory over time.

use super::history_views::{Range, Timeline, TimelinePoint};
use super::time_bins::{TimeBin, TimeBins};

/// Records a device's memory over time, in more points than a screen is wide, so that it can be zoomed.
#[derive(Clone, Default)]
pub(crate) struct TimelineRecorder {
    pub(crate) points: TimeBins<TimelinePoint, 4096, 128>,
}

impl Range {
    /// Returns a bin that begins at `from` and changes to `value`.
    fn spanning(from: u64, value: u64) -> Self {
        Self { min: from.min(value), max: from.max(value), last: value }
    }

    #[inline]
    fn note(&mut self, value: u64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.last = value;
    }

    fn join(&mut self, later: Self) {
        self.min = self.min.min(later.min);
        self.max = self.max.max(later.max);
        self.last = later.last;
    }
}

impl TimeBin for TimelinePoint {
    fn time(&self) -> u64 {
        self.time
    }

    fn set_time(&mut self, time: u64) {
        self.time = time;
    }

    fn join(&mut self, later: &Self) {
        self.allocated.join(later.allocated);
        self.reserved.join(later.reserved);
        self.used.join(later.used);
    }
}

impl TimelineRecorder {
    /// Returns a timeline that begins at `time` with these figures.
    pub(crate) fn starting(time: u64, allocated: u64, reserved: u64, used: u64) -> Self {
        let mut timeline = Self::default();
        let still = |value: u64| Range { min: value, max: value, last: value };
        let point = TimelinePoint { time, allocated: still(allocated), reserved: still(reserved), used: still(used) };
        timeline.points.next(time);
        timeline.points.list.push(point);
        timeline
    }

    /// Records a change of `allocated` alone. Returns false if no point covers this time yet.
    #[inline]
    pub(crate) fn note_allocated(&mut self, time: u64, allocated: u64) -> bool {
        let open = self.points.open(time);
        let is_open = open.is_some();
        if let Some(point) = open {
            point.allocated.note(allocated);
        }
        is_open
    }

    /// Records a change of any of the figures.
    pub(crate) fn note(&mut self, time: u64, allocated: u64, reserved: u64, used: u64) {
        if self.points.open(time).is_none()
            && let Some(begin) = self.points.next(time)
        {
            let before = self.points.list.last().copied().unwrap_or_default();
            self.points.list.push(TimelinePoint {
                time: begin,
                allocated: Range::spanning(before.allocated.last, allocated),
                reserved: Range::spanning(before.reserved.last, reserved),
                used: Range::spanning(before.used.last, used),
            });
        } else if let Some(point) = self.points.list.last_mut() {
            point.allocated.note(allocated);
            point.reserved.note(reserved);
            point.used.note(used);
        }
    }

    pub(crate) fn view(&self) -> Timeline {
        Timeline { width: 1 << self.points.width_log2, points: self.points.list.clone(), categories: Vec::new() }
    }
}
