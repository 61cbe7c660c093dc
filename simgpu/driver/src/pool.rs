//! Stream-ordered memory: pools cache freed blocks until a synchronisation trims them to the release threshold.

use crate::allocation::trim;
use crate::allocation::{allocate_on, release, return_to_pool, rounded};
use crate::api::{answer, answer_if_asked, api};
use crate::capture;
use crate::code::{Answer, Code};
use crate::current::current_device;
use crate::fail::count_allocation;
use crate::graph_parts;
use crate::objects::Pool;
use crate::objects::Work;
use crate::space::{Block, Kind};
use crate::state::{DriverState, state};
use crate::stream_handle;

fn find(state: &DriverState, device: usize, wanted: impl Fn(&Pool) -> bool) -> Result<usize, Code> {
    let fits = |pool: &Pool| pool.device == device && wanted(pool);
    state.pools.iter().find(|(_, pool)| fits(pool)).map(|(handle, _)| *handle).ok_or(Code::INVALID_VALUE)
}

fn get(state: &mut DriverState, pool: usize) -> Result<&mut Pool, Code> {
    state.pools.get_mut(&pool).filter(|pool| !pool.destroyed).ok_or(Code::INVALID_VALUE)
}

/// Returns a cached block of similar size, or a new one.
fn allocate(state: &mut DriverState, handle: usize, size: u64, context: usize) -> Result<u64, Code> {
    let bytes = rounded(size);
    let pool = get(state, handle)?;
    let device = pool.device;
    let fits = |block: &Block| block.charged >= bytes && block.charged <= bytes.saturating_mul(2);
    let best = pool.cached.iter().enumerate().filter(|(_, block)| fits(block)).min_by_key(|(_, block)| block.charged);
    if let Some((index, _)) = best {
        let mut block = pool.cached.swap_remove(index);
        pool.used += block.charged;
        pool.used_high = pool.used_high.max(pool.used);
        block.size = size;
        block.context = context;
        state.space.insert(block);
        return Ok(block.base);
    }
    if pool.max_size > 0 && pool.reserved + bytes > pool.max_size {
        return Err(Code::OUT_OF_MEMORY);
    }
    let base = allocate_on(state, size, Kind::Pool(handle), context, device, true)?;
    let pool = get(state, handle)?;
    pool.used += bytes;
    pool.used_high = pool.used_high.max(pool.used);
    pool.reserved += bytes;
    pool.reserved_high = pool.reserved_high.max(pool.reserved);
    Ok(base)
}

fn allocate_async(to: *mut u64, size: usize, pool: Option<usize>, stream: usize) -> Answer {
    let mut state = state()?;
    stream_handle::check(&state, stream)?;
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let (context, device) = match state.streams.get(&stream).map(|stream| stream.context) {
        Some(context) => (context, state.contexts.get(&context).ok_or(Code::INVALID_CONTEXT)?.device),
        None => current_device(&state)?,
    };
    count_allocation()?;
    let pool = match pool {
        Some(pool) => pool,
        None => find(&state, device, |pool| pool.current)?,
    };
    let device = get(&mut state, pool)?.device;
    let address = match capture::add(&mut state, stream, Work::MEMORY_ALLOCATION)? {
        Some(node) => graph_parts::set_allocation(&mut state, node, size as u64, device)?,
        None => allocate(&mut state, pool, size as u64, context)?,
    };
    // SAFETY: not null, and the caller of the entry point vouches for the rest.
    unsafe { answer(to, address) }
}

