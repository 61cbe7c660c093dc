//! Queries: versions, texts, times and numbers.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

use crate::calls::THREAD_IDS;
use crate::clock::{self, Timestamp};
use crate::result::{INVALID_PARAMETER, SUCCESS};
use crate::{ids, result};

/// `CUPTI_API_VERSION` of CUDA 13.2, and of CUDA 12.8.
const VERSION_13: u32 = 130_202;
const VERSION_12: u32 = 26;

/// Writes an answer.
///
/// # Safety
/// `to` is null or has room for a `T`.
unsafe fn answer<T>(to: *mut T, value: T) -> u32 {
    if to.is_null() {
        return INVALID_PARAMETER;
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    SUCCESS
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetVersion(version: *mut u32) -> u32 {
    // SAFETY: the name is NUL-terminated, and RTLD_NOLOAD only looks.
    let loaded = |name: &CStr| unsafe { !libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null() };
    let is_12 = loaded(c"libcudart.so.12") && !loaded(c"libcudart.so.13");
    // SAFETY: the caller's promise.
    unsafe { answer(version, if is_12 { VERSION_12 } else { VERSION_13 }) }
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetResultString(code: u32, text: *mut *const c_char) -> u32 {
    match result::name(code) {
        // SAFETY: the caller's promise.
        Some(name) => unsafe { answer(text, name.as_ptr()) },
        None => INVALID_PARAMETER,
    }
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetTimestamp(time: *mut u64) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { answer(time, clock::now()) }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityRegisterTimestampCallback(clock: Option<Timestamp>) -> u32 {
    let Some(clock) = clock else { return INVALID_PARAMETER };
    clock::set(clock);
    SUCCESS
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetContextId(context: usize, id: *mut u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { answer(id, ids::context(context)) }
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetStreamId(_context: usize, stream: usize, id: *mut u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { answer(id, ids::stream(stream)) }
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetStreamIdEx(_context: usize, stream: usize, _per_thread: u8, id: *mut u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { answer(id, ids::stream(stream)) }
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetGraphExecId(graph: usize, id: *mut u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { answer(id, ids::graph(graph)) }
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetGraphNodeId(node: usize, id: *mut u64) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { answer(id, ids::node(node)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiSetThreadIdType(kind: u32) -> u32 {
    if kind > 1 {
        return INVALID_PARAMETER;
    }
    THREAD_IDS.store(kind, Ordering::Relaxed);
    SUCCESS
}

/// # Safety
/// As [`answer`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetThreadIdType(kind: *mut u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { answer(kind, THREAD_IDS.load(Ordering::Relaxed)) }
}
