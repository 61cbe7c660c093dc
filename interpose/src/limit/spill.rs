//! Allocations beyond the limit, placed in host memory that the device can access.
//!
//! Kernels go on as before, over the bus.
//!
//! Large blocks are host memory mapped at device addresses, as the mover creates them; the mover can also bring them back.
//! Small blocks, and those that the driver cannot map so, are pinned memory. Neither is allocated if the machine has little
//! memory left: for the program, a failed allocation is better than being killed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::card::{GRANULE, card};
use interpose_base::loaded_objects;
use interpose_base::locks;
use interpose_driver::caller;
use interpose_driver::calls::{self, Code, Current, RelaxedCaptures};
use interpose_driver::device::current_device;
use interpose_driver::types::Properties;
use interpose_driver::vmm::{allocations, captures, contexts, handles, host_memory, mode, queries, totals};
use memlab_protocol::status::kept_free;

/// The cached memory, in bytes, for which PyTorch's allocator is refused an allocation on a large card.
const WORTH_RETURNING: u64 = 256 << 20;

/// A pinned block that replaces a device allocation.
struct Pinned {
    bytes: u64,
    device: i32,
    /// Context whose work may use the block.
    context: u64,
}

static PINNED: Mutex<BTreeMap<u64, Pinned>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Refused request of PyTorch's allocator on this thread, as device and bytes.
    ///
    /// It spills when it is repeated.
    static REFUSED_REQUEST: Cell<Option<(i32, u64)>> = const { Cell::new(None) };
}

/// Returns true if an allocation beyond the limit spills now.
///
/// PyTorch's caching allocator returns its cached memory when it is refused, and repeats the request: only the repetition
/// spills. This stops the GPU, so the allocator is refused only if it can return much. Other callers are not refused first.
/// Nor is the allocator while any thread captures a graph: it would not repeat the request, or break the capture.
pub(super) fn is_due(device: i32, bytes: u64, caller: usize) -> bool {
    let Some(card) = card(device) else { return true };
    if !is_caching_allocator(caller) || captures::is_any() || RelaxedCaptures::begin().were_relaxed() {
        return true;
    }
    let was_refused = REFUSED_REQUEST.with(Cell::get) == Some((device, bytes));
    if was_refused {
        card.has_returned();
    }
    let worth_it = card.limit().map_or(WORTH_RETURNING, |limit| WORTH_RETURNING.min(limit / 32)).max(bytes);
    if was_refused || card.returnable() < worth_it {
        return true;
    }
    REFUSED_REQUEST.with(|refused| refused.set(Some((device, bytes))));
    false
}

/// Bytes of a card that spilling leaves to allocations; `None` if the driver does not know.
pub fn room_of_card(device: i32) -> Option<u64> {
    let is_current = calls::current_context() != 0 && current_device() == device;
    let _current = if is_current { None } else { Some(Current::switch(contexts::of_device(device)).ok()?) };
    let (free, total) = calls::memory_info().ok()?;
    Some(free.saturating_sub(kept_free(total)))
}

/// Returns true if an allocation must not have the card's last memory, and can be host memory. Small ones may have it.
pub(super) fn is_card_full(device: i32, bytes: u64) -> bool {
    let may_be_full = bytes >= GRANULE && is_allowed(device);
    may_be_full && room_of_card(device).is_some_and(|room| room < bytes) && machine_has(bytes).is_some()
}

/// Returns true if an allocation for which the driver had no memory spills now: see [`is_due`].
pub(super) fn is_due_when_full(device: i32, bytes: u64, caller: usize) -> bool {
    is_allowed(device) && bytes > 0 && is_due(device, bytes, caller)
}

pub(super) fn is_allowed(device: i32) -> bool {
    card(device).is_some_and(|card| card.spills.load(Ordering::Relaxed))
}

