//! Memory over time, resampled to the columns of a time axis.

use memlab_trace::{Range, Timeline};

/// Memory in one column of a time axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeColumn {
    /// Allocated bytes: minimum and maximum.
    pub allocated: Range,
    /// Maximum of the reserved bytes.
    pub reserved: u64,
    /// Maximum of the bytes in use on the whole device.
    pub used: u64,
}

impl TimeColumn {
    /// Maximum of the allocated bytes.
    pub fn most(&self) -> u64 {
        self.allocated.max
    }

    /// Upper edges of the bands, from the bottom up.
    pub fn edges(&self) -> [u64; 4] {
        let allocated = self.allocated.max;
        let reserved = self.reserved.max(allocated);
        [self.allocated.min, allocated, reserved, self.used.max(reserved)]
    }
}

/// Resamples a timeline to columns. `edges`: their starts, and the end of the last, in nanoseconds.
pub fn resample(timeline: &Timeline, edges: &[u64]) -> Vec<TimeColumn> {
    let start = edges.first().copied().unwrap_or(0);
    let end_of = |index: usize| {
        let point = &timeline.points[index];
        let next = timeline.points.get(index + 1).map_or(u64::MAX, |next| next.time);
        point.time.saturating_add(timeline.width.max(1)).min(next)
    };
    let mut first = timeline.points.partition_point(|point| point.time < start);
    // The previous point may reach into the first column.
    first = first.saturating_sub(1);
    let mut last = TimeColumn::default();
    let mut cells = Vec::with_capacity(edges.len());
    for ends in edges.windows(2) {
        let (from, to) = (ends[0], ends[1]);
        let mut cell: Option<TimeColumn> = None;
        while let Some(point) = timeline.points.get(first).filter(|point| point.time < to) {
            let end = end_of(first);
            let this = TimeColumn { allocated: point.allocated, reserved: point.reserved.max, used: point.used.max };
            if end > from {
                let merged = cell.get_or_insert(this);
                merged.allocated.min = merged.allocated.min.min(this.allocated.min);
                merged.allocated.max = merged.allocated.max.max(this.allocated.max);
                merged.reserved = merged.reserved.max(this.reserved);
                merged.used = merged.used.max(this.used);
            }
            let value = point.allocated.last;
            last = TimeColumn {
                allocated: Range { min: value, max: value, last: value },
                reserved: point.reserved.last,
                used: point.used.last,
            };
            if end > to {
                break;
            }
            first += 1;
        }
        cells.push(cell.unwrap_or(last));
    }
    cells
}

#[cfg(test)]
mod tests {
    use memlab_trace::TimelinePoint;

    use super::*;

    fn flat(value: u64) -> Range {
        Range { min: value, max: value, last: value }
    }

    fn even(start: u64, width: u64, columns: u64) -> Vec<u64> {
        (0..=columns).map(|column| start + width * column).collect()
    }

    fn timeline(points: &[(u64, Range)]) -> Timeline {
        let point = |&(time, allocated): &(u64, Range)| TimelinePoint { time, allocated, ..TimelinePoint::default() };
        Timeline { width: 10, points: points.iter().map(point).collect(), ..Timeline::default() }
    }

    #[test]
    fn a_gap_keeps_the_last_value() {
        // GIVEN memory that swings at 10, and stays at 5 until it is freed at 60
        let timeline = timeline(&[(10, Range { min: 0, max: 9, last: 5 }), (60, Range { min: 0, max: 5, last: 0 })]);
        // WHEN resampled to columns of 10
        let columns = resample(&timeline, &even(0, 10, 9));
        // THEN each column has its minimum and maximum
        let seen: Vec<_> = columns.iter().map(|column| (column.allocated.min, column.allocated.max)).collect();
        assert_eq!(seen, [(0, 0), (0, 9), (5, 5), (5, 5), (5, 5), (5, 5), (0, 5), (0, 0), (0, 0)]);
    }

    #[test]
    fn many_points_share_a_column() {
        let timeline = timeline(&[(0, flat(1)), (10, flat(7)), (20, flat(3)), (30, flat(2))]);
        let columns = resample(&timeline, &even(0, 20, 3));
        let seen: Vec<_> = columns.iter().map(|column| (column.allocated.min, column.allocated.max)).collect();
        assert_eq!(seen, [(1, 7), (2, 3), (2, 2)]);
    }

    #[test]
    fn a_window_begins_with_what_was_there() {
        let timeline = timeline(&[(0, flat(4)), (100, flat(6))]);
        let seen: Vec<_> = resample(&timeline, &even(50, 25, 3)).iter().map(|column| column.allocated.max).collect();
        assert_eq!(seen, [4, 4, 6]);
    }

    #[test]
    fn a_point_wider_than_a_column_fills_its_columns() {
        let timeline = timeline(&[(0, Range { min: 2, max: 8, last: 3 }), (10, flat(1))]);
        let seen: Vec<_> = resample(&timeline, &even(0, 5, 4)).iter().map(|column| column.allocated.max).collect();
        assert_eq!(seen, [8, 8, 1, 1]);
    }
}
