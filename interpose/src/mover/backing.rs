//! The driver's memory calls, answered by virtual memory management: the program gets addresses as before, and the
//! physical memory behind them can leave and come back.
//!
//! Called from hooks with unknown locks of the program's held. `cuMemAlloc`ed memory of [`LEAST`] bytes and more is backed
//! this way; what is smaller shares pages with others in the driver and stays there. Memory that the program manages
//! itself (`cuMemCreate`) gets handles of memlab's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::captures;
use super::driver::{self, Access, Code, Current, Properties};
use super::holdings::{Allocation, HOLDINGS, Holdings, Mapping, Physical, Piece, Place};
use crate::cuda::info;

/// One page of a GPU. Below that, a page would be mostly air.
pub const LEAST: u64 = 2 << 20;

/// The upper half of the handles that the program gets ("meml"); the driver's are small numbers or pointers.
const HANDLE_MARK: u64 = 0x6d65_6d6c << 32;

fn number_of(handle: u64) -> Option<u64> {
    (handle & (0xffff_ffff << 32) == HANDLE_MARK).then_some(handle & 0xffff_ffff)
}

/// Physical memory comes in multiples of this on the devices in use.
fn page_bytes(properties: &Properties) -> Result<u64, Code> {
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let bytes = driver::granularity(properties)?.max(LEAST);
            KNOWN.store(bytes, Ordering::Relaxed);
            Ok(bytes)
        }
        known => Ok(known),
    }
}

/// `cuMemAlloc`, of a size worth it; `None` leaves it to the driver.
pub fn allocate(bytes: u64) -> Option<Result<u64, Code>> {
    if bytes < LEAST {
        return None;
    }
    let (device, context) = (info::current_device(), info::current_context());
    if context == 0 {
        return None; // The driver says what is wrong.
    }
    if !driver::can_map(device) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            crate::say("this device has no virtual memory management: its memory cannot be offloaded");
        }
        return None;
    }
    Some(allocate_at(Properties::on_device(device), device, bytes, context))
}

/// The same in host memory, at an address that the device reaches; `None` where the driver has no such memory.
pub fn allocate_on_host(bytes: u64) -> Option<Result<u64, Code>> {
    let (device, context) = (info::current_device(), info::current_context());
    let properties = Properties::on_host(device)?;
    Some(allocate_at(properties, device, bytes, context))
}

fn allocate_at(properties: Properties, device: i32, requested: u64, context: u64) -> Result<u64, Code> {
    let page = page_bytes(&properties)?;
    let bytes = requested.checked_next_multiple_of(page).ok_or(Code::OUT_OF_MEMORY)?;
    let address = driver::reserve(bytes, page)?;
    let made = driver::create(bytes, &properties).and_then(|handle| {
        let place = if properties.location.as_device().is_some() { Place::Device(handle) } else { Place::Host(handle) };
        let physical = Physical {
            device,
            bytes,
            properties: Properties::on_device(device),
            references: 0,
            pieces: vec![Piece::new(0, bytes, place)],
            mapped_at: vec![address],
            fixed: None,
        };
        let mut holdings = HOLDINGS.lock();
        let mut access = vec![Access::full(device)];
        access.extend(holdings.peers.iter().filter(|(owner, _)| *owner == device).map(|(_, peer)| Access::full(*peer)));
        let mapped = physical.map_at(address, bytes).and_then(|()| {
            driver::set_access(address, bytes, &access).inspect_err(|_| {
                let _ = physical.unmap_at(address, bytes);
            })
        });
        if let Err(code) = mapped {
            physical.release();
            return Err(code);
        }
        let number = holdings.add(physical);
        let allocation = Some(Allocation { requested, context });
        holdings.mappings.insert(address, Mapping { bytes, physical: number, access, allocation });
        Ok(())
    });
    match made {
        Ok(()) => Ok(address),
        Err(code) => {
            driver::free_address(address, bytes);
            Err(code)
        }
    }
}