/// Ends a successful request: the thread's next one is refused first again.
///
/// (Expandable segments allocate memory piece by piece; the request has succeeded when they map it.)
pub fn attempt_ended() {
    REFUSED_REQUEST.with(|refused| refused.set(None));
}

fn is_caching_allocator(caller: usize) -> bool {
    loaded_objects::library_of(caller::outermost_caller(caller)).is_some_and(|name| name.starts_with("libc10_cuda"))
}

/// Allocates host memory for `bytes` that belong on the current device.
///
/// The address is valid on host and device. Returns `None` on failure.
pub fn allocate(bytes: u64) -> Option<u64> {
    machine_has(bytes)?;
    let _relaxed = RelaxedCaptures::begin();
    mode::begin_to_hold();
    let mapped = if bytes >= GRANULE / 2 { allocations::allocate_on_host(bytes) } else { None };
    if let Some(Ok(address)) = mapped {
        return Some(address);
    }
    let address = calls::allocate_pinned(usize::try_from(bytes).ok()?).ok()?;
    let block = Pinned { bytes, device: current_device(), context: calls::current_context() };
    PINNED.lock().insert(address, block);
    Some(address)
}

/// Creates physical memory on the host instead of the device, for a program that maps it itself; `None` on failure.
pub fn create(device: i32, bytes: u64, properties: &Properties) -> Option<u64> {
    machine_has(bytes)?;
    mode::begin_to_hold();
    handles::create_on_host(device, bytes, properties)?.ok()
}

/// Returns `None` if the machine has no room for `bytes` more of host memory.
pub fn machine_has(bytes: u64) -> Option<()> {
    host_memory::check(bytes, totals::host_bytes()).ok()
}

/// Returns true if the address is that of a memlab block in host memory.
pub fn holds(address: u64) -> bool {
    mode::holds_memory() && (PINNED.lock().contains_key(&address) || queries::is_backed(address))
}

/// Frees the pinned block at this address, if one exists.
///
/// Waits for work that uses it, as `cuMemFree` does.
pub fn free(address: u64) -> Option<Result<(), Code>> {
    let block = PINNED.lock().remove(&address)?;
    let _relaxed = RelaxedCaptures::begin();
    // No work runs in a destroyed context.
    let _ = Current::switch(block.context).and_then(|_current| calls::synchronize());
    calls::free_pinned(address);
    Some(Ok(()))
}

/// Forgets the memory of a destroyed context.
pub fn context_destroyed(context: u64) {
    let gone: Vec<u64> = {
        let mut blocks = PINNED.lock();
        let gone = blocks.iter().filter(|(_, block)| block.context == context).map(|(&address, _)| address).collect();
        blocks.retain(|_, block| block.context != context);
        gone
    };
    gone.into_iter().for_each(calls::free_pinned);
}

/// Bytes of pinned blocks, for each device that has any.
pub fn pinned_bytes() -> BTreeMap<i32, u64> {
    let mut by_device = BTreeMap::new();
    for block in PINNED.lock().values() {
        *by_device.entry(block.device).or_default() += block.bytes;
    }
    by_device
}

/// Bytes of a device that are in host memory; `None` while they are being moved.
pub(super) fn on_host(device: i32) -> Option<u64> {
    Some(totals::host_bytes_of(device)? + pinned_on(device))
}

/// Bytes of a device that are in host memory: those that may come back now, and the most since the last call.
pub fn take_most(device: i32) -> (u64, u64) {
    let movable = totals::host_bytes_of(device).unwrap_or(0);
    let now = movable + pinned_on(device);
    let most = card(device).map_or(now, |card| card.most_on_host.swap(now, Ordering::Relaxed).max(now));
    // Nothing may interrupt the capture of a graph.
    (if captures::is_any() { 0 } else { movable }, most)
}

fn pinned_on(device: i32) -> u64 {
    pinned_bytes().get(&device).copied().unwrap_or(0)
}

pub fn reset_in_child() {
    locks::reset_in_child(&PINNED, BTreeMap::new());
}
