//! Buffers for CUPTI's records.

/// CUPTI asks for a buffer: it gets one of so many bytes.
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

/// Takes a buffer back that CUPTI has filled.
///
/// # Safety
///
/// It is one of [`request`]'s, or null, and is not used any more.
pub unsafe fn free(buffer: *mut u8) {
    // SAFETY: from `malloc`, as the caller says.
    unsafe { libc::free(buffer.cast()) };
}
