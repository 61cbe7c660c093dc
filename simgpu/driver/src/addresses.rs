//! Addresses of large blocks, chosen as by NVIDIA's driver: PyTorch's allocator takes free blocks of equal size in the
//! order of their addresses.

use std::ffi::c_void;
use std::io;
use std::sync::{Mutex, PoisonError};

use memlab_predict::allocator::AddressSpace;

/// Granularity of large blocks.
pub const GRANULE: u64 = 2 << 20;

/// Start of the range, far from the addresses that Linux chooses.
const BEGIN: u64 = 0x1000_0000_0000;
const END: u64 = 0x4000_0000_0000;

/// Device of the address space that a program reserves.
pub const NO_DEVICE: usize = usize::MAX;

static SPACE: Mutex<AddressSpace> = Mutex::new(AddressSpace::new(BEGIN, END));

/// Maps `bytes`, not necessarily a multiple of [`GRANULE`], at a multiple of it.
///
/// Returns `None` if the address space is full.
pub fn map(device: usize, bytes: u64, protection: i32) -> Option<u64> {
    let mut space = SPACE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = bytes.checked_next_multiple_of(GRANULE)?;
    loop {
        let address = space.take(device, bytes)?;
        match map_at(address, bytes, protection) {
            Ok(true) => return Some(address),
            // Other memory is mapped there. The range stays taken and is never tried again.
            Ok(false) => {}
            Err(_) => {
                space.give_back(address);
                return None;
            }
        }
    }
}

/// Forgets the range at `address`, if [`map`] returned it, and returns its length.
pub fn forget(address: u64) -> Option<u64> {
    SPACE.lock().unwrap_or_else(PoisonError::into_inner).give_back(address)
}

/// Maps memory at exactly this address; returns false if it is taken.
fn map_at(address: u64, bytes: u64, protection: i32) -> io::Result<bool> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
    let mapped = unsafe { libc::mmap(address as *mut c_void, bytes as usize, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::EEXIST) { Ok(false) } else { Err(error) };
    }
    // Before Linux 4.17 the flag is only a hint.
    if mapped as u64 != address {
        // SAFETY: the mapping was just made, and nobody knows of it.
        unsafe { libc::munmap(mapped, bytes as usize) };
    }
    Ok(mapped as u64 == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_others_is_never_taken() {
        // GIVEN a block, and foreign memory right below, at the place of the next chunk
        let first = map(0, 32 << 20, libc::PROT_NONE).unwrap();
        let others = first - GRANULE;
        assert!(map_at(others, GRANULE, libc::PROT_NONE).unwrap());
        // WHEN more is mapped
        let second = map(0, 32 << 20, libc::PROT_NONE).unwrap();
        // THEN it is elsewhere
        assert!(second + (32 << 20) <= others);
        // AND the unmapped range can be mapped again
        assert_eq!(forget(second), Some(32 << 20));
        // SAFETY: the range was mapped by this test.
        unsafe { libc::munmap(second as *mut c_void, 32 << 20) };
        assert_eq!(map(0, 32 << 20, libc::PROT_NONE), Some(second));
        assert_eq!(forget(1), None);
    }
}
