//! Device memory: blocks, their charges, and freed blocks that pools keep.
//!
//! The card is charged the size rounded up: to 2 MiB from 1 MiB on, to 512 bytes below. (The real driver cuts small
//! blocks out of 2 MiB ones.)

use crate::addresses::GRANULE;
use crate::code::{Answer, Code};
use crate::current::current_device;
use crate::pages::{self, PAGE};
use crate::space::{Block, Kind};
use crate::state::DriverState;
use crate::written;

impl DriverState {
    /// Charges device memory to the card. Pools release cached memory first if too little is free.
    pub fn charge(&mut self, device: usize, bytes: u64) -> Answer {
        if self.cards.take(device, bytes) {
            return Ok(());
        }
        trim_all(self, device);
        if self.cards.take(device, bytes) { Ok(()) } else { Err(Code::OUT_OF_MEMORY) }
    }
}

/// Returns the bytes charged for a block of `size`.
pub fn rounded(size: u64) -> u64 {
    let step = if size >= GRANULE / 2 { GRANULE } else { 512 };
    size.max(1).next_multiple_of(step)
}

/// Allocates zeroed device memory in the current context and charges it to the card.
pub fn allocate(state: &mut DriverState, size: u64, kind: Kind) -> Result<u64, Code> {
    let (context, device) = current_device(state)?;
    allocate_on(state, size, kind, context, device, true)
}

/// Allocates zeroed device memory and charges it to the card.
pub fn allocate_on(
    state: &mut DriverState,
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
    let Some(base) = pages::map(device, mapped, alignment) else {
        state.cards.give_back(device, charged);
        return Err(Code::OUT_OF_MEMORY);
    };
    state.space.insert(Block { context, charged, ..Block::new(base, size, mapped, kind, device) });
    Ok(base)
}

/// Unmaps a block and credits the card.
pub fn release(state: &mut DriverState, block: Block) {
    pages::unmap(block.base, block.mapped);
    written::forget(block.base, block.mapped);
    if let Some(file) = block.file {
        pages::close(file);
    }
    state.cards.give_back(block.device, block.charged);
}

/// Frees the memory of an ending context.
pub fn free_all_of(state: &mut DriverState, context: usize) {
    let left = |block: &&Block| block.context == context && !matches!(block.kind, Kind::Mapped { .. });
    let bases: Vec<u64> = state.space.all().filter(left).map(|block| block.base).collect();
    for base in bases {
        let Some(block) = state.space.remove(base) else { continue };
        match block.kind {
            Kind::Registered(_) => {}
            Kind::Pool(pool) => forget(state, pool, &block),
            _ => release(state, block),
        }
    }
}

/// Returns a block to its pool.
pub fn return_to_pool(state: &mut DriverState, address: u64) -> Answer {
    let block = state.space.remove(address).ok_or(Code::INVALID_VALUE)?;
    let Kind::Pool(handle) = block.kind else { return Err(Code::INVALID_VALUE) };
    // SAFETY: the block is mapped memory of this driver that the program has freed.
    unsafe { pages::zero(block.base, block.mapped) };
    if let Some(pool) = state.pools.get_mut(&handle) {
        pool.used -= block.charged;
        pool.cached.push(block);
        if pool.destroyed {
            trim(state, handle, 0);
            if state.pools[&handle].used == 0 {
                state.pools.remove(&handle);
            }
        }
    }
    Ok(())
}

/// Removes a block whose context ended from its pool.
pub fn forget(state: &mut DriverState, handle: usize, block: &Block) {
    if let Some(pool) = state.pools.get_mut(&handle) {
        pool.used -= block.charged;
        pool.reserved -= block.charged;
    }
    release(state, *block);
}

/// Releases cached blocks to the card until at most `keep` bytes are reserved.
pub fn trim(state: &mut DriverState, handle: usize, keep: u64) {
    while let Some(pool) = state.pools.get_mut(&handle) {
        if pool.reserved <= keep {
            break;
        }
        let Some(block) = pool.cached.pop() else { break };
        pool.reserved -= block.charged;
        release(state, block);
    }
}

/// At a synchronisation: trims every pool to its release threshold.
pub fn trim_to_threshold(state: &mut DriverState) {
    let over: Vec<(usize, u64)> = state
        .pools
        .iter()
        .filter(|(_, pool)| !pool.cached.is_empty() && pool.reserved > pool.threshold)
        .map(|(handle, pool)| (*handle, pool.threshold))
        .collect();
    for (handle, threshold) in over {
        trim(state, handle, threshold);
    }
}

/// Releases all cached memory of a device, before an allocation fails.
pub fn trim_all(state: &mut DriverState, device: usize) {
    let own: Vec<usize> =
        state.pools.iter().filter(|(_, pool)| pool.device == device).map(|(handle, _)| *handle).collect();
    for handle in own {
        trim(state, handle, 0);
    }
}
