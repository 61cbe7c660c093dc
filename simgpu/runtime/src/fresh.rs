//! Blocks of PyTorch's allocator, which hands memory out again: what a kernel would have computed there reads as zeros.
//!
//! Kernels do nothing. Without this, a result in reused memory would be what an earlier tensor has left there.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// c10::reportMemoryUsageToProfiler(void*, long, unsigned long, unsigned long, c10::Device)
const SYMBOL: &CStr = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
/// `c10::DeviceType::CUDA`, in the lowest byte of a device.
const CUDA: u8 = 1;
const PAGE: usize = 4096;
/// Beyond this, pages are given back instead of being read.
const LARGE: usize = 64 << 10;

type Report = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, u16);

/// PyTorch's allocator has handed a block out (`size` > 0) or taken it back.
///
/// # Safety
///
/// Must be called as PyTorch calls its own function.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
pub unsafe extern "C-unwind" fn report(block: *mut c_void, size: i64, allocated: usize, reserved: usize, device: u16) {
    if device.to_le_bytes()[0] == CUDA && size > 0 {
        // SAFETY: the block is memory of the simulated driver, which the program may write to from now on.
        unsafe { clear(block.cast(), size as usize) };
    }
    if let Some(real) = pytorchs() {
        // SAFETY: PyTorch's own function with the arguments it was called with.
        unsafe { real(block, size, allocated, reserved, device) };
    }
}

fn pytorchs() -> Option<Report> {
    static FOUND: OnceLock<Option<Report>> = OnceLock::new();
    // SAFETY: RTLD_NOLOAD loads nothing, and the library stays loaded: its code calls this. The type is that of the symbol.
    *FOUND.get_or_init(|| unsafe {
        let library = libc::dlopen(c"libc10.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let found = if library.is_null() { library } else { libc::dlsym(library, SYMBOL.as_ptr().cast::<c_char>()) };
        (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, Report>(found))
    })
}

/// Makes memory zeros, and takes no pages for that.
///
/// # Safety
///
/// It must be mapped and writable, and nobody else uses it.
unsafe fn clear(begin: *mut u8, bytes: usize) {
    let address = begin as usize;
    let (first, last) = (address.next_multiple_of(PAGE), (address + bytes) / PAGE * PAGE);
    if bytes < LARGE {
        // SAFETY: the caller vouches for the range.
        unsafe { clear_by_reading(begin, bytes) };
        return;
    }
    // SAFETY: the pages are within the range. MADV_DONTNEED does not clear shared pages of a file, MADV_REMOVE does.
    unsafe {
        clear_by_reading(begin, first - address);
        let inner = begin.add(first - address).cast::<c_void>();
        if libc::madvise(inner, last - first, libc::MADV_REMOVE) != 0
            && libc::madvise(inner, last - first, libc::MADV_DONTNEED) != 0
        {
            clear_by_reading(inner.cast(), last - first);
        }
        clear_by_reading(begin.add(last - address), address + bytes - last);
    }
}

/// Writes only where there is something: pages that were never written to stay so.
///
/// # Safety
///
/// As for [`clear`].
unsafe fn clear_by_reading(begin: *mut u8, bytes: usize) {
    // SAFETY: the caller vouches for the range; any bytes are words.
    unsafe {
        let whole = std::slice::from_raw_parts_mut(begin, bytes);
        for piece in whole.chunks_mut(PAGE) {
            let (start, middle, end) = piece.align_to::<u64>();
            if middle.iter().any(|word| *word != 0) || start.iter().chain(end).any(|byte| *byte != 0) {
                piece.fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeros_and_its_neighbours_are_as_before() {
        for (begin, bytes) in [(0, 1), (7, 512), (100, LARGE - 1), (3, LARGE), (PAGE, 3 * LARGE), (4095, 3 * LARGE + 9)]
        {
            // GIVEN memory that was written to; WHEN a part is cleared, THEN that part is zeros
            let mut memory = vec![7_u8; 4 * LARGE + 2 * PAGE];
            // SAFETY: the range is within the vector.
            unsafe { clear(memory.as_mut_ptr().add(begin), bytes) };
            let part = begin..begin + bytes;
            assert!(memory.iter().enumerate().all(|(at, byte)| *byte == if part.contains(&at) { 0 } else { 7 }));
        }
    }
}
