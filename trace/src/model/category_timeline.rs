//! A device's memory over time by category: for each time bin, at its peak and at its end.
//!
//! Categories are those known at that moment. A block that later changes its category is not counted again.

use super::category::CategoryBytes;
use super::history_views::CategoryPoint;
use super::time_bins::{TimeBin, TimeBins};

/// Records bytes by category, in about as many points as a screen has columns.
#[derive(Clone, Default)]
pub(crate) struct CategoryRecorder {
    pub(crate) points: TimeBins<CategoryPoint, 512, 64>,
    /// Peak of the open bin.
    most: u64,
}

impl TimeBin for CategoryPoint {
    fn time(&self) -> u64 {
        self.time
    }

    fn set_time(&mut self, time: u64) {
        self.time = time;
    }

    fn join(&mut self, later: &Self) {
        if sum(&later.most) > sum(&self.most) {
            self.most = later.most;
        }
        self.last = later.last;
    }
}

impl CategoryRecorder {
    /// Advances to `time`. Up to then, `bytes` were live, and `allocated` bytes in total.
    #[inline]
    pub(crate) fn advance(&mut self, time: u64, bytes: &CategoryBytes, allocated: u64) {
        if self.points.open(time).is_none() {
            self.begin(time, bytes, allocated);
        }
    }

    /// Raises the peak of the open bin after an allocation.
    #[inline]
    pub(crate) fn raise(&mut self, bytes: &CategoryBytes, allocated: u64) {
        if allocated > self.most
            && let Some(point) = self.points.list.last_mut()
        {
            (point.most, self.most) = (*bytes, allocated);
        }
    }

    #[cold]
    fn begin(&mut self, time: u64, bytes: &CategoryBytes, allocated: u64) {
        if let Some(last) = self.points.list.last_mut() {
            last.last = *bytes;
        }
        if let Some(begin) = self.points.next(time) {
            self.points.list.push(CategoryPoint { time: begin, most: *bytes, last: *bytes });
            self.most = allocated;
        } else {
            self.update_most();
        }
    }

    /// Updates the peak for a newly opened bin.
    fn update_most(&mut self) {
        self.most = self.points.list.last().map_or(0, |point| sum(&point.most));
    }

    /// Halves the number of points. Returns false if only a few exist.
    pub(crate) fn shorten(&mut self) -> bool {
        let shortened = self.points.shorten();
        self.update_most();
        shortened
    }

    /// Restores the next point of a keyframe; `None` if the keyframe has too many.
    pub(crate) fn restore(&mut self, point: CategoryPoint) -> Option<()> {
        self.points.restore(point)?;
        self.update_most();
        Some(())
    }

    /// Returns the points; the last one ends with the bytes live now.
    pub(crate) fn view(&self, now: &CategoryBytes) -> Vec<CategoryPoint> {
        let mut points = self.points.list.clone();
        if let Some(last) = points.last_mut() {
            last.last = *now;
        }
        points
    }
}

fn sum(bytes: &CategoryBytes) -> u64 {
    bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(parameters: u64, activations: u64) -> CategoryBytes {
        let mut bytes = CategoryBytes::default();
        (bytes[0], bytes[4]) = (parameters, activations);
        bytes
    }

    #[test]
    fn a_stretch_has_its_maximum_and_its_end() {
        let mut recorder = CategoryRecorder::default();
        let mut now = bytes(0, 0);
        let mut change = |recorder: &mut CategoryRecorder, time: u64, to: CategoryBytes| {
            recorder.advance(time, &now, sum(&now));
            now = to;
            recorder.raise(&now, sum(&now));
        };
        // GIVEN memory that rises and falls within a bin, and changes again in a later one
        change(&mut recorder, 100, bytes(5, 0));
        change(&mut recorder, 200, bytes(5, 9));
        change(&mut recorder, 300, bytes(5, 1));
        change(&mut recorder, 1 << 20, bytes(5, 2));
        let point = |time, most, last| CategoryPoint { time, most, last };
        // THEN the values between the two are those at the end of the first
        assert_eq!(
            recorder.view(&bytes(7, 0)),
            [point(100, bytes(5, 9), bytes(5, 1)), point(recorder.points.begin_of(1 << 20), bytes(5, 2), bytes(7, 0))]
        );
    }

    #[test]
    fn the_number_of_points_is_bounded() {
        let mut recorder = CategoryRecorder::default();
        for step in 0..200_000_u64 {
            let now = bytes(step % 7, step);
            recorder.advance(step * 10_000, &now, sum(&now));
            recorder.raise(&bytes(step % 7, step + 1), sum(&now) + 1);
        }
        recorder.advance(u64::MAX, &bytes(1, 1), 2);
        assert!((2..=512).contains(&recorder.points.list.len()));
        assert!(recorder.points.list.is_sorted_by(|a, b| a.time < b.time));
    }
}
