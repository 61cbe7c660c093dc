//! Device memory of `cuMemAlloc`.

use crate::allocation::{allocate, release};
use crate::api::{answer, answer_if_asked, api};
use crate::capture;
use crate::code::{Answer, Code};
use crate::current::{current, current_device};
use crate::fail::count_allocation;
use crate::space::Kind;
use crate::state::state;

fn free(address: u64) -> Answer {
    if address == 0 {
        return Ok(());
    }
    let mut state = state()?;
    current(&state)?;
    capture::forbid_unsafe(&mut state)?;
    let kind = state.space.get(address).ok_or(Code::INVALID_VALUE)?.kind;
    match kind {
        Kind::Device | Kind::Managed => {
            let block = state.space.remove(address).ok_or(Code::INVALID_VALUE)?;
            release(&mut state, block);
            Ok(())
        }
        Kind::Pool(_) => crate::allocation::return_to_pool(&mut state, address),
        Kind::Graph => crate::graph_parts::free_block(&mut state, address),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn allocate_plain(size: u64, kind: Kind) -> Result<u64, Code> {
    let mut state = state()?;
    current(&state)?;
    capture::forbid_unsafe(&mut state)?;
    count_allocation()?;
    allocate(&mut state, size, kind)
}

api! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let state = state()?;
        let (_, device) = current_device(&state)?;
        let memory = state.cards.memory();
        answer(free, memory.saturating_sub(state.cards.held(device)) as usize)?;
        answer(total, memory as usize)?;
    }

    fn cuMemAlloc_v2(address: *mut u64, size: usize) {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        answer(address, allocate_plain(size as u64, Kind::Device)?)?;
    }

    fn cuMemAllocPitch_v2(address: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) {
        if address.is_null() || pitch.is_null() || width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(Code::INVALID_VALUE);
        }
        let row = width.next_multiple_of(512);
        answer(address, allocate_plain((row * height) as u64, Kind::Device)?)?;
        answer(pitch, row)?;
    }

    fn cuMemAllocManaged(address: *mut u64, size: usize, flags: u32) {
        if address.is_null() || !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        answer(address, allocate_plain(size as u64, Kind::Managed)?)?;
    }

    fn cuMemFree_v2(address: u64) {
        free(address)?;
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) {
        let state = state()?;
        current(&state)?;
        let block = state.space.find(address).ok_or(Code::NOT_FOUND)?;
        answer_if_asked(base, block.base);
        answer_if_asked(size, block.size as usize);
    }

    fn cuMemAdvise(_address: u64, _size: usize, _advice: i32, _device: i32) {
        current(&*state()?)?;
    }

    fn cuMemAdvise_v2(_address: u64, _size: usize, _advice: i32, _location: u64) {
        current(&*state()?)?;
    }

    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz (address: u64, size: usize, _device: i32, _stream: usize) {
        state()?.space.check(address, size as u64, true)?;
    }

    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz (
        address: u64, size: usize, _location: u64, _flags: u32, _stream: usize,
    ) {
        state()?.space.check(address, size as u64, true)?;
    }
}
