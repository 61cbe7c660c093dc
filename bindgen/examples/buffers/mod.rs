//! Buffers for CUPTI's records.

/// Provides a buffer of `BYTES` bytes at CUPTI's request.
pub unsafe extern "C" fn request<const BYTES: usize>(
    buffer: *mut *mut u8,
    bytes: *mut usize,
    most_records: *mut usize,
) {
    // SAFETY: CUPTI provides the pointers; malloc aligns to at least 8 bytes; 0 means as many records as fit.
    unsafe {
        *buffer = libc::malloc(BYTES).cast();
        *bytes = if (*buffer).is_null() { 0 } else { BYTES };
        *most_records = 0;
    }
}

/// Frees a buffer that CUPTI has filled.
///
/// # Safety
///
/// The buffer is from [`request`], or null, and is no longer used.
pub unsafe fn free(buffer: *mut u8) {
    // SAFETY: from `malloc`, as the caller vouches.
    unsafe { libc::free(buffer.cast()) };
}
