//! What a device's memory was used for over time, in bounded space: for each stretch of time what every category of blocks
//! took when most was allocated in it, and at its end.
//!
//! Categories are those known at that moment: what turned out later to be something else is not counted again.

use super::views::{SharePoint, Shares};

/// The most stretches; a screen is a few hundred columns wide.
const POINTS: u64 = 512;

/// So many are kept even where there is little room.
const FEW: usize = 64;

/// The width of a stretch at first and at last: as those of the timeline, which has more of them.
const FIRST_WIDTH_LOG2: u32 = 12;
const WIDEST_LOG2: u32 = 55;

/// Records what memory was used for over time.
#[derive(Clone)]
pub(crate) struct SharesRecorder {
    pub(crate) origin: u64,
    pub(crate) width_log2: u32,
    pub(crate) points: Vec<SharePoint>,
    /// The most allocated in the stretch that is open.
    most: u64,
}

impl Default for SharesRecorder {
    fn default() -> Self {
        Self { origin: 0, width_log2: FIRST_WIDTH_LOG2, points: Vec::new(), most: 0 }
    }
}

impl SharesRecorder {
    /// Time has come to `time`, and until now `shares` were live, `allocated` bytes together.
    #[inline]
    pub(crate) fn advance(&mut self, time: u64, shares: &Shares, allocated: u64) {
        // An event that comes late by microseconds counts for the stretch now open.
        let is_open =
            self.points.last().is_some_and(|point| time <= point.time || (time - point.time) >> self.width_log2 == 0);
        if !is_open {
            self.begin(time, shares, allocated);
        }
    }

    /// More is live now than before.
    #[inline]
    pub(crate) fn raise(&mut self, shares: &Shares, allocated: u64) {
        if allocated > self.most
            && let Some(point) = self.points.last_mut()
        {
            (point.most, self.most) = (*shares, allocated);
        }
    }

    #[cold]
    fn begin(&mut self, time: u64, shares: &Shares, allocated: u64) {
        if self.points.is_empty() {
            self.origin = time;
        }
        if let Some(last) = self.points.last_mut() {
            last.last = *shares;
        }
        while time.saturating_sub(self.origin) >> self.width_log2 >= POINTS && self.width_log2 < WIDEST_LOG2 {
            self.widen();
        }
        let begin = self.begin_of(time);
        // Widening may have made the last point cover this time.
        if self.points.last().is_none_or(|last| last.time < begin) {
            self.points.push(SharePoint { time: begin, most: *shares, last: *shares });
            self.most = allocated;
        }
    }

    fn begin_of(&self, time: u64) -> u64 {
        let index = time.saturating_sub(self.origin) >> self.width_log2;
        self.origin.saturating_add(index << self.width_log2)
    }

    /// Halves the points; false if they are few.
    pub(crate) fn shorten(&mut self) -> bool {
        let are_many = self.points.len() > FEW && self.width_log2 < WIDEST_LOG2;
        if are_many {
            self.widen();
        }
        are_many
    }

    /// Doubles the width, joining points that now lie in one stretch.
    fn widen(&mut self) {
        self.width_log2 += 1;
        let mut points = std::mem::take(&mut self.points);
        points.iter_mut().for_each(|point| point.time = self.begin_of(point.time));
        points.dedup_by(|later, earlier| {
            let is_same = later.time == earlier.time;
            if is_same {
                if sum(&later.most) > sum(&earlier.most) {
                    earlier.most = later.most;
                }
                earlier.last = later.last;
            }
            is_same
        });
        self.most = points.last().map_or(0, |point| sum(&point.most));
        self.points = points;
    }

    /// Takes over the scale from a keyframe.
    pub(crate) fn restore_scale(&mut self, origin: u64, width_log2: u32) {
        self.origin = origin;
        self.width_log2 = width_log2.clamp(FIRST_WIDTH_LOG2, WIDEST_LOG2);
    }

    /// Takes over the next point of a keyframe; `None` if there are too many.
    pub(crate) fn restore(&mut self, point: SharePoint) -> Option<()> {
        if self.points.len() as u64 > POINTS {
            return None;
        }
        self.most = sum(&point.most);
        self.points.push(point);
        Some(())
    }

    /// The points; the last one ends with what is live now.
    pub(crate) fn view(&self, now: &Shares) -> Vec<SharePoint> {
        let mut points = self.points.clone();
        if let Some(last) = points.last_mut() {
            last.last = *now;
        }
        points
    }
}

fn sum(shares: &Shares) -> u64 {
    shares.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(parameters: u64, activations: u64) -> Shares {
        let mut shares = Shares::default();
        (shares[0], shares[4]) = (parameters, activations);
        shares
    }

    #[test]
    fn a_stretch_tells_its_most_and_its_end() {
        let mut recorder = SharesRecorder::default();
        let mut now = shares(0, 0);
        let mut change = |recorder: &mut SharesRecorder, time: u64, to: Shares| {
            recorder.advance(time, &now, sum(&now));
            now = to;
            recorder.raise(&now, sum(&now));
        };
        // GIVEN memory that rises and falls within a stretch, and changes again in a later one
        change(&mut recorder, 100, shares(5, 0));
        change(&mut recorder, 200, shares(5, 9));
        change(&mut recorder, 300, shares(5, 1));
        change(&mut recorder, 1 << 20, shares(5, 2));
        let point = |time, most, last| SharePoint { time, most, last };
        // THEN between the two was what the first one left
        assert_eq!(
            recorder.view(&shares(7, 0)),
            [point(100, shares(5, 9), shares(5, 1)), point(recorder.begin_of(1 << 20), shares(5, 2), shares(7, 0))]
        );
    }

    #[test]
    fn however_long_it_takes_the_points_are_few() {
        let mut recorder = SharesRecorder::default();
        for step in 0..200_000_u64 {
            let now = shares(step % 7, step);
            recorder.advance(step * 10_000, &now, sum(&now));
            recorder.raise(&shares(step % 7, step + 1), sum(&now) + 1);
        }
        recorder.advance(u64::MAX, &shares(1, 1), 2);
        assert!(recorder.points.len() as u64 <= POINTS && recorder.points.len() > 1);
        assert!(recorder.points.is_sorted_by(|a, b| a.time < b.time));
    }
}
