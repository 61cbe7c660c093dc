//! The Activity API.

use std::ffi::c_void;
use std::time::Duration;

use crate::buffers::{self, Complete, Request};
use crate::names::Domain;
use crate::result::{INVALID_KIND, INVALID_PARAMETER, MAX_LIMIT_REACHED, QUEUE_EMPTY, SUCCESS};
use crate::settings::{self, KINDS};
use crate::{external, records, source, subscriber};

fn want(kind: u32, wanted: bool) -> u32 {
    if kind == 0 || kind >= KINDS {
        return INVALID_KIND;
    }
    settings::want(kind, wanted);
    source::update();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityRegisterCallbacks(request: Option<Request>, complete: Option<Complete>) -> u32 {
    let (Some(request), Some(complete)) = (request, complete) else { return INVALID_PARAMETER };
    buffers::register(request, complete);
    SUCCESS
}

/// Accepts kinds without records here, too.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnable(kind: u32) -> u32 {
    want(kind, true)
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityDisable(kind: u32) -> u32 {
    want(kind, false)
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableContext(_context: *mut c_void, kind: u32) -> u32 {
    want(kind, true)
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityDisableContext(_context: *mut c_void, kind: u32) -> u32 {
    want(kind, false)
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableRuntimeApi(callback: u32, enable: u8) -> u32 {
    if settings::want_calls(Domain::Runtime, callback, enable != 0) { SUCCESS } else { INVALID_PARAMETER }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableDriverApi(callback: u32, enable: u8) -> u32 {
    if settings::want_calls(Domain::Driver, callback, enable != 0) { SUCCESS } else { INVALID_PARAMETER }
}

/// All work is done when it is submitted, so unforced and forced flushes return the same records.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityFlushAll(_flag: u32) -> u32 {
    buffers::flush();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityFlushPeriod(milliseconds: u32) -> u32 {
    buffers::set_period(Duration::from_millis(milliseconds.into()));
    SUCCESS
}

/// # Safety
/// The buffer is one that was returned, and `record` points to null or to a record in it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiActivityGetNextRecord(buffer: *mut u8, bytes: usize, record: *mut *mut u8) -> u32 {
    if buffer.is_null() || record.is_null() {
        return INVALID_PARAMETER;
    }
    // SAFETY: the caller's promise; each record begins with its kind.
    unsafe {
        let next = match *record {
            last if last.is_null() => Some(buffer),
            last => records::length(last.cast::<u32>().read()).map(|length| last.add(length)),
        };
        match next {
            Some(next) if (next as usize) < buffer as usize + bytes => *record = next,
            Some(_) => return MAX_LIMIT_REACHED,
            None => return INVALID_KIND,
        }
    }
    SUCCESS
}

/// # Safety
/// `dropped` is null or has room for a size.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiActivityGetNumDroppedRecords(
    _context: *mut c_void,
    _stream: u32,
    dropped: *mut usize,
) -> u32 {
    if dropped.is_null() {
        return INVALID_PARAMETER;
    }
    // SAFETY: the caller's promise.
    unsafe { *dropped = buffers::take_dropped() };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) -> u32 {
    if external::push(kind, id) { SUCCESS } else { INVALID_PARAMETER }
}

/// # Safety
/// `last` is null or has room for an id.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiActivityPopExternalCorrelationId(kind: u32, last: *mut u64) -> u32 {
    match external::pop(kind) {
        Some(Some(id)) => {
            if !last.is_null() {
                // SAFETY: the caller's promise.
                unsafe { *last = id };
            }
            SUCCESS
        }
        Some(None) => QUEUE_EMPTY,
        None => INVALID_PARAMETER,
    }
}

/// Accepts attributes, such as sizes of CUPTI's own buffers, which do not exist here.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivitySetAttribute(_attribute: u32, size: *const usize, value: *const c_void) -> u32 {
    if size.is_null() || value.is_null() { INVALID_PARAMETER } else { SUCCESS }
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableLatencyTimestamps(_enable: u8) -> u32 {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiActivityEnableCudaEventDeviceTimestamps(_enable: u8) -> u32 {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuptiFinalize() -> u32 {
    settings::want_nothing();
    subscriber::unsubscribe();
    source::update();
    buffers::flush();
    SUCCESS
}
