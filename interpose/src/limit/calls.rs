//! Applies a limit in the hooks on allocation calls: checks first, fails as a full card does, places memory on the host, and
//! keeps the charges.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use memlab_trace::record::DriverKind;
use parking_lot::Mutex;

use super::admission::{Admission, Reservation, admit, decide, seen, seen_total};
use super::card::{self, footprint, limited};
use super::in_flight::InFlight;
use super::{overhead, spill};
use crate::cuda::driver_memory::{self, Space};
use crate::memory_calls::MemoryCall;
use crate::moved_bytes;
use interpose_base::locks;
use interpose_base::panics;
use interpose_driver::calls::{self, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use interpose_driver::device::current_device;
use interpose_driver::pools;
use interpose_driver::types::{In, Out, Properties};
use memlab_protocol::request::MAX_DEVICES;

/// An allocation call, with its hook's arguments.
pub struct Call {
    pub kind: DriverKind,
    pub name: &'static str,
    pub caller: usize,
    /// Bytes requested.
    ///
    /// 0 if they cannot be determined: the call will fail.
    pub bytes: u64,
}

/// Makes the real call if the limit allows it.
///
/// `outcome` returns address and size once it has succeeded. `deliver_spilled` gives the program the address of host memory
/// instead, where possible.
pub fn take(
    call: &Call,
    real: impl Fn() -> c_int,
    outcome: impl FnOnce() -> (u64, u64),
    deliver_spilled: Option<impl FnOnce(u64)>,
) -> c_int {
    let _memory_call = MemoryCall::begin();
    let device = device_of(call.bytes);
    let admission = || match device {
        Some(device) => admit(device, footprint(call.kind, call.bytes), call.caller),
        None => Admission::Granted(Reservation::for_nothing(current_device())),
    };
    let taken = |reservation: Reservation| {
        let (address, bytes) = outcome();
        if driver_memory::allocated(call.kind, address, bytes, call.name, call.caller) {
            reservation.commit(footprint(call.kind, bytes));
        } else {
            reservation.commit_unwatched();
        }
        spill::attempt_ended();
    };
    let can_be_on_host = deliver_spilled.is_some();
    let spill = || {
        let deliver_spilled = deliver_spilled?;
        let address = spill::allocate(call.bytes)?;
        deliver_spilled(address);
        // The `moved` line precedes the allocation: the memory was never in use on the device.
        moved_bytes::record_spilled();
        driver_memory::spilled(call.kind, address, call.bytes, call.name, call.caller);
        spill::attempt_ended();
        Some(())
    };
    let may_spill = can_be_on_host && card::is_spilling();
    let is_full = || may_spill && spill::is_card_full(current_device(), call.bytes);
    let is_due = || {
        may_spill && calls::current_context() != 0 && spill::is_due_when_full(current_device(), call.bytes, call.caller)
    };
    make(admission, real, taken, Full { is_full, is_due, spill })
}

/// A full card: returns true if it is full, before the real call; returns true if memory spills then; takes host memory.
struct Full<F, D, S> {
    is_full: F,
    is_due: D,
    spill: S,
}

/// Makes the real call if the limit allows it and the card has room, or takes host memory if it is due. `taken` keeps the
/// charge of a successful call.
fn make(
    admission: impl FnOnce() -> Admission,
    real: impl Fn() -> c_int,
    taken: impl FnOnce(Reservation),
    full: Full<impl FnOnce() -> bool, impl FnOnce() -> bool, impl FnOnce() -> Option<()>>,
) -> c_int {
    match panics::catch(admission) {
        Some(Admission::Granted(reservation)) => {
            let is_held_back = panics::catch(full.is_full) == Some(true);
            let mut result = if is_held_back { CUDA_ERROR_OUT_OF_MEMORY } else { real() };
            if result == CUDA_ERROR_OUT_OF_MEMORY && panics::catch(full.is_due) == Some(true) {
                if panics::catch(full.spill).flatten().is_some() {
                    return CUDA_SUCCESS;
                }
                if is_held_back {
                    result = real(); // The card's last memory is better than an error.
                }
            }
            if result == CUDA_SUCCESS {
                panics::catch(|| taken(reservation));
            }
            result
        }
        Some(Admission::Refused) => CUDA_ERROR_OUT_OF_MEMORY,
        Some(Admission::Spill) if panics::catch(full.spill).flatten().is_some() => CUDA_SUCCESS,
        Some(Admission::Spill) => CUDA_ERROR_OUT_OF_MEMORY,
        None => real(), // memlab panicked.
    }
}

/// Makes a call that frees the memory at `address`.
///
/// The free is recorded before the call: once the driver has the memory, it may give it to another thread.
pub fn free(space: Space, address: u64, real: impl FnOnce() -> c_int) -> c_int {
    let _memory_call = MemoryCall::begin();
    let _in_flight = InFlight::begin();
    let freed = panics::catch(|| driver_memory::freeing(space, address)).flatten();
    let result = real();
    panics::catch(|| match result {
        CUDA_SUCCESS => driver_memory::freed(freed),
        _ => driver_memory::not_freed(freed),
    });
    result
}

/// Device whose limit applies to an allocation; `None` without a limit, or if the call cannot succeed anyway.
fn device_of(bytes: u64) -> Option<i32> {
    if !card::is_any_limited() || bytes == 0 || calls::current_context() == 0 {
        return None;
    }
    let device = current_device();
    limited(device).map(|_| device)
}

/// Stream-ordered allocation: its pool (null: the device's current one) and its stream.
#[derive(Clone, Copy)]
pub struct PoolCall {
    pub pool: *mut c_void,
    pub stream: *mut c_void,
    /// Output of the call for the address.
    pub pointer: Out<u64>,
}

/// Hooks do not see a pool grow, so one thread at a time allocates from the pools of a limited device.
static POOL_CALLS: [Mutex<()>; MAX_DEVICES] = [const { Mutex::new(()) }; MAX_DEVICES];

/// Makes the real call if the limit allows it.
pub fn take_from_pool(call: &Call, from: PoolCall, real: impl Fn() -> c_int) -> c_int {
    let _memory_call = MemoryCall::begin();
    let device = if from.pointer.is_null() { None } else { device_of(call.bytes) };
    let result = match device {
        Some(device) => match panics::catch(|| within_limit(device, call, from, &real)) {
            Some(result) => result,
            None => real(),
        },
        None => within_card(call, from, &real),
    };
    if result == CUDA_SUCCESS {
        panics::catch(|| {
            let device = device.unwrap_or_else(current_device);
            pools::pool_used(device, from.pool as usize);
            let address = from.pointer.get().unwrap_or(0);
            if spill::holds(address) {
                moved_bytes::record_spilled();
                driver_memory::spilled(DriverKind::Async, address, call.bytes, call.name, call.caller);
            } else {
                driver_memory::allocated(DriverKind::Async, address, call.bytes, call.name, call.caller);
            }
        });
    }
    result
}

/// Makes the real call if the card has room, or takes host memory if it may spill then.
fn within_card(call: &Call, from: PoolCall, real: impl Fn() -> c_int) -> c_int {
    let may_spill = panics::catch(|| {
        let is_wanted = card::is_spilling() && !from.pointer.is_null() && call.bytes > 0;
        is_wanted && spill::is_allowed(current_device()) && !calls::is_capturing(from.stream as u64)
    });
    if may_spill != Some(true) {
        return real();
    }
    let is_full = panics::catch(|| {
        let device = current_device();
        pools::spare_bytes(device, from.pool as usize) < call.bytes && spill::is_card_full(device, call.bytes)
    });
    let is_held_back = is_full == Some(true);
    let result = if is_held_back { CUDA_ERROR_OUT_OF_MEMORY } else { real() };
    if result != CUDA_ERROR_OUT_OF_MEMORY {
        return result;
    }
    match panics::catch(|| spill::allocate(call.bytes)).flatten() {
        Some(address) => {
            from.pointer.set(address);
            CUDA_SUCCESS
        }
        None if is_held_back => real(), // The card's last memory is better than an error.
        None => result,
    }
}

fn within_limit(device: i32, call: &Call, from: PoolCall, real: impl Fn() -> c_int) -> c_int {
    if calls::is_capturing(from.stream as u64) {
        // Allocated and counted when the graph runs; a size that can never fit is refused at once.
        pools::graphs_used(device);
        return fits_alone(device, call.bytes).map_or(CUDA_ERROR_OUT_OF_MEMORY, |()| real());
    }
    let Some((card, limit)) = limited(device) else { return real() };
    let _one_at_a_time = POOL_CALLS[device as usize].lock();
    pools::pool_used(device, from.pool as usize);
    let need = footprint(DriverKind::Device, call.bytes);
    // Pool growth is known only afterwards.
    let attempt = |reserved: u64| {
        let result = real();
        if result != CUDA_SUCCESS {
            return Some(result);
        }
        overhead::look_up_reserved(device, card);
        if card.used().saturating_sub(reserved) <= limit {
            return Some(CUDA_SUCCESS);
        }
        // The driver has just returned this address, and the program has not seen it.
        if let Some(address) = from.pointer.get() {
            calls::free_async(address, from.stream);
        }
        pools::trim(device);
        overhead::look_up_reserved(device, card);
        None
    };
    if pools::spare_bytes(device, from.pool as usize) >= need {
        let _in_flight = InFlight::begin();
        if let Some(result) = attempt(0) {
            return result;
        }
    }
    // Not refused first: PyTorch's allocator of this kind caches no memory that it could release.
    if let Admission::Granted(_reservation) = decide(device, need, |_, _| true)
        && let Some(result) = attempt(need)
    {
        return result;
    }
    match card.spills.load(Ordering::Relaxed).then(|| spill::allocate(call.bytes)).flatten() {
        Some(address) => {
            from.pointer.set(address);
            CUDA_SUCCESS
        }
        None => CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// Adds a graph node that allocates when it runs.
///
/// Refuses it if it would find no room now.
pub fn take_in_graph(bytes: u64, real: impl FnOnce() -> c_int) -> c_int {
    let fits = panics::catch(|| {
        pools::graphs_used(current_device());
        device_of(bytes).map_or(Some(()), |device| fits_alone(device, bytes))
    });
    match fits {
        Some(None) => CUDA_ERROR_OUT_OF_MEMORY,
        _ => real(),
    }
}

fn fits_alone(device: i32, bytes: u64) -> Option<()> {
    matches!(decide(device, footprint(DriverKind::Device, bytes), |_, _| true), Admission::Granted(_)).then_some(())
}

/// Creates the memory of a `cuMemCreate`: on the device within the limit, and beyond it on the host if spilling is on.
pub fn create(
    handle: Out<u64>,
    bytes: u64,
    properties: In<Properties>,
    flags: u64,
    caller: usize,
    real: impl Fn() -> c_int,
) -> c_int {
    let _memory_call = MemoryCall::begin();
    let properties = properties.get().filter(|_| !handle.is_null() && bytes > 0);
    let on_device = properties.and_then(|properties| Some((properties, properties.location.as_device()?)));
    let made = || handle.get().unwrap_or(0);
    let Some((properties, device)) = on_device else {
        let result = real();
        if result == CUDA_SUCCESS {
            panics::catch(|| driver_memory::created(made(), bytes, None, false, caller));
        }
        return result;
    };
    let taken = |reservation: Reservation| {
        if driver_memory::created(made(), bytes, Some(device), false, caller) {
            reservation.commit(bytes);
        } else {
            reservation.commit_unwatched();
        }
    };
    let spill = || {
        let made = if flags == 0 { spill::create(device, bytes, &properties)? } else { return None };
        handle.set(made);
        moved_bytes::record_spilled();
        driver_memory::created(made, bytes, Some(device), true, caller);
        Some(())
    };
    let is_full = || flags == 0 && spill::is_card_full(device, bytes);
    let is_due = || spill::is_due_when_full(device, bytes, caller);
    make(|| admit(device, bytes, caller), real, taken, Full { is_full, is_due, spill })
}

/// Charges a runtime call's allocation that no driver-level hook has seen.
///
/// Returns true if it exceeds the limit and must be undone.
pub fn taken_unseen(kind: DriverKind, bytes: u64) -> bool {
    let device = current_device();
    card::taken(device, footprint(kind, bytes));
    let Some((card, limit)) = limited(device) else { return false };
    overhead::look_up_if_old(device, card);
    if card.used() > limit {
        overhead::make_room(device, card);
    }
    card.used() > limit
}

/// Replaces the driver's free and total bytes of the current device.
pub fn show_memory(free: Out<usize>, total: Out<usize>) {
    if let (Some(of_free), Some(of_total)) = (free.get(), total.get()) {
        let (seen_free, seen_total) = seen(current_device(), of_free as u64, of_total as u64);
        free.set(seen_free as usize);
        total.set(seen_total as usize);
    }
}

/// Replaces the driver's total bytes of any device.
pub fn show_total(total: Out<usize>, device: i32) {
    if let Some(of_total) = total.get() {
        total.set(seen_total(device, of_total as u64) as usize);
    }
}

pub fn reset_in_child() {
    POOL_CALLS.iter().for_each(locks::unlock_in_child);
}
