//! Host pages that serve as device memory.

use std::ffi::{CStr, c_void};

use crate::addresses::{self, GRANULE, NO_DEVICE};

/// Size of a page of host memory.
pub const PAGE: u64 = 4096;

/// Maps zeroed memory of a device, committed when touched; returns `None` if the address space is full.
pub fn map(device: usize, bytes: u64, alignment: u64) -> Option<u64> {
    if alignment == GRANULE
        && let Some(address) = addresses::map(device, bytes, libc::PROT_READ | libc::PROT_WRITE)
    {
        return Some(address);
    }
    let alignment = alignment.max(PAGE);
    let slack = if alignment > PAGE { alignment } else { 0 };
    let address = map_any(bytes.checked_add(slack)?, libc::PROT_READ | libc::PROT_WRITE)?;
    let aligned = address.next_multiple_of(alignment);
    unmap(address, aligned - address);
    unmap(aligned + bytes, address + slack - aligned);
    Some(aligned)
}

/// Reserves address space without access.
pub fn reserve(bytes: u64, alignment: u64, hint: u64) -> Option<u64> {
    if hint != 0 {
        // SAFETY: a hint without MAP_FIXED cannot replace a mapping.
        let address = unsafe {
            libc::mmap(
                hint as *mut c_void,
                bytes as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address != libc::MAP_FAILED {
            if (address as u64).is_multiple_of(alignment) {
                return Some(address as u64);
            }
            unmap(address as u64, bytes);
        }
    }
    if alignment == GRANULE
        && let Some(address) = addresses::map(NO_DEVICE, bytes, libc::PROT_NONE)
    {
        return Some(address);
    }
    let address = map_any(bytes.checked_add(alignment)?, libc::PROT_NONE)?;
    let aligned = address.next_multiple_of(alignment);
    unmap(address, aligned - address);
    unmap(aligned + bytes, address + alignment - aligned);
    Some(aligned)
}

fn map_any(bytes: u64, protection: i32) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), usize::try_from(bytes).ok()?, protection, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address as u64)
}

/// Unmaps pages.
pub fn unmap(address: u64, bytes: u64) {
    let bytes = addresses::forget(address).unwrap_or(bytes);
    if bytes > 0 {
        // SAFETY: callers pass ranges that they mapped and that are no longer used.
        unsafe { libc::munmap(address as *mut c_void, bytes as usize) };
    }
}

/// Creates a memfd of `bytes` zeros.
pub fn file(name: &CStr, bytes: u64) -> Option<i32> {
    // SAFETY: `name` is NUL-terminated.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: `fd` was just created.
    if unsafe { libc::ftruncate(fd, bytes as i64) } != 0 {
        close(fd);
        return None;
    }
    Some(fd)
}

/// Closes a file this driver opened.
pub fn close(fd: i32) {
    // SAFETY: callers own the descriptor and do not use it again.
    unsafe { libc::close(fd) };
}

/// Maps `bytes` of a file at exactly `address` and replaces the existing mapping.
pub fn map_file_at(address: u64, bytes: u64, fd: i32, offset: u64, protection: i32) -> bool {
    // SAFETY: callers own the address range: it is reserved, or its memory is to be replaced.
    let result = unsafe {
        libc::mmap(
            address as *mut c_void,
            bytes as usize,
            protection,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
            fd,
            offset as i64,
        )
    };
    result != libc::MAP_FAILED
}

/// Maps `bytes` of a file at any address.
pub fn map_file(bytes: u64, fd: i32) -> Option<u64> {
    let address = reserve(bytes, GRANULE, 0)?;
    if map_file_at(address, bytes, fd, 0, libc::PROT_READ | libc::PROT_WRITE) {
        return Some(address);
    }
    unmap(address, bytes);
    None
}

/// Makes a range inaccessible again and keeps the addresses reserved.
pub fn vacate(address: u64, bytes: u64) {
    // SAFETY: callers own the address range.
    unsafe {
        libc::mmap(
            address as *mut c_void,
            bytes as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
}

/// Sets the protection of a range.
pub fn protect(address: u64, bytes: u64, protection: i32) {
    // SAFETY: callers own the address range.
    unsafe { libc::mprotect(address as *mut c_void, bytes as usize, protection) };
}

/// Copies a range to another that does not overlap it.
///
/// Zeros take no memory in the copy either. Memory that only kernels have written to is zero.
///
/// # Safety
/// Both ranges are mapped device memory of this driver, the first one writable.
pub unsafe fn copy(to: u64, from: u64, bytes: u64) {
    const PIECE: u64 = 2 << 20;
    for offset in (0..bytes).step_by(PIECE as usize) {
        let count = PIECE.min(bytes - offset);
        let (to, from) = (to + offset, from + offset);
        // SAFETY: both pieces are parts of the ranges that the caller vouches for.
        unsafe {
            let piece = std::slice::from_raw_parts(from as *const u8, count as usize);
            // SAFETY: any eight bytes are a number.
            let (start, middle, end) = piece.align_to::<u64>();
            if middle.iter().all(|word| *word == 0) && start.iter().chain(end).all(|byte| *byte == 0) {
                zero(to, count);
            } else {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, count as usize);
            }
        }
    }
}

/// Zeroes a range. Large ranges return their whole pages to the system instead of writing to them.
///
/// # Safety
/// The range is mapped, writable device memory of this driver.
pub unsafe fn zero(address: u64, bytes: u64) {
    const MIN_REMOVED_BYTES: u64 = 64 << 10;
    let end = address + bytes;
    let (first, last) = (address.next_multiple_of(PAGE), end / PAGE * PAGE);
    if bytes >= MIN_REMOVED_BYTES {
        let inner = (last - first) as usize;
        // MADV_DONTNEED does not clear shared file pages. MADV_REMOVE does, and fails on private pages.
        // SAFETY: the range is this driver's; both calls leave it mapped and reading as zeros.
        let emptied = unsafe {
            libc::madvise(first as *mut c_void, inner, libc::MADV_REMOVE) == 0
                || libc::madvise(first as *mut c_void, inner, libc::MADV_DONTNEED) == 0
        };
        if emptied {
            // SAFETY: the edges are inside the range that the caller vouches for.
            unsafe {
                std::ptr::write_bytes(address as *mut u8, 0, (first - address) as usize);
                std::ptr::write_bytes(last as *mut u8, 0, (end - last) as usize);
            }
            return;
        }
    }
    // SAFETY: the caller vouches for the range.
    unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes as usize) };
}
