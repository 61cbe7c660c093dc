//! Contexts: one primary context per device, further ones, and the stack of each thread.

use crate::api::{answer, answer_if_asked, api};
use crate::code::{Answer, Code};
use crate::current::{current, current_device, current_handle, on_stack};
use crate::objects::Context;
use crate::state::{DriverState, state};

/// Returns the bytes of a context: `SIMGPU_CONTEXT`, or the figure in the card's table.
fn context_bytes(state: &DriverState) -> u64 {
    simgpu_cards::size_from("SIMGPU_CONTEXT", state.cards.model().context.bytes)
}

fn make(state: &mut DriverState, device: usize, flags: u32, primary: bool) -> Result<usize, Code> {
    let charged = context_bytes(state);
    state.charge(device, charged)?;
    let handle = state.new_handle();
    // CU_LIMIT_STACK_SIZE, PRINTF_FIFO_SIZE, MALLOC_HEAP_SIZE … of a new context.
    let limits = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0];
    state.contexts.insert(handle, Context { device, flags, id: handle as u64 / 64, primary, limits, charged });
    Ok(handle)
}

/// Destroys a context with its memory, streams and events.
fn end(state: &mut DriverState, handle: usize) {
    let Some(context) = state.contexts.remove(&handle) else { return };
    crate::allocation::free_all_of(state, handle);
    state.streams.retain(|_, stream| stream.context != handle);
    state.events.retain(|_, event| event.context != handle);
    state.peers.retain(|(from, to)| *from != handle && *to != handle);
    state.cards.give_back(context.device, context.charged);
}

fn retain_primary(state: &mut DriverState, device: usize) -> Result<usize, Code> {
    if state.primaries[device].handle == 0 {
        let flags = state.primaries[device].flags;
        state.primaries[device].handle = make(state, device, flags, true)?;
    }
    state.primaries[device].retained += 1;
    Ok(state.primaries[device].handle)
}

fn reset_primary(state: &mut DriverState, device: usize) {
    let handle = std::mem::take(&mut state.primaries[device].handle);
    state.primaries[device].retained = 0;
    end(state, handle);
}

fn create(to: *mut usize, flags: u32, device: i32) -> Answer {
    let mut state = state()?;
    let device = state.device(device)?;
    let handle = make(&mut state, device, flags, false)?;
    on_stack(|stack| stack.push(handle))?;
    // SAFETY: the caller of cuCtxCreate vouches for the pointer.
    unsafe { answer(to, handle) }
}