/// `cuMemFree`; `None` leaves it to the driver.
pub fn free(address: u64) -> Option<Result<(), Code>> {
    let mut holdings = HOLDINGS.lock();
    let context = holdings.mappings.get(&address)?.allocation?.context;
    let (mapping, physical) = holdings.forget(address)?;
    let Some(physical) = physical else { return Some(Ok(())) };
    if physical.pieces.iter().all(|piece| matches!(piece.place, Place::Arena(_))) {
        physical.release();
        driver::free_address(address, mapping.bytes);
        return Some(Ok(()));
    }
    let freed = Freed { address, context, mapping, physical };
    if captures::is_any() {
        // `cuMemFree` may be called beside a capture; to synchronise beside it would spoil it.
        holdings.put_off.push(freed);
        return Some(Ok(()));
    }
    drop(holdings);
    match freed.detach() {
        Ok(()) => freed.give_back(),
        Err(code) => {
            let Freed { address, mapping, physical, .. } = freed;
            let mut holdings = HOLDINGS.lock();
            let number = holdings.add(Physical { mapped_at: vec![address], ..physical });
            holdings.mappings.insert(address, Mapping { physical: number, ..mapping });
            return Some(Err(code));
        }
    }
    Some(Ok(()))
}

/// Memory that the program has freed.
pub struct Freed {
    address: u64,
    context: u64,
    mapping: Mapping,
    physical: Physical,
}

impl Freed {
    /// As `cuMemFree` does: what uses the memory comes to its end first.
    fn detach(&self) -> Result<(), Code> {
        let finished = Current::switch(self.context).and_then(|_current| driver::synchronize());
        finished.and_then(|()| self.physical.unmap_at(self.address, self.mapping.bytes))
    }

    fn give_back(self) {
        self.physical.release();
        driver::free_address(self.address, self.mapping.bytes);
    }
}

/// A capture has ended: what was freed beside it goes now, unless there is another.
pub fn free_what_was_put_off() {
    if captures::is_any() {
        return;
    }
    let put_off = std::mem::take(&mut HOLDINGS.lock().put_off);
    let (gone, left): (Vec<_>, Vec<_>) = put_off.into_iter().partition(|freed| freed.detach().is_ok());
    gone.into_iter().for_each(Freed::give_back);
    HOLDINGS.lock().put_off.extend(left);
}

/// A context goes, and what was allocated in it with it. Whoever moves memory uses contexts, so its end is waited for.
pub fn destroy_context(context: u64, destroy: impl FnOnce() -> bool) {
    let mut holdings = HOLDINGS.lock();
    if !destroy() {
        return;
    }
    super::context_destroyed(context);
    captures::context_destroyed(context);
    let in_it = |mapping: &Mapping| mapping.allocation.is_some_and(|allocation| allocation.context == context);
    let gone: Vec<u64> = holdings.mappings.iter().filter(|(_, it)| in_it(it)).map(|(&at, _)| at).collect();
    for address in gone {
        if let Some((mapping, Some(physical))) = holdings.forget(address) {
            let _ = physical.unmap_at(address, mapping.bytes);
            physical.release();
            driver::free_address(address, mapping.bytes);
        }
    }
}

/// `cuMemGetAddressRange` of what consists of pieces, which the driver takes for several ranges.
pub fn range(address: u64) -> Option<(u64, u64)> {
    let holdings = HOLDINGS.lock();
    let (start, mapping) = holdings.mapping_at(address)?;
    Some((start, mapping.bytes_asked_for()))
}

/// The answer to an attribute of an address, of C's `int` or of 8 bytes.
pub enum Fact {
    Number(i32),
    Word(u64),
}

/// What `cuPointerGetAttribute` has to say of memory that memlab backs, where the driver's answer would depend on where
/// the bytes are at the moment, on how many pieces they are in, or on who has allocated them; `None` leaves it to the driver.
pub fn attribute(address: u64, attribute: i32) -> Option<Fact> {
    /// `CUpointer_attribute`
    const CONTEXT: i32 = 1;
    const MEMORY_TYPE: i32 = 2;
    const DEVICE_ORDINAL: i32 = 9;
    const RANGE_START: i32 = 11;
    const RANGE_BYTES: i32 = 12;
    const MAPPING_BYTES: i32 = 18;
    const MAPPING_START: i32 = 19;
    /// `CU_MEMORYTYPE_DEVICE`
    const DEVICE: i32 = 2;
    let holdings = HOLDINGS.lock();
    let (start, mapping) = holdings.mapping_at(address)?;
    match attribute {
        CONTEXT => mapping.allocation.map(|allocation| Fact::Word(allocation.context)),
        MEMORY_TYPE => Some(Fact::Number(DEVICE)),
        DEVICE_ORDINAL => holdings.physicals.get(&mapping.physical).map(|physical| Fact::Number(physical.device)),
        RANGE_START | MAPPING_START => Some(Fact::Word(start)),
        RANGE_BYTES | MAPPING_BYTES => Some(Fact::Word(mapping.bytes_asked_for())),
        _ => None,
    }
}

