//! Medians.
//!
//! For an even number of values the lower of the middle two, so that the median is the exact value of some rank.

/// Returns the median; 0 without values.
pub fn median(values: impl IntoIterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.into_iter().collect();
    let Some(middle) = values.len().checked_sub(1).map(|last| last / 2) else { return 0 };
    *values.select_nth_unstable(middle).1
}

/// Returns the distance from the median beyond which values count as different: three times the median distance, and at
/// least `least`.
pub(crate) fn tolerance(values: &[u64], median: u64, least: u64) -> u64 {
    const DEVIATIONS: u64 = 3;
    let typical = self::median(values.iter().map(|value| value.abs_diff(median)));
    typical.saturating_mul(DEVIATIONS).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_far_off_does_not_move_the_median() {
        assert_eq!(
            [median([]), median([7]), median([9, 1]), median([3, 1, 2]), median([1, 1, 1, 900])],
            [0, 7, 1, 2, 1]
        );
    }

    #[test]
    fn the_usual_spread_of_values_is_tolerated() {
        // GIVEN values that are alike except one THEN only `least` counts; if all differ, three times the median distance
        assert_eq!(tolerance(&[10, 10, 10, 900], 10, 5), 5);
        assert_eq!(tolerance(&[10, 20, 30, 40, 50], 30, 5), 30);
    }
}
