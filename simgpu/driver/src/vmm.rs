//! Virtual memory management: address ranges reserved separately from the physical memory mapped into them.
//!
//! Physical memory is a memfd. Mapping it is `mmap` with `MAP_FIXED`, without access until `cuMemSetAccess`. The same
//! bytes can be mapped at two addresses, unmapped, mapped elsewhere and passed to another process. Unmapped addresses
//! fault.

use std::ffi::CString;

use crate::addresses::GRANULE;
use crate::api::{answer, api};
use crate::code::{Answer, Code};
use crate::fail::count_allocation;
use crate::objects::{Location, Physical, Properties};
use crate::pages::{self, PAGE};
use crate::space::{Block, Kind};
use crate::state::{DriverState, state};
use crate::written;

/// `CUmemAccessDesc` (12 bytes): flags 0 none, 1 read, 3 read and write.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Access {
    location: Location,
    flags: i32,
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

const POSIX_FILE_DESCRIPTOR: i32 = 1;
const PINNED: i32 = 1;

/// Returns the device of a location; `None` for host memory.
fn place(state: &DriverState, location: Location) -> Result<Option<usize>, Code> {
    match location.kind {
        1 => state.device(location.id).map(Some),
        2..=4 => Ok(None),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn aligned(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULE)
}

fn check(state: &DriverState, properties: *const Properties) -> Result<(Properties, Option<usize>), Code> {
    // SAFETY: callers pass the pointer of an entry point whose caller vouches for it.
    let properties = *unsafe { properties.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    if properties.kind != PINNED {
        return Err(Code::INVALID_VALUE);
    }
    if properties.handle_types & !POSIX_FILE_DESCRIPTOR != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let device = place(state, properties.location)?;
    Ok((properties, device))
}

fn create(state: &mut DriverState, size: u64, properties: *const Properties) -> Result<usize, Code> {
    let (properties, device) = check(state, properties)?;
    if !aligned(size) {
        return Err(Code::INVALID_VALUE);
    }
    count_allocation()?;
    if let Some(device) = device {
        state.charge(device, size)?;
    }
    // The name gives an importing process, which can see other devices, the location of the memory.
    let card = device.map_or(0, |device| state.cards.physical(device));
    let name = CString::new(format!("simgpu:{}:{card}", properties.location.kind));
    let file = name.ok().and_then(|name| pages::file(&name, size));
    let Some(file) = file else {
        if let Some(device) = device {
            state.cards.give_back(device, size);
        }
        return Err(Code::OUT_OF_MEMORY);
    };
    let handle = state.new_handle();
    let physical = Physical { size, properties, file, charged: device, references: 1, mappings: 0 };
    state.virtual_memory.physical.insert(handle, physical);
    Ok(handle)
}

/// Frees physical memory without handles or mappings.
fn reclaim(state: &mut DriverState, handle: usize) {
    let unused = |physical: &Physical| physical.references == 0 && physical.mappings == 0;
    if !state.virtual_memory.physical.get(&handle).is_some_and(unused) {
        return;
    }
    if let Some(physical) = state.virtual_memory.physical.remove(&handle) {
        pages::close(physical.file);
        if let Some(device) = physical.charged {
            state.cards.give_back(device, physical.size);
        }
    }
}

fn get(state: &mut DriverState, handle: usize) -> Result<&mut Physical, Code> {
    let physical = state.virtual_memory.physical.get_mut(&handle);
    physical.filter(|physical| physical.references > 0).ok_or(Code::INVALID_VALUE)
}

fn map(address: u64, size: u64, offset: u64, handle: usize) -> Answer {
    let mut state = state()?;
    let physical = get(&mut state, handle)?;
    let (file, properties) = (physical.file, physical.properties);
    if offset != 0 || !aligned(size) || size > physical.size || !address.is_multiple_of(GRANULE) {
        return Err(Code::INVALID_VALUE);
    }
    let (base, reserved) = state.space.reservation(address).ok_or(Code::INVALID_VALUE)?;
    if address + size > base + reserved || state.space.within(address, size).next().is_some() {
        return Err(Code::INVALID_VALUE);
    }
    if !pages::map_file_at(address, size, file, offset, libc::PROT_NONE) {
        return Err(Code::OUT_OF_MEMORY);
    }
    get(&mut state, handle)?.mappings += 1;
    let device = if properties.location.kind == 1 { properties.location.id as usize } else { 0 };
    state.space.insert(Block::new(address, size, size, Kind::Mapped { handle, accessible: false }, device));
    Ok(())
}

/// Returns the mappings that fill a range exactly.
fn whole_mappings(state: &DriverState, address: u64, size: u64) -> Result<Vec<(u64, usize)>, Code> {
    let mut next = address;
    let mut mappings = Vec::new();
    for block in state.space.within(address, size) {
        let Kind::Mapped { handle, .. } = block.kind else { return Err(Code::INVALID_VALUE) };
        if block.base != next {
            return Err(Code::INVALID_VALUE);
        }
        mappings.push((block.base, handle));
        next += block.size;
    }
    if next == address + size && size > 0 { Ok(mappings) } else { Err(Code::INVALID_VALUE) }
}

fn unmap(address: u64, size: u64) -> Answer {
    let mut state = state()?;
    for (base, handle) in whole_mappings(&state, address, size)? {
        state.space.remove(base);
        if let Some(physical) = state.virtual_memory.physical.get_mut(&handle) {
            physical.mappings -= 1;
        }
        reclaim(&mut state, handle);
    }
    pages::vacate(address, size);
    written::forget(address, size);
    Ok(())
}

fn set_access(address: u64, size: u64, wanted: &[Access]) -> Answer {
    let mut state = state()?;
    let mut flags = None;
    for access in wanted {
        place(&state, access.location)?;
        if !matches!(access.flags, 0 | 1 | 3) {
            return Err(Code::INVALID_VALUE);
        }
        flags = flags.max(Some(access.flags));
    }
    let flags = flags.ok_or(Code::INVALID_VALUE)?;
    for (base, handle) in whole_mappings(&state, address, size)? {
        if let Some(block) = state.space.get_mut(base) {
            block.kind = Kind::Mapped { handle, accessible: flags != 0 };
        }
    }
    let protection = match flags {
        0 => libc::PROT_NONE,
        1 => libc::PROT_READ,
        _ => libc::PROT_READ | libc::PROT_WRITE,
    };
    pages::protect(address, size, protection);
    Ok(())
}

/// Returns the location of imported memory, from the file name that its exporter set.
fn location_of(file: i32) -> Option<Location> {
    let name = std::fs::read_link(format!("/proc/self/fd/{file}")).ok()?;
    let name = name.to_str()?;
    let rest = name.strip_prefix("/memfd:simgpu:")?;
    let (kind, rest) = rest.split_once(':')?;
    let id = rest.split_whitespace().next()?;
    Some(Location { kind: kind.parse().ok()?, id: id.parse().ok()? })
}

fn import(state: &mut DriverState, file: i32) -> Result<usize, Code> {
    let mut location = location_of(file).ok_or(Code::INVALID_VALUE)?;
    if location.kind == 1 {
        location.id = state.cards.visible(location.id as usize).ok_or(Code::INVALID_DEVICE)? as i32;
    }
    // SAFETY: the descriptor was just seen to be one of ours; duplicates share the memory.
    let (own, size) = unsafe {
        let own = libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 3);
        let mut status: libc::stat = std::mem::zeroed();
        if own < 0 || libc::fstat(own, &mut status) != 0 {
            return Err(Code::INVALID_VALUE);
        }
        (own, status.st_size as u64)
    };
    let handle = state.new_handle();
    let properties = Properties { kind: PINNED, handle_types: POSIX_FILE_DESCRIPTOR, location, win32: 0, flags: 0 };
    let physical = Physical { size, properties, file: own, charged: None, references: 1, mappings: 0 };
    state.virtual_memory.physical.insert(handle, physical);
    Ok(handle)
}

api! {
    fn cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const Properties, option: i32) {
        check(&*state()?, properties)?;
        if !matches!(option, 0 | 1) {
            return Err(Code::INVALID_VALUE);
        }
        answer(granularity, GRANULE as usize)?;
    }

    fn cuMemAddressReserve(to: *mut u64, size: usize, alignment: usize, wanted: u64, flags: u64) {
        let power = alignment == 0 || alignment.is_power_of_two();
        if to.is_null() || size == 0 || !(size as u64).is_multiple_of(PAGE) || !power || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = state()?;
        let base = pages::reserve(size as u64, (alignment as u64).max(GRANULE), wanted).ok_or(Code::OUT_OF_MEMORY)?;
        state.space.reserved.insert(base, size as u64);
        answer(to, base)?;
    }

    fn cuMemAddressFree(address: u64, size: usize) {
        let mut state = state()?;
        let known = state.space.reserved.get(&address) == Some(&(size as u64));
        if !known || state.space.within(address, size as u64).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        state.space.reserved.remove(&address);
        pages::unmap(address, size as u64);
    }

    fn cuMemCreate(handle: *mut usize, size: usize, properties: *const Properties, flags: u64) {
        if handle.is_null() || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let made = create(&mut *state()?, size as u64, properties)?;
        answer(handle, made)?;
    }

    fn cuMemRelease(handle: usize) {
        let mut state = state()?;
        get(&mut state, handle)?.references -= 1;
        reclaim(&mut state, handle);
    }

    fn cuMemMap(address: u64, size: usize, offset: usize, handle: usize, flags: u64) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        map(address, size as u64, offset as u64, handle)?;
    }

    fn cuMemUnmap(address: u64, size: usize) {
        unmap(address, size as u64)?;
    }

    fn cuMemSetAccess(address: u64, size: usize, access: *const Access, count: usize) {
        if access.is_null() || count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        set_access(address, size as u64, std::slice::from_raw_parts(access, count))?;
    }

    fn cuMemGetAccess(flags: *mut u64, location: *const Location, address: u64) {
        let state = state()?;
        place(&state, *location.as_ref().ok_or(Code::INVALID_VALUE)?)?;
        let block = state.space.find(address).ok_or(Code::INVALID_VALUE)?;
        answer(flags, if block.is_accessible() { 3 } else { 0 })?;
    }

    fn cuMemRetainAllocationHandle(handle: *mut usize, address: u64) {
        let mut state = state()?;
        let Some(Block { kind: Kind::Mapped { handle: known, .. }, .. }) = state.space.find(address).copied() else {
            return Err(Code::INVALID_VALUE);
        };
        state.virtual_memory.physical.get_mut(&known).ok_or(Code::INVALID_VALUE)?.references += 1;
        answer(handle, known)?;
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: *mut Properties, handle: usize) {
        let known = get(&mut *state()?, handle)?.properties;
        answer(properties, known)?;
    }

    fn cuMemExportToShareableHandle(to: *mut i32, handle: usize, kind: i32, flags: u64) {
        let mut state = state()?;
        let physical = get(&mut state, handle)?;
        if kind != POSIX_FILE_DESCRIPTOR {
            return Err(Code::NOT_SUPPORTED);
        }
        if flags != 0 || physical.properties.handle_types & kind == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let copy = libc::fcntl(physical.file, libc::F_DUPFD_CLOEXEC, 3);
        if copy < 0 {
            return Err(Code::OPERATING_SYSTEM);
        }
        answer(to, copy)?;
    }

    fn cuMemImportFromShareableHandle(handle: *mut usize, from: usize, kind: i32) {
        if kind != POSIX_FILE_DESCRIPTOR {
            return Err(Code::NOT_SUPPORTED);
        }
        let made = import(&mut *state()?, from as i32)?;
        answer(handle, made)?;
    }

    fn cuMemGetHandleForAddressRange(to: *mut i32, _address: u64, _size: usize, _kind: i32, _flags: u64) {
        answer(to, -1)?;
        return Err(Code::NOT_SUPPORTED);
    }

    fn cuMulticastCreate(handle: *mut usize, _properties: *const u8) {
        answer(handle, 0)?;
        return Err(Code::NOT_SUPPORTED);
    }

    fn cuMulticastAddDevice(_handle: usize, _device: i32) {
        return Err(Code::NOT_SUPPORTED);
    }

    fn cuMulticastBindMem(_to: usize, _to_offset: usize, _from: usize, _from_offset: usize, _size: usize, _flags: u64) {
        return Err(Code::NOT_SUPPORTED);
    }

    fn cuMulticastUnbind(_handle: usize, _device: i32, _offset: usize, _size: usize) {
        return Err(Code::NOT_SUPPORTED);
    }

    fn cuMulticastGetGranularity(granularity: *mut usize, _properties: *const u8, _option: i32) {
        answer(granularity, GRANULE as usize)?;
    }
}
