//! Events. All work before an event is already done, so an event records the time of the call.

use std::time::Instant;

use crate::api::{answer, api};
use crate::capture;
use crate::code::{Answer, Code};
use crate::current::current;
use crate::fail::hang_synchronise;
use crate::objects::{Event, Work};
use crate::state::{DriverState, state};
use crate::stream_handle;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// `CU_EVENT_INTERPROCESS`.
pub const INTERPROCESS: u32 = 4;

/// Makes an event in the current context.
pub fn create(state: &mut DriverState, flags: u32) -> Result<usize, Code> {
    let context = current(state)?;
    if flags > 7 || flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS {
        return Err(Code::INVALID_VALUE);
    }
    let handle = state.new_handle();
    state.events.insert(handle, Event { context, flags, recorded: None, captured: None });
    Ok(handle)
}

/// Returns the flags of an event.
pub fn flags(state: &DriverState, event: usize) -> Result<u32, Code> {
    state.events.get(&event).map(|event| event.flags).ok_or(Code::INVALID_HANDLE)
}

/// Makes a stream wait for an event: a no-op, unless the event was captured. Then the stream joins the capture.
pub fn wait(state: &mut DriverState, stream: usize, event: usize) -> Answer {
    let captured = state.events.get(&event).ok_or(Code::INVALID_HANDLE)?.captured;
    match captured {
        Some((capture, from)) => capture::join(state, capture, from, stream),
        None => Ok(()),
    }
}

fn record(event: usize, stream: usize, external: bool) -> Answer {
    let mut state = state()?;
    stream_handle::check(&state, stream)?;
    if !state.events.contains_key(&event) {
        return Err(Code::INVALID_HANDLE);
    }
    let capturing = capture::of(&state, stream)?;
    if let (Some(_), true) = (capturing, external) {
        return capture::submit(&mut state, stream, Work::EVENT_RECORD).map(|_| ());
    }
    let event = state.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)?;
    event.captured = capturing.map(|capture| (capture, stream));
    event.recorded = Some(Instant::now());
    Ok(())
}

api! {
    fn cuEventCreate(event: *mut usize, flags: u32) {
        let handle = create(&mut *state()?, flags)?;
        answer(event, handle)?;
    }

    fn cuEventDestroy_v2 | cuEventDestroy (event: usize) {
        state()?.events.remove(&event).ok_or(Code::INVALID_HANDLE)?;
    }

    fn cuEventRecord | cuEventRecord_ptsz (event: usize, stream: usize) {
        record(event, stream, false)?;
    }

    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz (event: usize, stream: usize, flags: u32) {
        record(event, stream, flags & 1 != 0)?;
    }

    fn cuEventQuery(event: usize) {
        let mut state = state()?;
        if state.events.get(&event).ok_or(Code::INVALID_HANDLE)?.captured.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        capture::forbid_unsafe(&mut state)?;
    }

    fn cuEventSynchronize(event: usize) {
        if state()?.events.get(&event).ok_or(Code::INVALID_HANDLE)?.captured.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        hang_synchronise();
        crate::allocation::trim_to_threshold(&mut *state()?);
    }

    fn cuEventElapsedTime | cuEventElapsedTime_v2 (milliseconds: *mut f32, start: usize, end: usize) {
        let state = state()?;
        let time = |event: usize| {
            let event = state.events.get(&event).ok_or(Code::INVALID_HANDLE)?;
            if event.flags & DISABLE_TIMING != 0 {
                return Err(Code::INVALID_HANDLE);
            }
            event.recorded.ok_or(Code::INVALID_HANDLE)
        };
        let (start, end) = (time(start)?, time(end)?);
        let elapsed = match end.checked_duration_since(start) {
            Some(later) => later.as_secs_f32(),
            None => -start.duration_since(end).as_secs_f32(),
        };
        answer(milliseconds, elapsed * 1000.0)?;
    }
}