api! {
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) {
        let mut state = state()?;
        let device = state.device(device)?;
        answer(context, retain_primary(&mut state, device)?)?;
    }

    fn cuDevicePrimaryCtxRelease_v2 | cuDevicePrimaryCtxRelease (device: i32) {
        let mut state = state()?;
        let device = state.device(device)?;
        match state.primaries[device].retained {
            0 => return Err(Code::INVALID_CONTEXT),
            1 => reset_primary(&mut state, device),
            _ => state.primaries[device].retained -= 1,
        }
    }

    fn cuDevicePrimaryCtxReset_v2 | cuDevicePrimaryCtxReset (device: i32) {
        let mut state = state()?;
        let device = state.device(device)?;
        reset_primary(&mut state, device);
    }

    fn cuDevicePrimaryCtxSetFlags_v2 | cuDevicePrimaryCtxSetFlags (device: i32, flags: u32) {
        let mut state = state()?;
        let device = state.device(device)?;
        state.primaries[device].flags = flags;
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) {
        let state = state()?;
        let primary = &state.primaries[state.device(device)?];
        answer(flags, primary.flags)?;
        answer(active, i32::from(primary.handle != 0))?;
    }

    fn cuCtxCreate_v2(context: *mut usize, flags: u32, device: i32) {
        create(context, flags, device)?;
    }

    fn cuCtxCreate_v3(context: *mut usize, _affinity: *const u8, _count: i32, flags: u32, device: i32) {
        create(context, flags, device)?;
    }

    fn cuCtxCreate_v4(context: *mut usize, _params: *const u8, flags: u32, device: i32) {
        create(context, flags, device)?;
    }

    fn cuCtxDestroy_v2 | cuCtxDestroy (context: usize) {
        let mut state = state()?;
        if state.contexts.get(&context).is_none_or(|context| context.primary) {
            return Err(Code::INVALID_CONTEXT);
        }
        end(&mut state, context);
        on_stack(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        })?;
    }

    fn cuCtxPushCurrent_v2 | cuCtxPushCurrent (context: usize) {
        if !state()?.contexts.contains_key(&context) {
            return Err(Code::INVALID_CONTEXT);
        }
        on_stack(|stack| stack.push(context))?;
    }

    fn cuCtxPopCurrent_v2 | cuCtxPopCurrent (context: *mut usize) {
        let _ = state()?;
        let popped = on_stack(|stack| stack.pop())?.ok_or(Code::INVALID_CONTEXT)?;
        answer_if_asked(context, popped);
    }

    fn cuCtxSetCurrent(context: usize) {
        if context != 0 && !state()?.contexts.contains_key(&context) {
            return Err(Code::INVALID_CONTEXT);
        }
        on_stack(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        })?;
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        let _ = state()?;
        answer(context, current_handle())?;
    }

    fn cuCtxGetDevice(device: *mut i32) {
        let state = state()?;
        answer(device, current_device(&state)?.1 as i32)?;
    }

    fn cuCtxGetDevice_v2(device: *mut i32, context: usize) {
        let state = state()?;
        let context = if context == 0 { current(&state)? } else { context };
        let found = state.contexts.get(&context).ok_or(Code::INVALID_CONTEXT)?;
        answer(device, found.device as i32)?;
    }

    fn cuCtxGetFlags(flags: *mut u32) {
        let state = state()?;
        answer(flags, state.contexts[&current(&state)?].flags)?;
    }

    fn cuCtxSetFlags(flags: u32) {
        let mut state = state()?;
        let context = current(&state)?;
        state.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?.flags = flags;
    }

    fn cuCtxGetId(context: usize, id: *mut u64) {
        let state = state()?;
        let context = if context == 0 { current(&state)? } else { context };
        answer(id, state.contexts.get(&context).ok_or(Code::CONTEXT_IS_DESTROYED)?.id)?;
    }

    fn cuCtxGetApiVersion(context: usize, version: *mut u32) {
        let state = state()?;
        let context = if context == 0 { current(&state)? } else { context };
        state.contexts.get(&context).ok_or(Code::INVALID_CONTEXT)?;
        answer(version, 3020)?;
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        let mut state = state()?;
        let context = current(&state)?;
        let context = state.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        *context.limits.get_mut(limit as usize).ok_or(Code::INVALID_VALUE)? = value as u64;
    }

    fn cuCtxGetLimit(value: *mut usize, limit: u32) {
        let state = state()?;
        let context = &state.contexts[&current(&state)?];
        answer(value, *context.limits.get(limit as usize).ok_or(Code::INVALID_VALUE)? as usize)?;
    }

    fn cuCtxGetCacheConfig(config: *mut i32) {
        current(&*state()?)?;
        answer(config, 0)?;
    }

    fn cuCtxSetCacheConfig(_config: i32) {
        current(&*state()?)?;
    }

    fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) {
        current(&*state()?)?;
        answer_if_asked(least, 0);
        answer_if_asked(greatest, -5);
    }

    fn cuCtxResetPersistingL2Cache() {
        current(&*state()?)?;
    }

    fn cuCtxEnablePeerAccess(peer: usize, flags: u32) {
        let mut state = state()?;
        let context = current(&state)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let own = state.contexts[&context].device;
        if state.contexts.get(&peer).ok_or(Code::INVALID_CONTEXT)?.device == own {
            return Err(Code::INVALID_DEVICE);
        }
        if !state.peers.insert((context, peer)) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
    }

    fn cuCtxDisablePeerAccess(peer: usize) {
        let mut state = state()?;
        let context = current(&state)?;
        if !state.peers.remove(&(context, peer)) {
            return Err(Code::PEER_ACCESS_NOT_ENABLED);
        }
    }
}
