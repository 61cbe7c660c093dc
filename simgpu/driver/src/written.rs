//! Tracks device memory written by copies and fills, and clears it when PyTorch's allocator hands it out again.
//!
//! Kernels do nothing. Without the clearing, a result in reused memory would contain an earlier tensor's data.

use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, PoisonError};

use rangemap::RangeSet;

use crate::pages;

static WRITTEN: LazyLock<Mutex<RangeSet<u64>>> = LazyLock::new(Mutex::default);

fn with<T>(work: impl FnOnce(&mut RangeSet<u64>) -> T) -> T {
    work(&mut WRITTEN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Records a write to device memory.
pub fn note(address: u64, bytes: u64) {
    if bytes > 0 {
        with(|written| written.insert(address..address + bytes));
    }
}

/// Forgets addresses that are no longer in use.
pub fn forget(address: u64, bytes: u64) {
    if bytes > 0 {
        with(|written| written.remove(address..address + bytes));
    }
}

/// Zeroes written memory that the program is about to use.
///
/// # Safety
///
/// Memory of this driver in the range must be mapped, writable and unused. Other addresses are ignored.
#[unsafe(no_mangle)]
unsafe extern "C" fn simgpu_clear(block: *mut c_void, bytes: usize) {
    let (begin, end) = (block as u64, (block as u64).saturating_add(bytes as u64));
    if begin >= end {
        return;
    }
    let parts: Vec<_> = with(|written| {
        let parts = written.overlapping(begin..end).map(|part| part.start.max(begin)..part.end.min(end)).collect();
        written.remove(begin..end);
        parts
    });
    for part in parts {
        // SAFETY: what was written to is memory of this driver's, and the caller vouches for it.
        unsafe { pages::zero(part.start, part.end - part.start) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_memory_is_cleared() {
        // GIVEN memory with two recorded writes
        let mut memory = vec![7_u8; 1 << 18];
        let base = memory.as_mut_ptr() as u64;
        note(base + 100, 50);
        note(base + 1000, 100_000);
        // WHEN a block is handed out that contains the end of one and the start of the other; THEN these are zeros
        // SAFETY: within the vector.
        unsafe { simgpu_clear((base + 120) as *mut c_void, 80_000) };
        let zeros = |at: usize| (120..150).contains(&at) || (1000..80_120).contains(&at);
        assert!(memory.iter().enumerate().all(|(at, byte)| (*byte == 0) == zeros(at)));
        // AND the rest stays recorded, unless it is forgotten
        memory.fill(7);
        forget(base + 90_000, 1000);
        // SAFETY: within the vector.
        unsafe { simgpu_clear(base as *mut c_void, 1 << 18) };
        let zeros =
            |at: usize| (100..120).contains(&at) || (80_120..90_000).contains(&at) || (91_000..101_000).contains(&at);
        assert!(memory.iter().enumerate().all(|(at, byte)| (*byte == 0) == zeros(at)));
        // AND addresses without memory are ignored
        // SAFETY: nothing was written there.
        unsafe { simgpu_clear(8 as *mut c_void, 512) };
    }
}
