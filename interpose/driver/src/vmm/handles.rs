//! `cuMemCreate` and related calls, for a program that manages virtual memory itself.
//!
//! The program gets memlab's handles, because the driver's handles change when memory moves. Called from hooks; the program
//! may hold any lock.

use super::movable_memory::{MOVABLE_MEMORY, Mapping, MovableMemory};
use super::physical::{Physical, PhysicalPlace, Piece};
use crate::calls::{self, Code};
use crate::types::{Access, Properties};

/// The upper half of memlab's handles ("meml"); the driver's are small numbers or pointers.
const HANDLE_MARK: u64 = 0x6d65_6d6c << 32;

fn number_of(handle: u64) -> Option<u64> {
    (handle & (0xffff_ffff << 32) == HANDLE_MARK).then_some(handle & 0xffff_ffff)
}

/// Answers `cuMemCreate`; `None` leaves it to the driver.
pub fn create(bytes: u64, properties: &Properties) -> Option<Result<u64, Code>> {
    let device = properties.location.as_device()?;
    if properties.kind != Properties::PINNED {
        return None;
    }
    Some(calls::create(bytes, properties).map(|handle| {
        let physical = Physical {
            device,
            bytes,
            properties: *properties,
            references: 1,
            pieces: vec![Piece::new(0, bytes, PhysicalPlace::Device(handle))],
            mapped_at: Vec::new(),
            fixed: None,
        };
        HANDLE_MARK | MOVABLE_MEMORY.lock().add(physical)
    }))
}

/// Answers `cuMemCreate` with host memory that the device can access, for a request of `properties` on the device.
pub fn create_on_host(device: i32, bytes: u64, properties: &Properties) -> Option<Result<u64, Code>> {
    let on_host = Properties::on_host(device)?;
    // Not every kind of host memory has handles that other processes can open.
    let shareable = Properties { handle_types: properties.handle_types, ..on_host };
    let made = calls::create(bytes, &shareable).or_else(|_| calls::create(bytes, &on_host));
    Some(made.map(|handle| {
        let physical = Physical {
            device,
            bytes,
            properties: *properties,
            references: 1,
            pieces: vec![Piece::new(0, bytes, PhysicalPlace::Host(handle))],
            mapped_at: Vec::new(),
            fixed: None,
        };
        HANDLE_MARK | MOVABLE_MEMORY.lock().add(physical)
    }))
}

/// Calls `what` with the physical memory behind one of memlab's handles; `None` leaves the call to the driver.
fn with<T>(handle: u64, what: impl FnOnce(&mut MovableMemory, u64) -> Result<T, Code>) -> Option<Result<T, Code>> {
    let number = number_of(handle)?;
    let mut memory = MOVABLE_MEMORY.lock();
    if memory.physicals.get(&number).is_none_or(|physical| physical.references == 0) {
        return Some(Err(Code::INVALID_VALUE));
    }
    Some(what(&mut memory, number))
}

/// `cuMemRelease`
pub fn release(handle: u64) -> Option<Result<(), Code>> {
    with(handle, |memory, number| {
        if let Some(physical) = memory.physicals.get_mut(&number) {
            physical.references -= 1;
        }
        if let Some(unused) = memory.take_if_unused(number) {
            unused.release();
        }
        Ok(())
    })
}

/// `cuMemMap`
pub fn map(address: u64, bytes: u64, offset: u64, handle: u64, flags: u64) -> Option<Result<(), Code>> {
    with(handle, |memory, number| {
        let physical = memory.physicals.get_mut(&number).ok_or(Code::INVALID_VALUE)?;
        if offset != 0 || flags != 0 || bytes > physical.bytes {
            return Err(Code::INVALID_VALUE);
        }
        physical.map_at(address, bytes)?;
        physical.mapped_at.push(address);
        memory.mappings.insert(address, Mapping { bytes, physical: number, access: Vec::new(), allocation: None });
        Ok(())
    })
}

