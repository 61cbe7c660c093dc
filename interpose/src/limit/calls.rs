//! What the hooks on allocation calls do with a limit: ask first, answer as a full card does, put elsewhere, keep the books.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use memlab_trace::record::DriverKind;
use parking_lot::Mutex;

use super::{ANY, Admission, Flight, Reservation, admit, decide, footprint, limited, outside, spill};
use crate::cuda::driver::CUDA_SUCCESS;
use crate::cuda::driver_memory as memory;
use crate::cuda::info;
use crate::lifecycle::free_in_child;
use crate::mover;
use crate::mover::driver::{self, Properties};
use crate::request::DEVICES;
use crate::symbols::Real;

pub const CUDA_ERROR_OUT_OF_MEMORY: c_int = 2;

/// An allocation call, as its hook was called.
pub struct Call {
    pub kind: DriverKind,
    pub name: &'static str,
    pub caller: usize,
    /// What is asked for. 0 where that cannot be told: the call will fail.
    pub bytes: u64,
}

/// Makes the real call if the limit allows it. `outcome` tells address and size once it has succeeded; `put` hands the
/// program the address of host memory instead, where that is possible.
pub fn take(
    call: &Call,
    real: impl FnOnce() -> c_int,
    outcome: impl FnOnce() -> (u64, u64),
    put: Option<impl FnOnce(u64)>,
) -> c_int {
    let device = device_of(call.bytes);
    let admission = crate::quietly(|| match device {
        Some(device) => admit(device, footprint(call.kind, call.bytes), call.caller),
        None => Admission::Granted(Reservation::for_nothing(info::current_device())),
    });
    match (admission, put) {
        (Some(Admission::Granted(reservation)), _) => {
            let result = real();
            if result == CUDA_SUCCESS {
                crate::quietly(|| {
                    let (address, bytes) = outcome();
                    if memory::allocated(call.kind, address, bytes, call.name, call.caller) {
                        reservation.commit(footprint(call.kind, bytes));
                    } else {
                        reservation.commit_unwatched();
                    }
                    if device.is_some() {
                        spill::attempt_over();
                    }
                });
            }
            result
        }
        (Some(Admission::Spill), Some(put)) => {
            let spilled = crate::quietly(|| {
                let address = spill::allocate(call.bytes)?;
                put(address);
                // First that it lies on the host: it was never in use on the device.
                mover::record_spilled();
                memory::spilled(call.kind, address, call.bytes, call.name, call.caller);
                spill::attempt_over();
                Some(())
            });
            if spilled.flatten().is_some() { CUDA_SUCCESS } else { CUDA_ERROR_OUT_OF_MEMORY }
        }
        (Some(Admission::Refused | Admission::Spill), _) => CUDA_ERROR_OUT_OF_MEMORY,
        (None, _) => real(), // memlab's own fault.
    }
}

/// The device whose limit an allocation is to keep; `None` if there is none, or the call cannot succeed anyway.
fn device_of(bytes: u64) -> Option<i32> {
    if !ANY.load(Ordering::Relaxed) || bytes == 0 || info::current_context() == 0 {
        return None;
    }
    let device = info::current_device();
    limited(device).map(|_| device)
}

/// Stream-ordered memory: which pool (null: the device's current one), in the order of which stream.
#[derive(Clone, Copy)]
pub struct PoolCall {
    pub pool: *mut c_void,
    pub stream: *mut c_void,
    /// Where the program wants the address.
    pub pointer: *mut u64,
}

static FREE_ASYNC: Real<unsafe extern "C" fn(u64, *mut c_void) -> c_int> =
    Real::in_library(c"libcuda.so.1", c"cuMemFreeAsync");
/// A pool grows unseen, so that one thread at a time takes memory from a limited device's.
static POOL_CALLS: [Mutex<()>; DEVICES] = [const { Mutex::new(()) }; DEVICES];

/// Makes the real call if the limit allows it.
///
/// SAFETY: the arguments of an asynchronous allocation.
pub unsafe fn take_from_pool(call: &Call, from: PoolCall, real: impl Fn() -> c_int) -> c_int {
    let device = if from.pointer.is_null() { None } else { device_of(call.bytes) };
    let result = match device {
        // SAFETY: the caller's word.
        Some(device) => match crate::quietly(|| unsafe { within_limit(device, call, from, &real) }) {
            Some(result) => result,
            None => real(),
        },
        None => real(),
    };
    if result == CUDA_SUCCESS {
        crate::quietly(|| {
            let device = device.unwrap_or_else(info::current_device);
            outside::pool_used(device, from.pool as usize);
            // SAFETY: the call has succeeded.
            let address = unsafe { *from.pointer };
            if spill::holds(address) {
                mover::record_spilled();
                memory::spilled(DriverKind::Async, address, call.bytes, call.name, call.caller);
            } else {
                memory::allocated(DriverKind::Async, address, call.bytes, call.name, call.caller);
            }
        });
    }
    result
}

