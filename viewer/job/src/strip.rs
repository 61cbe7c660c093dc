//! Condenses a device's memory over time to a few figures.

use memlab_trace::{Timeline, TimelinePoint};

/// Number of figures.
pub const STRIP_PARTS: usize = 96;

/// Returns the largest allocated bytes in each of [`STRIP_PARTS`] parts of a run of this duration; empty without data.
pub fn strip(timeline: &Timeline, duration: u64) -> Vec<u64> {
    if timeline.points.is_empty() {
        return Vec::new();
    }
    let part_of = |time: u64| {
        (u128::from(time) * STRIP_PARTS as u128 / (u128::from(duration) + 1)).min(STRIP_PARTS as u128 - 1) as usize
    };
    let mut strip = vec![0; STRIP_PARTS];
    let (mut filled, mut last) = (0, 0);
    for TimelinePoint { time, allocated, .. } in &timeline.points {
        let part = part_of(*time);
        // Memory does not change between points.
        strip[filled..part.max(filled)].iter_mut().for_each(|bytes| *bytes = last.max(*bytes));
        filled = part.max(filled);
        strip[filled] = strip[filled].max(allocated.max);
        last = allocated.last;
    }
    strip[filled + 1..].fill(last);
    strip
}

#[cfg(test)]
mod tests {
    use memlab_trace::Range;

    use super::*;

    #[test]
    fn a_strip_has_the_most_of_each_part_and_keeps_what_does_not_change() {
        // GIVEN a run that holds 5 bytes for the first quarter, 9 for a moment, and then 2
        let point = |time, max, last| TimelinePoint {
            time,
            allocated: Range { min: 0, max, last },
            ..TimelinePoint::default()
        };
        let points = vec![point(0, 5, 5), point(2400, 9, 2)];
        let timeline = Timeline { width: 1, points, ..Timeline::default() };
        // WHEN it is divided into parts of 100 ns THEN each part has its maximum
        let strip = strip(&timeline, 9599);
        assert_eq!(
            (strip.len(), &strip[..3], &strip[23..26], strip[95]),
            (STRIP_PARTS, &[5, 5, 5][..], &[5, 9, 2][..], 2)
        );
        assert!(super::strip(&Timeline::default(), 10).is_empty());
    }
}
