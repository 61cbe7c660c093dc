//! Reports handovers between threads to ThreadSanitizer, in programs that are built with it.
//!
//! ThreadSanitizer sees the calls of libmemlab that it intercepts (mmap, memset), but not the atomics that order them, since
//! libmemlab is built without it. It would report false races to the program's author.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::sync::LazyLock;

use crate::symbols::in_process;

type Annotate = unsafe extern "C" fn(*mut c_void);

/// The sanitizer's function, in a program that has it.
fn annotation(symbol: &CStr) -> Option<Annotate> {
    // SAFETY: a null pointer is None, and the signature is that of the sanitizer's interface.
    unsafe { transmute(in_process(symbol)) }
}

/// Orders everything that this thread did so far before everything after [`taken_over`] with the same address.
#[inline]
pub fn handed_over<T>(address: *const T) {
    static RELEASE: LazyLock<Option<Annotate>> = LazyLock::new(|| annotation(c"__tsan_release"));
    if let Some(release) = *RELEASE {
        // SAFETY: the address only names the order; nothing is read.
        unsafe { release(address.cast_mut().cast()) };
    }
}

/// Orders everything before [`handed_over`] with the same address before everything that this thread does next.
#[inline]
pub fn taken_over<T>(address: *const T) {
    static ACQUIRE: LazyLock<Option<Annotate>> = LazyLock::new(|| annotation(c"__tsan_acquire"));
    if let Some(acquire) = *ACQUIRE {
        // SAFETY: the address only names the order; nothing is read.
        unsafe { acquire(address.cast_mut().cast()) };
    }
}