/// SAFETY: as above.
unsafe fn within_limit(device: i32, call: &Call, from: PoolCall, real: impl Fn() -> c_int) -> c_int {
    if driver::is_capturing(from.stream as u64) {
        // Taken when the graph runs, and counted then; what can never fit is refused at once.
        outside::graphs_used(device);
        return fits_alone(device, call.bytes).map_or(CUDA_ERROR_OUT_OF_MEMORY, |()| real());
    }
    let Some((card, limit)) = limited(device) else { return real() };
    let _one_at_a_time = POOL_CALLS[device as usize].lock();
    outside::pool_used(device, from.pool as usize);
    let need = footprint(DriverKind::Device, call.bytes);
    // Whether the pool grows shows only afterwards.
    let attempt = |reserved: u64| {
        let result = real();
        if result != CUDA_SUCCESS {
            return Some(result);
        }
        outside::ask_pools(device, card);
        if card.used().saturating_sub(reserved) <= limit {
            return Some(CUDA_SUCCESS);
        }
        // SAFETY: the driver has just handed it out, and nobody has seen it.
        unsafe {
            if let Some(free) = FREE_ASYNC.get() {
                free(*from.pointer, from.stream);
            }
        }
        outside::trim_pools(device);
        outside::ask_pools(device, card);
        None
    };
    if outside::spare(device, from.pool as usize) >= need {
        let _flight = Flight::begin();
        if let Some(result) = attempt(0) {
            return result;
        }
    }
    // Nobody is refused first: PyTorch's allocator of this kind keeps nothing that it could give up.
    if let Admission::Granted(_reservation) = decide(device, need, |_, _| true)
        && let Some(result) = attempt(need)
    {
        return result;
    }
    match card.spills.load(Ordering::Relaxed).then(|| spill::allocate(call.bytes)).flatten() {
        Some(address) => {
            // SAFETY: the caller's word: the driver would write here.
            unsafe { *from.pointer = address };
            CUDA_SUCCESS
        }
        None => CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// A node of a graph that will take memory when it runs: refused if there would be no room for it now.
pub fn take_in_graph(bytes: u64, real: impl FnOnce() -> c_int) -> c_int {
    let fits = crate::quietly(|| {
        outside::graphs_used(info::current_device());
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

/// `cuMemCreate`: on the device within the limit, and beyond it on the host, if it spills.
///
/// SAFETY: the arguments of a `cuMemCreate`.
pub unsafe fn create(
    handle: *mut u64,
    bytes: u64,
    properties: *const Properties,
    flags: u64,
    caller: usize,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let valid = !handle.is_null() && !properties.is_null() && bytes > 0;
    // SAFETY: the caller's word.
    let device = if valid { unsafe { (*properties).location.as_device() } } else { None };
    let Some(device) = device else {
        let result = real();
        if result == CUDA_SUCCESS {
            // SAFETY: the call has succeeded.
            crate::quietly(|| memory::created(unsafe { *handle }, bytes, None, false, caller));
        }
        return result;
    };
    match crate::quietly(|| admit(device, bytes, caller)) {
        Some(Admission::Granted(reservation)) => {
            let result = real();
            if result == CUDA_SUCCESS {
                crate::quietly(|| {
                    // SAFETY: the call has succeeded.
                    if memory::created(unsafe { *handle }, bytes, Some(device), false, caller) {
                        reservation.commit(bytes);
                    } else {
                        reservation.commit_unwatched();
                    }
                });
            }
            result
        }
        Some(Admission::Spill) if flags == 0 => {
            let spilled = crate::quietly(|| {
                // SAFETY: the caller's word.
                let made = spill::create(device, bytes, unsafe { &*properties })?;
                // SAFETY: as above.
                unsafe { *handle = made };
                mover::record_spilled();
                memory::created(made, bytes, Some(device), true, caller);
                Some(())
            });
            if spilled.flatten().is_some() { CUDA_SUCCESS } else { CUDA_ERROR_OUT_OF_MEMORY }
        }
        Some(Admission::Refused | Admission::Spill) => CUDA_ERROR_OUT_OF_MEMORY,
        None => real(),
    }
}

/// A runtime call that no driver-level hook has seen has taken memory: books it. Says whether that is too much, and the
/// call is to be undone.
pub fn taken_unseen(kind: DriverKind, bytes: u64) -> bool {
    let device = info::current_device();
    super::taken(device, footprint(kind, bytes));
    let Some((card, limit)) = limited(device) else { return false };
    outside::look_up_if_old(device, card);
    if card.used() > limit {
        outside::make_room(device, card);
    }
    card.used() > limit
}

/// Replaces what the driver said is free on the current device, and in all.
///
/// SAFETY: the arguments of a successful question.
pub unsafe fn show_memory(free: *mut usize, total: *mut usize) {
    if free.is_null() || total.is_null() {
        return;
    }
    // SAFETY: the caller's word.
    unsafe {
        let (seen_free, seen_total) = super::seen(info::current_device(), *free as u64, *total as u64);
        (*free, *total) = (seen_free as usize, seen_total as usize);
    }
}

/// The same for the total alone, of any device.
///
/// SAFETY: the driver has written the total there.
pub unsafe fn show_total(total: *mut usize, device: i32) {
    if !total.is_null() {
        // SAFETY: the caller's word.
        unsafe { *total = super::seen_total(device, *total as u64) as usize };
    }
}

pub(super) fn forget_in_child() {
    POOL_CALLS.iter().for_each(free_in_child);
}
