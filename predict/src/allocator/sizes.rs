//! Constants of `CUDACachingAllocator.cpp`, and roundings that do not depend on settings.

const MIB: u64 = 1 << 20;

/// Every block size is a multiple of this (`kMinBlockSize`).
pub const MIN_BLOCK: u64 = 512;

/// Largest request of the small pool (`kSmallSize`). A large block is split only if the rest exceeds it.
pub const SMALL_ALLOCATION: u64 = MIB;

/// Size of the small pool's segments (`kSmallBuffer`), and of its pages in expandable segments.
pub const SMALL_SEGMENT: u64 = 2 * MIB;

/// Size of segments for requests below [`MIN_LARGE_ALLOCATION`] (`kLargeBuffer`), and of the large pool's pages in
/// expandable segments.
///
/// `large_segment_size_mb` changes it.
pub const LARGE_SEGMENT: u64 = 20 * MIB;

/// Requests of at least this size get a segment each (`kMinLargeAlloc`).
pub const MIN_LARGE_ALLOCATION: u64 = 10 * MIB;

/// Sizes of single-request segments are multiples of this (`kRoundLarge`), as is the memory that the driver takes for
/// one.
pub const ROUND_LARGE: u64 = 2 * MIB;

/// Returns the next multiple of `step`, which need not be a power of two.
pub fn round_up(size: u64, step: u64) -> u64 {
    size.div_ceil(step) * step
}

/// Rounds up to the next of the `divisions` equal parts between two powers of two (`roundup_power2_next_division`).
pub fn round_up_to_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1 << size.ilog2();
    match floor >> divisions.ilog2() {
        0 => floor << 1,
        step => round_up(size, step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_between_powers_of_two() {
        // The example in PyTorch's source: with 4 divisions, 1200 lies between the steps 1024, 1280, 1536, 1792 and
        // 2048.
        assert_eq!(round_up_to_division(1200, 4), 1280);
        assert_eq!(round_up_to_division(1280, 4), 1280);
        assert_eq!(round_up_to_division(1793, 4), 2048);
        assert_eq!(round_up_to_division(2048, 4), 2048);
        assert_eq!(round_up_to_division(3, 8), 4);
    }
}
