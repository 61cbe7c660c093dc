//! Pseudorandom numbers. Their sequence never changes, so that forecasts are reproducible.

/// Increment of SplitMix64.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the SplitMix64 number of a state.
pub fn splitmix64(state: u64) -> u64 {
    let mut number = state;
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
