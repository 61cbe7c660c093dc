//! The program's buffers.
//!
//! Threads request the buffers that they fill. A thread of CUPTI returns the full ones, and a flush returns all of them
//! on the calling thread.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use crate::records::Record;

/// `CUpti_BuffersCallbackRequestFunc`.
pub type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);

/// `CUpti_BuffersCallbackCompleteFunc`: context, stream, buffer, size, bytes of records.
pub type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// A buffer of the program.
struct Buffer {
    start: *mut u8,
    size: usize,
    used: usize,
    /// Maximum number of records; 0 for as many as fit.
    most_records: usize,
    records: usize,
}

// SAFETY: from request to completion the memory is CUPTI's, and only one thread at a time has the buffer.
unsafe impl Send for Buffer {}

impl Buffer {
    fn has_room(&self, bytes: usize) -> bool {
        self.size - self.used >= bytes && (self.most_records == 0 || self.records < self.most_records)
    }

    fn add(&mut self, record: &Record) {
        let (from, bytes) = record.bytes();
        // SAFETY: `has_room` was true, and the program vouches for the length of its buffer.
        unsafe { std::ptr::copy_nonoverlapping(from, self.start.add(self.used), bytes) };
        self.used += bytes;
        self.records += 1;
    }
}

struct BufferState {
    callbacks: Option<(Request, Complete)>,
    open: Option<Buffer>,
    full: VecDeque<Buffer>,
    /// Buffers that threads are returning now.
    returning: usize,
    /// Maximum age of an open buffer; zero for no limit.
    period: Duration,
}

static STATE: Mutex<BufferState> = Mutex::new(BufferState {
    callbacks: None,
    open: None,
    full: VecDeque::new(),
    returning: 0,
    period: Duration::ZERO,
});

/// Signals a change of the state.
static CHANGED: Condvar = Condvar::new();

/// Number of records dropped for lack of a buffer since the last query.
static DROPPED: AtomicUsize = AtomicUsize::new(0);

fn state() -> MutexGuard<'static, BufferState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the callbacks that provide buffers and take them back.
pub fn register(request: Request, complete: Complete) {
    static THREAD: Once = Once::new();
    state().callbacks = Some((request, complete));
    THREAD.call_once(|| {
        // If the thread cannot start, only flushes return buffers.
        std::thread::Builder::new().name("cupti".to_owned()).spawn(return_full_buffers).ok();
    });
}

/// Sets the maximum time that records stay in a buffer that is not full; zero for no limit.
pub fn set_period(period: Duration) {
    state().period = period;
    CHANGED.notify_all();
}

/// Returns the number of records dropped since the last query.
pub fn take_dropped() -> usize {
    DROPPED.swap(0, Ordering::Relaxed)
}

/// Adds records, in this order.
pub fn write(records: &[Record]) {
    let mut state = state();
    for record in records {
        match state.buffer_for(record.bytes().1) {
            Some(buffer) => buffer.add(record),
            None => {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl BufferState {
    /// Returns the open buffer if it has room, else a new one.
    fn buffer_for(&mut self, bytes: usize) -> Option<&mut Buffer> {
        if self.open.as_ref().is_none_or(|open| !open.has_room(bytes)) {
            self.full.extend(self.open.take());
            CHANGED.notify_all();
            let (mut start, mut size, mut most_records) = (std::ptr::null_mut(), 0, 0);
            // SAFETY: the pointers are to locals.
            unsafe { self.callbacks?.0(&mut start, &mut size, &mut most_records) };
            if start.is_null() {
                return None;
            }
            self.open = Some(Buffer { start, size, used: 0, most_records, records: 0 });
        }
        self.open.as_mut().filter(|open| open.has_room(bytes))
    }
}

/// Returns a buffer to the program, with the state unlocked.
fn give_back(mut state: MutexGuard<'static, BufferState>, buffer: Buffer) -> MutexGuard<'static, BufferState> {
    let complete = state.callbacks.map(|(_, complete)| complete);
    state.returning += 1;
    drop(state);
    if let Some(complete) = complete {
        // SAFETY: the buffer came from the program, and its first `used` bytes are records.
        unsafe { complete(std::ptr::null_mut(), 0, buffer.start, buffer.size, buffer.used) };
    }
    let mut state = self::state();
    state.returning -= 1;
    CHANGED.notify_all();
    state
}

/// Returns all buffers with records to the program before it returns.
pub fn flush() {
    let mut state = state();
    let open = state.open.take_if(|open| open.used > 0);
    state.full.extend(open);
    while let Some(buffer) = state.full.pop_front() {
        state = give_back(state, buffer);
    }
    while state.returning > 0 {
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

fn return_full_buffers() {
    let mut state = state();
    loop {
        if let Some(buffer) = state.full.pop_front() {
            state = give_back(state, buffer);
        } else if state.period.is_zero() {
            state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
        } else {
            let period = state.period;
            let (woken, waited) = CHANGED.wait_timeout(state, period).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if waited.timed_out() {
                let open = state.open.take_if(|open| open.used > 0);
                state.full.extend(open);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::records::{External, kind};

    /// Size of two records.
    const SIZE: usize = 2 * size_of::<External>() + 8;

    static DECLINES: AtomicBool = AtomicBool::new(false);
    static RETURNED: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());

    unsafe extern "C" fn request(start: *mut *mut u8, size: *mut usize, most: *mut usize) {
        let buffer = Box::leak(Box::new([0u64; SIZE / 8]));
        let declines = DECLINES.load(Ordering::Relaxed);
        // SAFETY: the pointers are those of `buffer_for`.
        unsafe {
            *start = if declines { std::ptr::null_mut() } else { buffer.as_mut_ptr().cast() };
            *size = SIZE;
            *most = 0;
        }
    }

    unsafe extern "C" fn complete(_: *mut c_void, _: u32, start: *mut u8, _: usize, used: usize) {
        let records = used / size_of::<External>();
        // SAFETY: the buffer holds records of this kind.
        let ids = (0..records).map(|record| unsafe { start.cast::<External>().add(record).read().id }).collect();
        RETURNED.lock().expect("returned").push(ids);
    }

    fn record(id: u64) -> Record {
        let kind = kind::EXTERNAL_CORRELATION;
        Record::External(External { kind, external_kind: 3, id, correlation: 1, reserved: 0 })
    }

    #[test]
    fn records_come_back_once_and_are_dropped_where_there_is_no_buffer() {
        // GIVEN buffers for two records each, WHEN five are written and flushed
        register(request, complete);
        write(&[1, 2, 3, 4, 5].map(record));
        flush();
        // THEN all have come back, in buffers that a thread and the flush returned in any order
        let mut returned = std::mem::take(&mut *RETURNED.lock().expect("returned"));
        returned.sort();
        assert_eq!(returned, [vec![1, 2], vec![3, 4], vec![5]]);
        // WHEN the program gives no buffer, THEN records are dropped and counted once
        DECLINES.store(true, Ordering::Relaxed);
        write(&[6, 7].map(record));
        flush();
        assert!(RETURNED.lock().expect("returned").is_empty());
        assert_eq!((take_dropped(), take_dropped()), (2, 0));
    }
}
