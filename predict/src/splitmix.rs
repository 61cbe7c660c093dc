//! Numbers that look random. A forecast is the same whenever it is made, so their sequence never changes.

/// What SplitMix64 is advanced by.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of SplitMix64 in a state.
pub fn splitmix64(state: u64) -> u64 {
    let mut number = state;
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
