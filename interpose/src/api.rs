//! C functions of `include/memlab.h`, which the program calls.

use std::ffi::{CStr, c_char, c_double, c_int};
use std::time::Duration;

use memlab_trace::encode::{self, LineBuffer};

use crate::compaction;
use crate::control;
use crate::limit::settings;
use crate::moved_bytes;
use crate::mover::operation::{self, MoveRequest};
use crate::python::holders;
use crate::ranges;
use crate::recorder::Recorder;
use interpose_base::config;
use interpose_base::log::live::{self, ReadOutcome};
use interpose_base::log::trace_path;
use interpose_base::panics;
use interpose_base::recursion::RecursionGuard;
use memlab_protocol::c_api::{Position, Trained};
use memlab_protocol::request::{MAX_DEVICES, MAX_TIMEOUT, is_limit};
use memlab_protocol::status::OnLimit;

/// Maximum length of a line of requests, in bytes.
const MAX_REQUESTS_LINE_BYTES: usize = 16 << 10;

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

/// Converts a timeout from C's seconds, at most [`MAX_TIMEOUT`]; zero for a negative or invalid value.
fn duration(seconds: c_double) -> Duration {
    let asked = Duration::try_from_secs_f64(seconds);
    asked.unwrap_or(if seconds > 0.0 { MAX_TIMEOUT } else { Duration::ZERO }).min(MAX_TIMEOUT)
}

fn finish(request: MoveRequest, timeout: Duration) -> Result<(), String> {
    operation::start(request, timeout)?.wait()
}

/// # Safety
///
/// `error` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_offload(timeout_s: c_double, error: *mut c_char, size: usize) -> c_int {
    let outcome = panics::catch(|| finish(MoveRequest::Offload, duration(timeout_s)));
    // SAFETY: the caller promises null or room for `size` bytes.
    unsafe { answer(outcome, error, size) }
}

/// # Safety
///
/// The calling thread holds Python's GIL. `error` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_search_holders(error: *mut c_char, size: usize) -> u32 {
    let outcome = panics::catch(|| {
        let recorder = Recorder::current().ok_or("nothing has been recorded yet: this process has not used CUDA")?;
        // SAFETY: the caller holds the GIL, and calls from Python, between two operations of PyTorch.
        unsafe { holders::search_now(recorder) }
    });
    let mut number = 0;
    let outcome = outcome.map(|found| found.map(|found| number = found));
    // SAFETY: the caller promises null or room for `size` bytes.
    unsafe { answer(outcome, error, size) };
    number
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
    let request = MoveRequest::Restore { free_host: free_host != 0 };
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
    if device != ALL && !(0..MAX_DEVICES as c_int).contains(&device) {
        return Err(format!("{device} is not a device: use 0 for the first, or -1 for all"));
    }
    if bytes != NONE && !is_limit(bytes) {
        return Err(format!("{bytes} bytes is not a limit: use UINT64_MAX to remove the limit"));
    }
    let spill = match spill {
        -1 => None,
        0 | 1 => Some(OnLimit::spilling(spill == 1)),
        other => return Err(format!("{other} is not an action at the limit: use 0, 1 or -1")),
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

/// # Safety
///
/// `position` and `restarted` are writable, and `lines` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_read(
    position: *mut Position,
    lines: *mut c_char,
    size: usize,
    restarted: *mut c_int,
) -> usize {
    // SAFETY: the caller promises that these are writable and this large.
    let (position, buffer, restarted) =
        unsafe { (&mut *position, std::slice::from_raw_parts_mut(lines.cast::<u8>(), size), &mut *restarted) };
    *restarted = 0;
    panics::catch(|| {
        let Some(recorder) = Recorder::current() else {
            *restarted = c_int::from(position.recording != 0);
            *position = Position { recording: 0, bytes: 0 };
            return 0;
        };
        if position.recording != recorder.serial() {
            *restarted = c_int::from(position.recording != 0);
            *position = Position { recording: recorder.serial(), bytes: 0 };
        }
        sample_if_due(recorder);
        loop {
            match live::read(&recorder.log, &mut position.bytes, buffer) {
                ReadOutcome::Bytes(bytes) => return bytes,
                ReadOutcome::Needs(bytes) => return bytes.max(size + 1),
                ReadOutcome::Restarted => *restarted = 1,
            }
        }
    })
    .unwrap_or(0)
}

