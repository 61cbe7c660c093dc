//! The C functions of `include/memlab.h`, which the program itself calls.

use std::ffi::{c_char, c_double, c_int};
use std::time::Duration;

use crate::control;
use crate::limit::card::OnLimit;
use crate::limit::settings;
use crate::mover::operation::{self, Operation};
use crate::panics;
use crate::recorder::Recorder;
use crate::request::{DEVICES, LONGEST_TIMEOUT, is_limit};

/// Writes the text, truncated to `size` bytes with its NUL, and returns the size of the whole text with its NUL.
///
/// # Safety
///
/// `to` is null or has room for `size` bytes.
unsafe fn write(text: &str, to: *mut c_char, size: usize) -> usize {
    if !to.is_null() && size > 0 {
        let mut length = text.len().min(size - 1);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        // SAFETY: not null, so the caller promises `size` bytes, and the NUL is within them.
        unsafe {
            to.copy_from_nonoverlapping(text.as_ptr().cast(), length);
            *to.add(length) = 0;
        }
    }
    text.len() + 1
}

/// # Safety
///
/// `error` is null or has room for `size` bytes.
unsafe fn answer(outcome: Option<Result<(), String>>, error: *mut c_char, size: usize) -> c_int {
    match outcome.unwrap_or_else(|| Err("memlab made a mistake: please report this".to_owned())) {
        Ok(()) => 0,
        Err(why) => {
            // SAFETY: the caller promises null or room for `size` bytes.
            unsafe { write(&why, error, size) };
            -1
        }
    }
}

/// A timeout from C's seconds, at most [`LONGEST_TIMEOUT`]; zero for a negative or invalid value.
fn duration(seconds: c_double) -> Duration {
    let asked = Duration::try_from_secs_f64(seconds);
    asked.unwrap_or(if seconds > 0.0 { LONGEST_TIMEOUT } else { Duration::ZERO }).min(LONGEST_TIMEOUT)
}

fn finish(request: Operation, timeout: Duration) -> Result<(), String> {
    operation::start(request, timeout)?.wait()
}

/// # Safety
///
/// `error` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_offload(timeout_s: c_double, error: *mut c_char, size: usize) -> c_int {
    let outcome = panics::catch(|| finish(Operation::Offload, duration(timeout_s)));
    // SAFETY: the caller promises null or room for `size` bytes.
    unsafe { answer(outcome, error, size) }
}

/// # Safety
///
/// `error` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_restore(
    timeout_s: c_double,
    free_host: c_int,
    error: *mut c_char,
    size: usize,
) -> c_int {
    let request = Operation::Restore { free_host: free_host != 0 };
    let outcome = panics::catch(|| finish(request, duration(timeout_s)));
    // SAFETY: the caller promises null or room for `size` bytes.
    unsafe { answer(outcome, error, size) }
}

/// # Safety
///
/// `error` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_limit(
    device: c_int,
    bytes: u64,
    spill: c_int,
    error: *mut c_char,
    size: usize,
) -> c_int {
    let outcome = panics::catch(|| set_limit(device, bytes, spill));
    // SAFETY: the caller promises null or room for `size` bytes.
    unsafe { answer(outcome, error, size) }
}

fn set_limit(device: c_int, bytes: u64, spill: c_int) -> Result<(), String> {
    const ALL: c_int = -1;
    const NONE: u64 = u64::MAX;
    if device != ALL && !(0..DEVICES as c_int).contains(&device) {
        return Err(format!("{device} is no device: use 0 for the first, or -1 for all"));
    }
    if bytes != NONE && !is_limit(bytes) {
        return Err(format!("{bytes} bytes are no limit: UINT64_MAX takes it away"));
    }
    let spill = match spill {
        -1 => None,
        0 | 1 => Some(OnLimit::spilling(spill == 1)),
        other => return Err(format!("{other} is not what can happen at a limit: use 0, 1 or -1")),
    };
    settings::set((device != ALL).then_some(device), (bytes != NONE).then_some(bytes), spill);
    Ok(())
}

/// # Safety
///
/// `json` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_status(json: *mut c_char, size: usize) -> usize {
    let status = panics::catch(|| Recorder::current().map(|recorder| control::status(recorder).to_string()));
    // SAFETY: the caller promises null or room for `size` bytes.
    status.flatten().map_or(0, |status| unsafe { write(&status, json, size) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_truncated_between_characters() {
        let mut room = [1u8; 8];
        // SAFETY: `room` has at least the size that is passed.
        let needed = unsafe { write("größer", room.as_mut_ptr().cast(), 4) };
        assert_eq!((needed, &room[..5]), (9, &b"gr\0\x01\x01"[..]));
        // SAFETY: null: nothing is written.
        assert_eq!(unsafe { write("abc", std::ptr::null_mut(), 0) }, 4);
    }

    #[test]
    fn invalid_limits_are_refused() {
        for (device, bytes, spill) in [(64, 1, 0), (-2, 1, 0), (61, 0, 0), (61, u64::MAX - 1, 0), (61, 1, 2)] {
            assert!(set_limit(device, bytes, spill).is_err_and(|why| why.contains(':')));
        }
    }

    #[test]
    fn times() {
        assert_eq!(duration(1.5), Duration::from_millis(1500));
        assert_eq!((duration(-1.0), duration(f64::NAN)), (Duration::ZERO, Duration::ZERO));
        assert_eq!(duration(f64::INFINITY), LONGEST_TIMEOUT);
    }
}
