//! Page-locked host memory: allocated by the driver, or registered by the program.

use crate::addresses::NO_DEVICE;
use crate::api::{answer, api};
use crate::capture;
use crate::code::{Answer, Code};
use crate::current::current_device;
use crate::pages::{self, PAGE};
use crate::space::{Block, Kind};
use crate::state::{DriverState, state};

fn insert(state: &mut DriverState, base: u64, size: u64, mapped: u64, kind: Kind) -> Answer {
    let (context, device) = current_device(state)?;
    state.space.insert(Block { context, ..Block::new(base, size, mapped, kind, device) });
    Ok(())
}

fn allocate(to: *mut u64, size: usize, flags: u32) -> Answer {
    let mut state = state()?;
    current_device(&state)?;
    capture::forbid_unsafe(&mut state)?;
    if to.is_null() || size == 0 || flags > 7 {
        return Err(Code::INVALID_VALUE);
    }
    let mapped = (size as u64).next_multiple_of(PAGE);
    let base = pages::map(NO_DEVICE, mapped, PAGE).ok_or(Code::OUT_OF_MEMORY)?;
    insert(&mut state, base, size as u64, mapped, Kind::Host(flags))?;
    // SAFETY: not null, and the caller of the entry point vouches for the rest.
    unsafe { answer(to, base) }
}

/// `CU_MEMHOSTALLOC_DEVICEMAP`, implied by cuMemAllocHost with unified addressing.
const DEVICE_MAP: u32 = 2;

api! {
    fn cuMemHostAlloc(to: *mut u64, size: usize, flags: u32) {
        allocate(to, size, flags)?;
    }

    fn cuMemAllocHost_v2(to: *mut u64, size: usize) {
        allocate(to, size, DEVICE_MAP)?;
    }

    fn cuMemFreeHost(address: u64) {
        if address == 0 {
            return Ok(());
        }
        let mut state = state()?;
        capture::forbid_unsafe(&mut state)?;
        match state.space.get(address) {
            Some(Block { kind: Kind::Host(_), .. }) => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        if let Some(block) = state.space.remove(address) {
            pages::unmap(block.base, block.mapped);
        }
    }

    fn cuMemHostRegister_v2 | cuMemHostRegister (address: u64, size: usize, flags: u32) {
        let mut state = state()?;
        current_device(&state)?;
        capture::forbid_unsafe(&mut state)?;
        if address == 0 || size == 0 || flags > 15 {
            return Err(Code::INVALID_VALUE);
        }
        if state.space.within(address, size as u64).next().is_some() {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        insert(&mut state, address, size as u64, 0, Kind::Registered(flags))?;
    }

    fn cuMemHostUnregister(address: u64) {
        let mut state = state()?;
        match state.space.get(address) {
            Some(Block { kind: Kind::Registered(_), .. }) => state.space.remove(address),
            _ => return Err(Code::HOST_MEMORY_NOT_REGISTERED),
        };
    }

    fn cuMemHostGetDevicePointer_v2(to: *mut u64, address: u64, flags: u32) {
        let state = state()?;
        let host = state.space.find(address).is_some_and(Block::is_host);
        if flags != 0 || !host {
            return Err(Code::INVALID_VALUE);
        }
        answer(to, address)?;
    }

    fn cuMemHostGetFlags(flags: *mut u32, address: u64) {
        let state = state()?;
        match state.space.find(address).map(|block| block.kind) {
            Some(Kind::Host(known) | Kind::Registered(known)) => answer(flags, known)?,
            _ => return Err(Code::INVALID_VALUE),
        }
    }
}
