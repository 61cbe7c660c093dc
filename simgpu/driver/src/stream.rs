//! Streams. All work is done when a call returns, so a stream is a handle with a capture state.

use std::ffi::c_void;

use crate::api::{answer, answer_if_asked, api};
use crate::capture;
use crate::code::{Answer, Code};
use crate::current::{current, current_device};
use crate::event;
use crate::fail::hang_synchronise;
use crate::objects::Stream;
use crate::objects::Work;
use crate::state::state;
use crate::stream_handle::{NON_BLOCKING, check};

fn create(to: *mut usize, flags: u32, priority: i32) -> Answer {
    let mut state = state()?;
    let context = current(&state)?;
    if flags & !NON_BLOCKING != 0 || to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let handle = state.new_handle();
    state.streams.insert(handle, Stream { context, flags, priority: priority.clamp(-5, 0) });
    // SAFETY: the caller of cuStreamCreate vouches for the pointer.
    unsafe { answer(to, handle) }
}

/// Implements all synchronisations: fails during a capture, applies `SIMGPU_HANG_SYNC`, trims pools.
fn synchronise(stream: Option<usize>) -> Answer {
    {
        let mut state = state()?;
        match stream {
            Some(stream) => {
                check(&state, stream)?;
                capture::refuse(&mut state, stream)?;
            }
            None => {
                current(&state)?;
            }
        }
        capture::forbid_unsafe(&mut state)?;
    }
    hang_synchronise();
    crate::allocation::trim_to_threshold(&mut *state()?);
    Ok(())
}

/// Submits work to a stream: returns true if the caller must execute it now, false if it was captured.
fn accept(stream: usize, work: Work) -> Result<bool, Code> {
    let mut state = state()?;
    check(&state, stream)?;
    capture::submit(&mut state, stream, work)
}

api! {
    fn cuStreamCreate(stream: *mut usize, flags: u32) {
        create(stream, flags, 0)?;
    }

    fn cuStreamCreateWithPriority(stream: *mut usize, flags: u32, priority: i32) {
        create(stream, flags, priority)?;
    }

    fn cuStreamDestroy_v2 | cuStreamDestroy (stream: usize) {
        let mut state = state()?;
        state.streams.remove(&stream).ok_or(Code::INVALID_HANDLE)?;
    }

    fn cuStreamGetPriority | cuStreamGetPriority_ptsz (stream: usize, priority: *mut i32) {
        let state = state()?;
        check(&state, stream)?;
        answer(priority, state.streams.get(&stream).map_or(0, |stream| stream.priority))?;
    }

    fn cuStreamGetFlags | cuStreamGetFlags_ptsz (stream: usize, flags: *mut u32) {
        let state = state()?;
        check(&state, stream)?;
        answer(flags, state.streams.get(&stream).map_or(0, |stream| stream.flags))?;
    }

    fn cuStreamGetId | cuStreamGetId_ptsz (stream: usize, id: *mut u64) {
        check(&*state()?, stream)?;
        answer(id, stream as u64)?;
    }

    fn cuStreamGetCtx | cuStreamGetCtx_ptsz (stream: usize, context: *mut usize) {
        let state = state()?;
        check(&state, stream)?;
        let own = state.streams.get(&stream).map(|stream| stream.context);
        answer(context, own.map_or_else(|| current(&state), Ok)?)?;
    }

    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz (stream: usize, context: *mut usize, green: *mut usize) {
        let state = state()?;
        check(&state, stream)?;
        let own = state.streams.get(&stream).map(|stream| stream.context);
        answer(context, own.map_or_else(|| current(&state), Ok)?)?;
        answer_if_asked(green, 0);
    }

    fn cuStreamGetDevice | cuStreamGetDevice_ptsz (stream: usize, device: *mut i32) {
        let state = state()?;
        check(&state, stream)?;
        let own = state.streams.get(&stream).and_then(|stream| state.contexts.get(&stream.context));
        answer(device, own.map_or_else(|| current_device(&state).map(|(_, device)| device), |own| Ok(own.device))? as i32)?;
    }

    fn cuStreamQuery | cuStreamQuery_ptsz (stream: usize) {
        let mut state = state()?;
        check(&state, stream)?;
        capture::refuse(&mut state, stream)?;
    }

    fn cuStreamSynchronize | cuStreamSynchronize_ptsz (stream: usize) {
        synchronise(Some(stream))?;
    }

    fn cuCtxSynchronize() {
        synchronise(None)?;
    }

    fn cuCtxSynchronize_v2(_context: usize) {
        synchronise(None)?;
    }

    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz (stream: usize, waited: usize, _flags: u32) {
        let mut state = state()?;
        check(&state, stream)?;
        event::wait(&mut state, stream, waited)?;
    }

    fn cuStreamAddCallback | cuStreamAddCallback_ptsz (
        stream: usize, callback: extern "C" fn(usize, i32, *mut c_void), data: *mut c_void, _flags: u32,
    ) {
        let mut held = state()?;
        check(&held, stream)?;
        capture::refuse(&mut held, stream)?;
        drop(held);
        callback(stream, 0, data);
    }

    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz (stream: usize, function: extern "C" fn(*mut c_void), data: *mut c_void) {
        if accept(stream, Work::HOST)? {
            function(data);
        }
    }

    fn cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz (
        stream: usize, function: extern "C" fn(*mut c_void), data: *mut c_void, _mode: u32,
    ) {
        if accept(stream, Work::HOST)? {
            function(data);
        }
    }

    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz (stream: usize, _address: u64, _len: usize, _flags: u32) {
        check(&*state()?, stream)?;
    }

    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz (to: usize, from: usize) {
        let state = state()?;
        check(&state, to)?;
        check(&state, from)?;
    }

    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz (stream: usize, _attribute: i32, value: *mut [u8; 64]) {
        check(&*state()?, stream)?;
        answer(value, [0; 64])?;
    }

    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz (stream: usize, _attribute: i32, _value: *const u8) {
        check(&*state()?, stream)?;
    }

    fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz | cuStreamWriteValue32 | cuStreamWriteValue32_ptsz (
        stream: usize, address: u64, value: u32, _flags: u32,
    ) {
        if accept(stream, Work::MEMORY_OPERATION)? {
            state()?.space.check(address, 4, false)?;
            (address as *mut u32).write_volatile(value);
        }
    }

    fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz | cuStreamWriteValue64 | cuStreamWriteValue64_ptsz (
        stream: usize, address: u64, value: u64, _flags: u32,
    ) {
        if accept(stream, Work::MEMORY_OPERATION)? {
            state()?.space.check(address, 8, false)?;
            (address as *mut u64).write_volatile(value);
        }
    }

    fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz | cuStreamWaitValue32 | cuStreamWaitValue32_ptsz (
        stream: usize, _address: u64, _value: u32, _flags: u32,
    ) {
        accept(stream, Work::MEMORY_OPERATION)?;
    }

    fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz | cuStreamWaitValue64 | cuStreamWaitValue64_ptsz (
        stream: usize, _address: u64, _value: u64, _flags: u32,
    ) {
        accept(stream, Work::MEMORY_OPERATION)?;
    }

    fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz | cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz (
        stream: usize, _count: u32, _operations: *const u8, _flags: u32,
    ) {
        accept(stream, Work::MEMORY_OPERATION)?;
    }
}
