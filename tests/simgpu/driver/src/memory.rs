//! Device memory of `cuMemAlloc`.
//!
//! The card is charged the size rounded up: to 2 MiB from 1 MiB on, to 512 bytes below. (The real driver cuts small blocks out
//! of 2 MiB ones.)

use crate::api::{Answer, answer, answer_if_asked, api};
use crate::capture;
use crate::code::Code;
use crate::context::{current, current_device};
use crate::fail::count_allocation;
use crate::pages::{self, GRANULE, PAGE};
use crate::space::{Block, Kind};
use crate::state::{State, state};

/// The bytes that a block of `size` is charged.
pub fn rounded(size: u64) -> u64 {
    let step = if size >= GRANULE / 2 { GRANULE } else { 512 };
    size.max(1).next_multiple_of(step)
}

/// Allocates zeroed device memory in the current context and charges it to the card.
pub fn allocate(state: &mut State, size: u64, kind: Kind) -> Result<u64, Code> {
    let (context, device) = current_device(state)?;
    allocate_on(state, size, kind, context, device, true)
}

/// Allocates zeroed device memory and charges it to the card.
pub fn allocate_on(
    state: &mut State,
    size: u64,
    kind: Kind,
    context: usize,
    device: usize,
    charge: bool,
) -> Result<u64, Code> {
    if size == 0 || size > 1 << 46 {
        return Err(if size == 0 { Code::INVALID_VALUE } else { Code::OUT_OF_MEMORY });
    }
    let charged = if charge { rounded(size) } else { 0 };
    if charge {
        state.charge(device, charged)?;
    }
    let alignment = if size >= GRANULE / 2 { GRANULE } else { PAGE };
    let mapped = rounded(size).next_multiple_of(PAGE);
    let Some(base) = pages::map(mapped, alignment) else {
        state.cards.give_back(device, charged);
        return Err(Code::OUT_OF_MEMORY);
    };
    state.space.insert(Block { context, charged, ..Block::new(base, size, mapped, kind, device) });
    Ok(base)
}

/// Unmaps a block and credits the card.
pub fn release(state: &mut State, block: Block) {
    pages::unmap(block.base, block.mapped);
    if let Some(file) = block.file {
        pages::close(file);
    }
    state.cards.give_back(block.device, block.charged);
}

/// Frees the memory of a context that ends.
pub fn free_all_of(state: &mut State, context: usize) {
    let left = |block: &&Block| block.context == context && !matches!(block.kind, Kind::Mapped { .. });
    let bases: Vec<u64> = state.space.all().filter(left).map(|block| block.base).collect();
    for base in bases {
        let Some(block) = state.space.remove(base) else { continue };
        match block.kind {
            Kind::Registered(_) => {}
            Kind::Pool(pool) => crate::pool::forget(state, pool, &block),
            _ => release(state, block),
        }
    }
}

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
        Kind::Pool(_) => crate::pool::free(&mut state, address),
        Kind::Graph => crate::graph::free_block(&mut state, address),
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
