//! The addresses of large blocks: always the lowest gap that is large enough, as NVIDIA's driver chooses them. PyTorch's
//! allocator takes free blocks of equal size in the order of their addresses, so this is part of what a card is.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// The granularity of large blocks.
pub const GRANULE: u64 = 2 << 20;

/// Far from the addresses that Linux chooses.
const BEGIN: u64 = 0x1000_0000_0000;
const END: u64 = 0x4000_0000_0000;

struct Window {
    /// Ranges in use, by their beginning.
    used: BTreeMap<u64, u64>,
    /// There is no gap below.
    lowest_gap: u64,
}

static WINDOW: Mutex<Window> = Mutex::new(Window { used: BTreeMap::new(), lowest_gap: BEGIN });

/// Maps `bytes`, a multiple of [`GRANULE`] or not, at a multiple of it. `None` if the window or the address space is full.
pub fn map_lowest(bytes: u64, protection: i32) -> Option<u64> {
    let mut window = WINDOW.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = bytes.checked_next_multiple_of(GRANULE)?;
    let mut address = window.lowest_gap;
    let mut has_skipped_gap = false;
    loop {
        let next = window.used.range(address..).next().map(|(begin, length)| (*begin, begin + length));
        if let Some((begin, end)) = next
            && begin - address < bytes
        {
            has_skipped_gap |= begin > address;
            address = end;
            continue;
        }
        if address + bytes > END {
            return None;
        }
        if map_at(address, bytes, protection) {
            break;
        }
        // Somebody else's memory: never tried again.
        window.used.insert(address, GRANULE);
        address += GRANULE;
    }
    window.used.insert(address, bytes);
    if !has_skipped_gap {
        window.lowest_gap = address + bytes;
    }
    Some(address)
}

/// Forgets the range that begins at `address`, if it is one of the window's, and returns its length.
pub fn forget(address: u64) -> Option<u64> {
    let mut window = WINDOW.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = window.used.remove(&address)?;
    window.lowest_gap = window.lowest_gap.min(address);
    Some(bytes)
}

fn map_at(address: u64, bytes: u64, protection: i32) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
    let mapped = unsafe { libc::mmap(address as *mut c_void, bytes as usize, protection, flags, -1, 0) };
    // Before Linux 4.17 the flag is only a hint.
    if mapped != libc::MAP_FAILED && mapped as u64 != address {
        // SAFETY: the mapping was just made, and nobody knows of it.
        unsafe { libc::munmap(mapped, bytes as usize) };
    }
    mapped as u64 == address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_gap_that_is_large_enough_is_taken() {
        let map = |granules: u64| map_lowest(granules * GRANULE, libc::PROT_NONE).unwrap();
        let first = map(10);
        let (second, third) = (map(1), map(10));
        assert_eq!((second, third), (first + 10 * GRANULE, first + 11 * GRANULE));
        let free = |address| {
            let bytes = forget(address).unwrap();
            // SAFETY: the range was mapped by this test.
            unsafe { libc::munmap(address as *mut c_void, bytes as usize) };
        };
        free(first);
        assert_eq!(map(11), third + 10 * GRANULE);
        assert_eq!((map(4), map(6)), (first, first + 4 * GRANULE));
        assert_eq!(map(1), third + 21 * GRANULE);
        assert_eq!(forget(1), None);
    }
}
