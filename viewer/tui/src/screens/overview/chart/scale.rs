//! Axes, with ticks at round numbers.

/// An axis of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Upper end.
    pub top: u64,
    /// Positions of the labels, from the top down.
    pub ticks: Vec<u64>,
}

/// Axis up to a little above `most`, for a chart of `rows` rows, with ticks at a power of two of bytes.
///
/// The axis ends at `total` once more than half of a device of `total` bytes is taken.
pub fn byte_axis(most: u64, total: u64, rows: u16) -> Axis {
    let wanted = u64::from(rows / 3).clamp(3, 8);
    let most = most.max(1 << 20);
    let step = most.div_ceil(wanted).checked_next_power_of_two().unwrap_or(1 << 63);
    let whole = total >= most && total / 2 < most;
    // Quarters of a tick: fine enough to waste no room, coarse enough to stay while memory grows slowly.
    let top = if whole { total } else { most.saturating_add(most / 32).div_ceil(step / 4).saturating_mul(step / 4) };
    let mut ticks: Vec<u64> = (0..=top / step).map(|index| index * step).rev().collect();
    if whole && ticks.first() != Some(&top) {
        // A tick close below the upper end would overlap its label.
        if ticks.len() > 1 && top - ticks[0] < step / 2 {
            ticks.remove(0);
        }
        ticks.insert(0, top);
    }
    Axis { top, ticks }
}

/// Nanoseconds per column, so that `end` is in one of `columns`.
///
/// While the run continues, the width grows in steps, and columns keep their content in between.
pub fn column_width(end: u64, columns: u16, growing: bool) -> u64 {
    let exact = (end / u64::from(columns.max(1))).saturating_add(1);
    if !growing {
        return exact;
    }
    const STEPS: [u64; 10] = [100, 125, 160, 200, 250, 320, 400, 500, 640, 800];
    let decades = (4..16).map(|power| 10_u64.pow(power));
    let mut widths = decades.flat_map(|decade| STEPS.map(|step| step * decade));
    widths.find(|width| *width >= exact).unwrap_or(exact)
}

/// Distance of labels on the time axis: a round time of at least `columns` columns.
pub fn time_step(column_width: u64, columns: u64) -> u64 {
    const MILLISECOND: u64 = 1_000_000;
    const STEPS_MS: [u64; 32] = [
        1,
        2,
        5,
        10,
        20,
        50,
        100,
        200,
        500,
        1_000,
        2_000,
        5_000,
        10_000,
        15_000,
        30_000,
        60_000,
        120_000,
        300_000,
        600_000,
        900_000,
        1_800_000,
        3_600_000,
        7_200_000,
        10_800_000,
        21_600_000,
        43_200_000,
        86_400_000,
        172_800_000,
        604_800_000,
        1_209_600_000,
        2_419_200_000,
        31_536_000_000,
    ];
    let least = column_width.saturating_mul(columns);
    STEPS_MS.iter().map(|step| step * MILLISECOND).find(|step| *step >= least).unwrap_or(least.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn byte_axes_are_round() {
        // GIVEN 13 GiB of 140 WHEN the chart has 12 rows THEN ticks are 4 GiB apart and the top is a little above
        assert_eq!(
            byte_axis(13 * GIB, 140 * GIB, 12),
            Axis { top: 14 * GIB, ticks: vec![12 * GIB, 8 * GIB, 4 * GIB, 0] }
        );
        // GIVEN most of the device taken THEN the axis ends with the device
        let axis = byte_axis(70 * GIB, 80 * GIB, 12);
        assert_eq!((axis.top, axis.ticks[0], axis.ticks[1]), (80 * GIB, 80 * GIB, 64 * GIB));
    }

    #[test]
    fn axes_bear_any_figures() {
        for most in [0, 1, u64::MAX / 2, u64::MAX] {
            for rows in [0, 1, 50] {
                for total in [0, 1, u64::MAX] {
                    let axis = byte_axis(most, total, rows);
                    assert!(axis.top >= most.min(u64::MAX / 2) && axis.ticks.len() < 40, "{most} {rows} {total}");
                }
            }
        }
        assert!(column_width(u64::MAX, 1, true) > 0 && time_step(u64::MAX, 9) > 0);
    }

    #[test]
    fn columns_grow_in_steps() {
        // GIVEN a run that continues WHEN it gets a little longer THEN columns stay unchanged
        let second = 1_000_000_000;
        assert_eq!(column_width(101 * second, 100, true), column_width(120 * second, 100, true));
        assert!(column_width(126 * second, 100, true) > column_width(120 * second, 100, true));
        assert_eq!(time_step(second, 12), 15 * second);
    }
}