/// Answers `cuMemUnmap` of a range that contains memlab's memory; `None` leaves it to the driver.
pub fn unmap(address: u64, bytes: u64) -> Option<Result<(), Code>> {
    let mut memory = MOVABLE_MEMORY.lock();
    let end = address.saturating_add(bytes);
    if memory.mapping_at(address).is_some_and(|(start, _)| start < address) {
        return Some(Err(Code::INVALID_VALUE)); // Starts in its middle: the driver has pieces that the program does not know.
    }
    let ours: Vec<(u64, u64)> = memory.mappings.range(address..end).map(|(&at, it)| (at, it.bytes)).collect();
    if ours.is_empty() {
        return None;
    }
    let is_part = |&(at, length): &(u64, u64)| {
        at + length > end || memory.mappings.get(&at).is_some_and(|mapping| mapping.allocation.is_some())
    };
    if ours.iter().any(is_part) {
        return Some(Err(Code::INVALID_VALUE)); // Partial, or the wrong call: the driver refuses it too.
    }
    // Memory between these is the driver's.
    let mut next = address;
    for &(at, length) in ours.iter().chain([&(end, 0)]) {
        if at > next
            && let Err(code) = calls::unmap(next, at - next)
        {
            return Some(Err(code));
        }
        next = at + length;
    }
    for (at, length) in ours {
        let number = memory.mappings.get(&at).map_or(0, |mapping| mapping.physical);
        let unmapped = memory.physicals.get(&number).map_or(Ok(()), |physical| physical.unmap_at(at, length));
        if let Err(code) = unmapped {
            return Some(Err(code));
        }
        if let Some((_, Some(unused))) = memory.forget(at) {
            unused.release();
        }
    }
    Some(Ok(()))
}

/// Stores the access that the driver has set on a range, to set it again when memory comes back.
pub fn access_set(address: u64, bytes: u64, access: &[Access]) {
    let mut memory = MOVABLE_MEMORY.lock();
    for (_, mapping) in memory.mappings.range_mut(address..address.saturating_add(bytes)) {
        mapping.allow(access);
    }
}

/// Answers `cuMemRetainAllocationHandle`; `None` leaves it to the driver.
pub fn retain(address: u64) -> Option<Result<u64, Code>> {
    let mut memory = MOVABLE_MEMORY.lock();
    let (_, mapping) = memory.mapping_at(address)?;
    if mapping.allocation.is_some() {
        return Some(Err(Code::INVALID_VALUE)); // The driver's answer for memory from `cuMemAlloc`.
    }
    let number = mapping.physical;
    memory.physicals.get_mut(&number)?.references += 1;
    Some(Ok(HANDLE_MARK | number))
}

/// `cuMemGetAllocationPropertiesFromHandle`
pub fn properties(handle: u64) -> Option<Result<Properties, Code>> {
    with(handle, |memory, number| memory.physicals.get(&number).map(|it| it.properties).ok_or(Code::INVALID_VALUE))
}

/// Shares the memory through the driver's handle.
///
/// If that succeeds, the memory is never moved again. Memory that is wholly or partly on the host cannot be shared.
pub fn fix(handle: u64, why: &'static str, share: impl FnOnce(u64) -> Result<(), Code>) -> Option<Result<(), Code>> {
    with(handle, |memory, number| {
        let physical = memory.physicals.get_mut(&number).ok_or(Code::INVALID_VALUE)?;
        let [Piece { place: PhysicalPlace::Device(handle), .. }] = physical.pieces[..] else {
            return Err(Code::NOT_SUPPORTED);
        };
        share(handle)?;
        physical.fixed = Some(why);
        Ok(())
    })
}

/// Excludes the memory mapped at an address from moves.
pub fn fix_at(address: u64, why: &'static str) {
    let mut memory = MOVABLE_MEMORY.lock();
    let number = memory.mapping_at(address).map(|(_, mapping)| mapping.physical);
    if let Some(physical) = number.and_then(|number| memory.physicals.get_mut(&number)) {
        physical.fixed = Some(why);
    }
}
