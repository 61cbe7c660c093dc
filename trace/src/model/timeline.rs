//! Memory over time in bounded space: stretches of time that double their width when there are too many.

use super::views::{Range, Timeline, TimelinePoint};

/// The most points kept; a screen is a few hundred wide.
const POINTS: u64 = 4096;

/// So many are kept even where there is little room.
const FEW: usize = 128;

/// The width of a point at first: 2^12 ns, 4 µs.
const FIRST_WIDTH_LOG2: u32 = 12;

/// The width of a point at last: with 2^12 of them all times there are.
const WIDEST_LOG2: u32 = 52;

/// Records a device's memory over time.
#[derive(Clone)]
pub(crate) struct TimelineRecorder {
    pub(crate) origin: u64,
    pub(crate) width_log2: u32,
    pub(crate) points: Vec<TimelinePoint>,
}

impl Default for TimelineRecorder {
    fn default() -> Self {
        Self { origin: 0, width_log2: FIRST_WIDTH_LOG2, points: Vec::new() }
    }
}

impl Range {
    /// A stretch that begins at `from` and comes to `value`.
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

impl TimelineRecorder {
    /// `allocated` changed; the other figures did not. False if no point covers this time yet.
    #[inline]
    pub(crate) fn note_allocated(&mut self, time: u64, allocated: u64) -> bool {
        let Some(point) = self.points.last_mut() else { return false };
        // An event that comes late by microseconds counts for the point now open.
        if time > point.time && (time - point.time) >> self.width_log2 != 0 {
            return false;
        }
        point.allocated.note(allocated);
        true
    }

    /// Any of the figures changed.
    pub(crate) fn note(&mut self, time: u64, allocated: u64, reserved: u64, used: u64) {
        if self.points.is_empty() {
            self.origin = time;
        }
        if self.note_allocated(time, allocated) {
            if let Some(point) = self.points.last_mut() {
                point.reserved.note(reserved);
                point.used.note(used);
            }
            return;
        }
        while time.saturating_sub(self.origin) >> self.width_log2 >= POINTS {
            self.widen();
        }
        let before = self.points.last().copied().unwrap_or_default();
        let index = time.saturating_sub(self.origin) >> self.width_log2;
        let begin = self.origin.saturating_add(index << self.width_log2);
        // Widening may have made the last point cover this time.
        if self.points.last().is_some_and(|point| point.time >= begin) {
            self.note_allocated(time, allocated);
            if let Some(point) = self.points.last_mut() {
                point.reserved.note(reserved);
                point.used.note(used);
            }
            return;
        }
        self.points.push(TimelinePoint {
            time: begin,
            allocated: Range::spanning(before.allocated.last, allocated),
            reserved: Range::spanning(before.reserved.last, reserved),
            used: Range::spanning(before.used.last, used),
        });
    }

    /// Takes over the scale from a keyframe.
    pub(crate) fn restore(&mut self, origin: u64, width_log2: u32) {
        self.origin = origin;
        self.width_log2 = width_log2.clamp(FIRST_WIDTH_LOG2, WIDEST_LOG2);
    }

    /// Halves the points; false if they are few.
    pub(crate) fn shorten(&mut self) -> bool {
        let are_many = self.points.len() > FEW && self.width_log2 < WIDEST_LOG2;
        if are_many {
            self.widen();
        }
        are_many
    }

    /// Doubles the width, joining points that now lie in one.
    fn widen(&mut self) {
        self.width_log2 += 1;
        let (origin, width) = (self.origin, self.width_log2);
        self.points.dedup_by(|later, earlier| {
            let same = later.time.saturating_sub(origin) >> width == earlier.time.saturating_sub(origin) >> width;
            if same {
                earlier.allocated.join(later.allocated);
                earlier.reserved.join(later.reserved);
                earlier.used.join(later.used);
            }
            same
        });
        for point in &mut self.points {
            point.time = origin.saturating_add(point.time.saturating_sub(origin) >> width << width);
        }
    }

    pub(crate) fn view(&self) -> Timeline {
        Timeline { width: 1 << self.width_log2, points: self.points.clone(), shares: Vec::new() }
    }
}
