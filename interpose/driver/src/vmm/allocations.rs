//! `cuMemAlloc` and `cuMemFree` of movable memory.
//!
//! Called from hooks; the program may hold any lock. Allocations of [`MIN_MOVABLE_BYTES`] and more from `cuMemAlloc` are
//! movable. Smaller allocations share pages with others in the driver and stay there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::movable_memory::{Allocation, Freed, MOVABLE_MEMORY, Mapping, MovableMemory};
use super::physical::{Physical, PhysicalPlace, Piece};
use super::{captures, contexts};
use crate::calls::{self, Code};
use crate::device::current_device;
use crate::types::{Access, Properties};
use interpose_base::stderr::print_message;

/// Minimum size of a movable allocation: one page of a GPU.
///
/// Smaller allocations would waste most of theirs.
pub const MIN_MOVABLE_BYTES: u64 = 2 << 20;

/// Granularity of physical memory on the devices in use.
fn page_bytes(properties: &Properties) -> Result<u64, Code> {
    static PAGE_BYTES: AtomicU64 = AtomicU64::new(0);
    match PAGE_BYTES.load(Ordering::Relaxed) {
        0 => {
            let bytes = calls::granularity(properties)?.max(MIN_MOVABLE_BYTES);
            PAGE_BYTES.store(bytes, Ordering::Relaxed);
            Ok(bytes)
        }
        known => Ok(known),
    }
}

/// Answers `cuMemAlloc`; `None` leaves it to the driver.
pub fn allocate(bytes: u64) -> Option<Result<u64, Code>> {
    if bytes < MIN_MOVABLE_BYTES {
        return None;
    }
    let (device, context) = (current_device(), calls::current_context());
    if context == 0 {
        return None; // The driver reports the error.
    }
    if !calls::can_map(device) {
        static HAS_WARNED: AtomicBool = AtomicBool::new(false);
        if !HAS_WARNED.swap(true, Ordering::Relaxed) {
            print_message("this device has no virtual memory management: its memory cannot be offloaded");
        }
        return None;
    }
    Some(allocate_at(Properties::on_device(device), device, bytes, context))
}

/// Answers `cuMemAlloc` with host memory, at an address that the device can access; `None` without driver support.
pub fn allocate_on_host(bytes: u64) -> Option<Result<u64, Code>> {
    let (device, context) = (current_device(), calls::current_context());
    let properties = Properties::on_host(device)?;
    Some(allocate_at(properties, device, bytes, context))
}

fn allocate_at(properties: Properties, device: i32, requested: u64, context: u64) -> Result<u64, Code> {
    let page = page_bytes(&properties)?;
    let bytes = requested.checked_next_multiple_of(page).ok_or(Code::OUT_OF_MEMORY)?;
    let address = calls::reserve(bytes, page)?;
    let made = calls::create(bytes, &properties).and_then(|handle| {
        let place = if properties.location.as_device().is_some() {
            PhysicalPlace::Device(handle)
        } else {
            PhysicalPlace::Host(handle)
        };
        let physical = Physical {
            device,
            bytes,
            properties: Properties::on_device(device),
            references: 0,
            pieces: vec![Piece::new(0, bytes, place)],
            mapped_at: vec![address],
            fixed: None,
        };
        let mut memory = MOVABLE_MEMORY.lock();
        let mut access = vec![Access::full(device)];
        access.extend(memory.peers.iter().filter(|(owner, _)| *owner == device).map(|(_, peer)| Access::full(*peer)));
        let mapped = physical.map_at(address, bytes).and_then(|()| {
            calls::set_access(address, bytes, &access).inspect_err(|_| {
                let _ = physical.unmap_at(address, bytes);
            })
        });
        if let Err(code) = mapped {
            physical.release();
            return Err(code);
        }
        let number = memory.add(physical);
        let allocation = Some(Allocation { requested, context });
        memory.mappings.insert(address, Mapping { bytes, physical: number, access, allocation });
        Ok(())
    });
    match made {
        Ok(()) => Ok(address),
        Err(code) => {
            calls::free_address(address, bytes);
            Err(code)
        }
    }
}

/// Answers `cuMemFree`; `None` leaves it to the driver.
pub fn free(address: u64) -> Option<Result<(), Code>> {
    let mut memory = MOVABLE_MEMORY.lock();
    let context = memory.mappings.get(&address)?.allocation?.context;
    let (mapping, physical) = memory.forget(address)?;
    let Some(physical) = physical else { return Some(Ok(())) };
    if physical.pieces.iter().all(|piece| matches!(piece.place, PhysicalPlace::Arena(_))) {
        physical.release();
        calls::free_address(address, mapping.bytes);
        return Some(Ok(()));
    }
    let freed = Freed { address, context, mapping, physical };
    if captures::is_any() {
        // `cuMemFree` may be called during a capture; synchronising would invalidate the capture.
        memory.deferred.push(freed);
        return Some(Ok(()));
    }
    drop(memory);
    match freed.detach() {
        Ok(()) => freed.give_back(),
        Err(code) => {
            let Freed { address, mapping, physical, .. } = freed;
            let mut memory = MOVABLE_MEMORY.lock();
            let number = memory.add(Physical { mapped_at: vec![address], ..physical });
            memory.mappings.insert(address, Mapping { physical: number, ..mapping });
            return Some(Err(code));
        }
    }
    Some(Ok(()))
}

/// Releases memory freed during a capture that has now ended, unless another capture is under way.
pub fn free_deferred() {
    if captures::is_any() {
        return;
    }
    let deferred = std::mem::take(&mut MOVABLE_MEMORY.lock().deferred);
    let (gone, left): (Vec<_>, Vec<_>) = deferred.into_iter().partition(|freed| freed.detach().is_ok());
    gone.into_iter().for_each(Freed::give_back);
    MOVABLE_MEMORY.lock().deferred.extend(left);
}

/// Destroys a context by calling `destroy`, and forgets the memory allocated in it.
///
/// Holds the lock during the call, because operations that move memory use contexts.
pub fn destroy_context(context: u64, destroy: impl FnOnce() -> bool) {
    let mut memory = MOVABLE_MEMORY.lock();
    if !destroy() {
        return;
    }
    contexts::destroyed(context);
    captures::context_destroyed(context);
    let in_it = |mapping: &Mapping| mapping.allocation.is_some_and(|allocation| allocation.context == context);
    let gone: Vec<u64> = memory.mappings.iter().filter(|(_, it)| in_it(it)).map(|(&at, _)| at).collect();
    for address in gone {
        if let Some((mapping, Some(physical))) = memory.forget(address) {
            let _ = physical.unmap_at(address, mapping.bytes);
            physical.release();
            calls::free_address(address, mapping.bytes);
        }
    }
}

/// Applies a successful `cuCtxEnablePeerAccess` to memory that memlab backs: `device` may access the memory of `owner`.
pub fn peer_enabled(owner: i32, device: i32) {
    let mut memory = MOVABLE_MEMORY.lock();
    if memory.peers.contains(&(owner, device)) {
        return;
    }
    memory.peers.push((owner, device));
    let access = [Access::full(device)];
    let MovableMemory { physicals, mappings, .. } = &mut *memory;
    for (&address, mapping) in mappings.iter_mut().filter(|(_, mapping)| mapping.allocation.is_some()) {
        if physicals.get(&mapping.physical).is_some_and(|physical| physical.device == owner) {
            mapping.allow(&access);
            // Memory that is not mapped now gets the access when it comes back.
            let _ = calls::set_access(address, mapping.bytes, &access);
        }
    }
}