/// `cuMemCreate`; `None` leaves it to the driver.
pub fn create(bytes: u64, properties: &Properties) -> Option<Result<u64, Code>> {
    let device = properties.location.as_device()?;
    if properties.kind != Properties::PINNED {
        return None;
    }
    Some(driver::create(bytes, properties).map(|handle| {
        let physical = Physical {
            device,
            bytes,
            properties: *properties,
            references: 1,
            pieces: vec![Piece::new(0, bytes, Place::Device(handle))],
            mapped_at: Vec::new(),
            fixed: None,
        };
        HANDLE_MARK | HOLDINGS.lock().add(physical)
    }))
}

/// The same in host memory that the device reaches: what the program asked for on the device, of these `properties`.
pub fn create_on_host(device: i32, bytes: u64, properties: &Properties) -> Option<Result<u64, Code>> {
    let on_host = Properties::on_host(device)?;
    // A handle that other processes could open is not to be had of every kind of host memory.
    let shareable = Properties { handle_types: properties.handle_types, ..on_host };
    let made = driver::create(bytes, &shareable).or_else(|_| driver::create(bytes, &on_host));
    Some(made.map(|handle| {
        let physical = Physical {
            device,
            bytes,
            properties: *properties,
            references: 1,
            pieces: vec![Piece::new(0, bytes, Place::Host(handle))],
            mapped_at: Vec::new(),
            fixed: None,
        };
        HANDLE_MARK | HOLDINGS.lock().add(physical)
    }))
}

/// Does something with the physical memory behind a handle of memlab's; `None` leaves it to the driver.
fn with<T>(handle: u64, what: impl FnOnce(&mut Holdings, u64) -> Result<T, Code>) -> Option<Result<T, Code>> {
    let number = number_of(handle)?;
    let mut holdings = HOLDINGS.lock();
    if holdings.physicals.get(&number).is_none_or(|physical| physical.references == 0) {
        return Some(Err(Code::INVALID_VALUE));
    }
    Some(what(&mut holdings, number))
}

/// `cuMemRelease`
pub fn release(handle: u64) -> Option<Result<(), Code>> {
    with(handle, |holdings, number| {
        if let Some(physical) = holdings.physicals.get_mut(&number) {
            physical.references -= 1;
        }
        if let Some(unused) = holdings.take_if_unused(number) {
            unused.release();
        }
        Ok(())
    })
}

/// `cuMemMap`
pub fn map(address: u64, bytes: u64, offset: u64, handle: u64, flags: u64) -> Option<Result<(), Code>> {
    with(handle, |holdings, number| {
        let physical = holdings.physicals.get_mut(&number).ok_or(Code::INVALID_VALUE)?;
        if offset != 0 || flags != 0 || bytes > physical.bytes {
            return Err(Code::INVALID_VALUE);
        }
        physical.map_at(address, bytes)?;
        physical.mapped_at.push(address);
        holdings.mappings.insert(address, Mapping { bytes, physical: number, access: Vec::new(), allocation: None });
        Ok(())
    })
}