fn free_async(address: u64, stream: usize) -> Answer {
    if address == 0 {
        return Ok(());
    }
    let mut state = state()?;
    stream_handle::check(&state, stream)?;
    let kind = state.space.get(address).ok_or(Code::INVALID_VALUE)?.kind;
    if capture::of(&state, stream)?.is_some() {
        if kind != Kind::Graph {
            return Err(Code::INVALID_VALUE); // a captured free must be of memory the graph allocates
        }
        let node = capture::add(&mut state, stream, Work::MEMORY_FREE)?.ok_or(Code::UNKNOWN)?;
        return graph_parts::set_free(&mut state, node, address);
    }
    match kind {
        Kind::Pool(_) => return_to_pool(&mut state, address),
        Kind::Graph => graph_parts::free_block(&mut state, address),
        Kind::Device | Kind::Managed => {
            let block = state.space.remove(address).ok_or(Code::INVALID_VALUE)?;
            release(&mut state, block);
            Ok(())
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Returns the device that a `CUmemLocation` (kind in the low half, number in the high half) names.
fn location(state: &DriverState, location: *const u64) -> Result<usize, Code> {
    // SAFETY: callers pass the pointer of an entry point whose caller vouches for it.
    let location = unsafe { location.as_ref() }.copied().ok_or(Code::INVALID_VALUE)?;
    if location as u32 != 1 {
        return Err(Code::NOT_SUPPORTED);
    }
    state.device((location >> 32) as i32)
}

api! {
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz (to: *mut u64, size: usize, stream: usize) {
        allocate_async(to, size, None, stream)?;
    }

    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz (to: *mut u64, size: usize, pool: usize, stream: usize) {
        allocate_async(to, size, Some(pool), stream)?;
    }

    fn cuMemFreeAsync | cuMemFreeAsync_ptsz (address: u64, stream: usize) {
        free_async(address, stream)?;
    }

    fn cuMemPoolCreate(pool: *mut usize, properties: *const u8) {
        if properties.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // CUmemPoolProps: type at 0, handle types at 4, location at 8, maximum size at 24.
        let (kind, handle_types) = (properties.cast::<i32>().read(), properties.add(4).cast::<i32>().read());
        let max_size = properties.add(24).cast::<u64>().read();
        let mut state = state()?;
        if kind != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let device = location(&state, properties.add(8).cast())?;
        let handle = state.new_handle();
        state.pools.insert(handle, Pool::new(device, false, max_size, handle_types));
        answer(pool, handle)?;
    }

    fn cuMemPoolDestroy(pool: usize) {
        let mut state = state()?;
        if get(&mut state, pool)?.is_default {
            return Err(Code::INVALID_VALUE);
        }
        trim(&mut state, pool, 0);
        let (device, was_current, used) = {
            let own = get(&mut state, pool)?;
            own.destroyed = true;
            (own.device, std::mem::take(&mut own.current), own.used)
        };
        if was_current {
            let default = find(&state, device, |pool| pool.is_default)?;
            get(&mut state, default)?.current = true;
        }
        if used == 0 {
            state.pools.remove(&pool);
        }
    }

    fn cuMemPoolTrimTo(pool: usize, keep: usize) {
        let mut state = state()?;
        get(&mut state, pool)?;
        trim(&mut state, pool, keep as u64);
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: i32, value: *const u64) {
        let mut state = state()?;
        let pool = get(&mut state, pool)?;
        match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] = value.cast::<i32>().read(),
            4 => pool.threshold = value.read_unaligned(),
            6 if value.read_unaligned() == 0 => pool.reserved_high = pool.reserved,
            8 if value.read_unaligned() == 0 => pool.used_high = pool.used,
            _ => return Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: i32, value: *mut u64) {
        let mut state = state()?;
        let pool = get(&mut state, pool)?;
        match attribute {
            1..=3 => answer(value.cast::<i32>(), pool.reuse[attribute as usize - 1])?,
            4 => answer(value, pool.threshold)?,
            5 => answer(value, pool.reserved)?,
            6 => answer(value, pool.reserved_high)?,
            7 => answer(value, pool.used)?,
            8 => answer(value, pool.used_high)?,
            9 | 12 => answer(value.cast::<i32>(), 1)?, // pinned memory on a device
            10 => answer(value.cast::<i32>(), pool.handle_types)?,
            11 => answer(value.cast::<i32>(), pool.device as i32)?,
            13 => answer(value, pool.max_size)?,
            _ => return Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAccess(pool: usize, _access: *const u8, _count: usize) {
        get(&mut *state()?, pool)?;
    }

    fn cuMemPoolGetAccess(flags: *mut i32, pool: usize, _location: *const u64) {
        get(&mut *state()?, pool)?;
        answer(flags, 3)?; // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    }

    fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: i32) {
        let state = state()?;
        answer(pool, find(&state, state.device(device)?, |pool| pool.is_default)?)?;
    }

    fn cuDeviceGetMemPool(pool: *mut usize, device: i32) {
        let state = state()?;
        answer(pool, find(&state, state.device(device)?, |pool| pool.current)?)?;
    }

    fn cuDeviceSetMemPool(device: i32, pool: usize) {
        let mut state = state()?;
        let device = state.device(device)?;
        if get(&mut state, pool)?.device != device {
            return Err(Code::INVALID_VALUE);
        }
        for other in state.pools.values_mut().filter(|other| other.device == device) {
            other.current = false;
        }
        get(&mut state, pool)?.current = true;
    }

    fn cuMemGetDefaultMemPool(pool: *mut usize, place: *const u64, _kind: i32) {
        let state = state()?;
        answer(pool, find(&state, location(&state, place)?, |pool| pool.is_default)?)?;
    }

    fn cuMemGetMemPool(pool: *mut usize, place: *const u64, _kind: i32) {
        let state = state()?;
        answer(pool, find(&state, location(&state, place)?, |pool| pool.current)?)?;
    }

    fn cuMemPoolExportToShareableHandle(_to: *mut u8, _pool: usize, _kind: i32, _flags: u64) {
        return Err(Code::NOT_SUPPORTED);
    }

    fn cuMemPoolImportFromShareableHandle(pool: *mut usize, _from: *mut u8, _kind: i32, _flags: u64) {
        answer_if_asked(pool, 0);
        return Err(Code::NOT_SUPPORTED);
    }
}
