//! Round numbers for axes.

/// A power of two of bytes, so that a tick is a whole number of its unit, which fits into `top` at most six times.
pub(crate) fn bytes_step(top: f64) -> u64 {
    let mut step = 1_u64;
    while top / step as f64 > 6.0 && step < 1 << 62 {
        step *= 2;
    }
    step
}

/// The least of 1, 2, 5, 10, 20 … that fits into `whole` at most `times`.
pub(crate) fn decimal_step(whole: u64, times: u64) -> u64 {
    let decimal = (0..19).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
    decimal.into_iter().find(|step| whole / step <= times).unwrap_or(u64::MAX)
}