/// `cuMemUnmap` of a range in which something is memlab's; `None` leaves it to the driver.
pub fn unmap(address: u64, bytes: u64) -> Option<Result<(), Code>> {
    let mut holdings = HOLDINGS.lock();
    let end = address.saturating_add(bytes);
    if holdings.mapping_at(address).is_some_and(|(start, _)| start < address) {
        return Some(Err(Code::INVALID_VALUE)); // From its middle on: the driver knows pieces that the program does not.
    }
    let ours: Vec<(u64, u64)> = holdings.mappings.range(address..end).map(|(&at, it)| (at, it.bytes)).collect();
    if ours.is_empty() {
        return None;
    }
    let is_part = |&(at, length): &(u64, u64)| {
        at + length > end || holdings.mappings.get(&at).is_some_and(|mapping| mapping.allocation.is_some())
    };
    if ours.iter().any(is_part) {
        return Some(Err(Code::INVALID_VALUE)); // In part, or by the wrong call: the driver refuses it too.
    }
    // What lies between is the driver's.
    let mut next = address;
    for &(at, length) in ours.iter().chain([&(end, 0)]) {
        if at > next
            && let Err(code) = driver::unmap(next, at - next)
        {
            return Some(Err(code));
        }
        next = at + length;
    }
    for (at, length) in ours {
        let number = holdings.mappings.get(&at).map_or(0, |mapping| mapping.physical);
        let unmapped = holdings.physicals.get(&number).map_or(Ok(()), |physical| physical.unmap_at(at, length));
        if let Err(code) = unmapped {
            return Some(Err(code));
        }
        if let Some((_, Some(unused))) = holdings.forget(at) {
            unused.release();
        }
    }
    Some(Ok(()))
}

/// The driver has allowed access to a range: remembered, to be allowed again when memory comes back.
pub fn access_set(address: u64, bytes: u64, access: &[Access]) {
    let mut holdings = HOLDINGS.lock();
    for (_, mapping) in holdings.mappings.range_mut(address..address.saturating_add(bytes)) {
        mapping.allow(access);
    }
}

/// `cuMemRetainAllocationHandle`; `None` leaves it to the driver.
pub fn retain(address: u64) -> Option<Result<u64, Code>> {
    let mut holdings = HOLDINGS.lock();
    let (_, mapping) = holdings.mapping_at(address)?;
    if mapping.allocation.is_some() {
        return Some(Err(Code::INVALID_VALUE)); // As the driver says of what `cuMemAlloc` made.
    }
    let number = mapping.physical;
    holdings.physicals.get_mut(&number)?.references += 1;
    Some(Ok(HANDLE_MARK | number))
}

/// `cuMemGetAllocationPropertiesFromHandle`
pub fn properties(handle: u64) -> Option<Result<Properties, Code>> {
    with(handle, |holdings, number| holdings.physicals.get(&number).map(|it| it.properties).ok_or(Code::INVALID_VALUE))
}

/// Lets others keep the memory too, by the driver's own handle of it: where that succeeds, it stays where it is from here
/// on. What is in host memory, in whole or in part, would have to come back first.
pub fn fix(handle: u64, why: &'static str, share: impl FnOnce(u64) -> Result<(), Code>) -> Option<Result<(), Code>> {
    with(handle, |holdings, number| {
        let physical = holdings.physicals.get_mut(&number).ok_or(Code::INVALID_VALUE)?;
        let [Piece { place: Place::Device(handle), .. }] = physical.pieces[..] else {
            return Err(Code::NOT_SUPPORTED);
        };
        share(handle)?;
        physical.fixed = Some(why);
        Ok(())
    })
}

/// The same for what is mapped at an address.
pub fn fix_at(address: u64, why: &'static str) {
    let mut holdings = HOLDINGS.lock();
    let number = holdings.mapping_at(address).map(|(_, mapping)| mapping.physical);
    if let Some(physical) = number.and_then(|number| holdings.physicals.get_mut(&number)) {
        physical.fixed = Some(why);
    }
}

/// Whether an address is in memory that memlab has made up for `cuMemAlloc`.
pub fn is_backed(address: u64) -> bool {
    HOLDINGS.lock().mapping_at(address).is_some_and(|(_, mapping)| mapping.allocation.is_some())
}

/// `cuCtxEnablePeerAccess` has let `device` reach the memory of `owner`, as it does with memory of the driver's own.
pub fn peer_enabled(owner: i32, device: i32) {
    let mut holdings = HOLDINGS.lock();
    if holdings.peers.contains(&(owner, device)) {
        return;
    }
    holdings.peers.push((owner, device));
    let access = [Access::full(device)];
    let Holdings { physicals, mappings, .. } = &mut *holdings;
    for (&address, mapping) in mappings.iter_mut().filter(|(_, mapping)| mapping.allocation.is_some()) {
        if physicals.get(&mapping.physical).is_some_and(|physical| physical.device == owner) {
            mapping.allow(&access);
            // What is not mapped now is allowed when it comes back.
            let _ = driver::set_access(address, mapping.bytes, &access);
        }
    }
}