/// Queries the driver for the use of cards that changed.
///
/// The control thread would do this slightly later.
fn sample_if_due(recorder: &Recorder) {
    if recorder.sampler.is_due()
        && let Some(_guard) = RecursionGuard::enter()
        && moved_bytes::record(recorder)
    {
        recorder.sample_cards(false);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn memlab_position() -> u64 {
    Recorder::current().map_or(0, |recorder| live::end(&recorder.log))
}

#[unsafe(no_mangle)]
pub extern "C" fn memlab_ask() {
    if let Some(recorder) = Recorder::current() {
        recorder.python.request_call();
    }
}

/// # Safety
///
/// `path` is null or a C string; `error` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_output(path: *const c_char, error: *mut c_char, size: usize) -> c_int {
    let path = if path.is_null() {
        trace_path::IN_MEMORY.to_owned()
    } else {
        // SAFETY: not null, so the caller promises a C string.
        unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned()
    };
    let outcome = panics::catch(|| set_output(path));
    // SAFETY: the caller promises null or room for `size` bytes.
    unsafe { answer(outcome, error, size) }
}

fn set_output(pattern: String) -> Result<(), String> {
    if !config::enabled() {
        return Err("memlab is switched off (MEMLAB=0)".to_owned());
    }
    let outcome = match Recorder::current() {
        None => Ok(()),
        Some(recorder) => {
            let path = config::output_path(&pattern, &config::program_name(&recorder.facts.command));
            let path = if pattern == trace_path::IN_MEMORY {
                path
            } else {
                std::env::current_dir().map_or_else(|_| path.clone(), |directory| directory.join(&path))
            };
            compaction::continue_in(recorder, path)
        }
    };
    if outcome.is_ok() {
        config::set_output(pattern);
    }
    outcome
}

/// # Safety
///
/// `name` is null or ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_range_push(name: *const c_char) {
    // SAFETY: not null, so the caller promises a NUL.
    let name = if name.is_null() { &[] } else { unsafe { CStr::from_ptr(name) }.to_bytes() };
    ranges::push(ranges::open::MEMLAB, name);
}

#[unsafe(no_mangle)]
pub extern "C" fn memlab_range_pop() {
    ranges::pop(ranges::open::MEMLAB);
}

/// # Safety
///
/// `entries` has `count` entries of six numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_requests(device: c_int, entries: *const [u64; 6], count: usize) {
    let Some(recorder) = Recorder::current() else { return };
    if entries.is_null() {
        return;
    }
    // SAFETY: not null, so the caller promises that many.
    let mut left = unsafe { std::slice::from_raw_parts(entries, count) };
    let mut buffer = Box::new(LineBuffer::<MAX_REQUESTS_LINE_BYTES>::new());
    while !left.is_empty() {
        let (line, written) = encode::requests(&mut buffer, device, left);
        recorder.log.append(line);
        left = &left[written..];
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn memlab_steps() -> u64 {
    Recorder::current().map_or(0, Recorder::steps)
}

/// # Safety
///
/// `step` is readable, and its texts are null or end in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memlab_trained(step: *const Trained) {
    // SAFETY: the caller promises that it is readable.
    let (Some(recorder), Some(step)) = (Recorder::current(), unsafe { step.as_ref() }) else { return };
    // SAFETY: not null, so the caller promises a NUL.
    let text = |text: *const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes());
    let record = encode::Trained {
        step: step.step,
        epoch: step.epoch,
        batch: step.batch,
        phase: text(step.phase),
        samples: step.samples,
        duration: step.duration_ns,
        loss: (step.has_loss != 0).then_some(step.loss),
        way: text(step.way),
        pieces: step.pieces,
        offloaded: step.offloaded_bytes,
    };
    recorder.log.append(encode::trained(&mut LineBuffer::<1024>::new(), &record));
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
        assert_eq!(duration(f64::INFINITY), MAX_TIMEOUT);
    }
}
