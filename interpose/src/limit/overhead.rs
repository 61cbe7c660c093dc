//! The process's memory on a card other than allocations, pools and graphs: contexts and kernels.
//!
//! NVML reports the bytes that the driver accounts to the process. Charged and reserved bytes are subtracted, and the rest
//! is *overhead*. It changes rarely (a kernel is loaded, a context created). So it is looked up again only when it is a
//! quarter of a second old, before an allocation is refused, and when the program queries free memory. The two sides are
//! compared only while no call is in flight that changes them.
//!
//! If NVML does not report the process (in a container with its own process ids, on a MIG partition), the overhead is
//! estimated from two upper bounds. One is the growth of the card's use while the primary context was created. The other is
//! all memory in use on the card that this process did not allocate through a hook. Other processes can only raise these
//! bounds, so the smallest ever seen counts. The estimate does not grow with kernels that are loaded later.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::card::{CARDS, CHANGED_SINCE, Card, NEVER_LOOKED_UP, limited};
use super::in_flight::{LOCK_TIMEOUT, none_in_flight};
use super::spill;
use interpose_base::clock::monotonic_ns;
use interpose_base::locks;
use interpose_base::nvml::Nvml;
use interpose_driver::calls;
use interpose_driver::device::current_device;
use interpose_driver::pools;
use memlab_protocol::request::MAX_DEVICES;

/// Age up to which a looked-up figure is used.
const MAX_AGE_MS: u64 = 250;

/// Looks up the overhead if the known figure is old.
///
/// Reserved bytes of pools are queried at each call.
pub(super) fn look_up_if_old(device: i32, card: &Card) {
    let known = card.looked_up_ms.load(Ordering::Acquire);
    if known > CHANGED_SINCE && now_ms().saturating_sub(known) <= MAX_AGE_MS {
        look_up_reserved(device, card);
    } else {
        // If another thread's long call is in flight, the old figure is used.
        look_up_within(if known > CHANGED_SINCE { Duration::ZERO } else { LOCK_TIMEOUT }, device, card);
    }
}

/// Looks up the overhead, waiting briefly for calls in flight.
pub(super) fn look_up(device: i32, card: &Card) {
    look_up_within(LOCK_TIMEOUT, device, card);
}

fn look_up_within(timeout: Duration, device: i32, card: &Card) {
    const EXPIRED_MS: u64 = CHANGED_SINCE + 1;
    let quiet = none_in_flight(timeout);
    look_up_reserved(device, card);
    let known = card.looked_up_ms.load(Ordering::Acquire);
    if quiet.is_none() && known != NEVER_LOOKED_UP {
        // A wrong figure would stay wrong when the calls end; the last correct one is better.
        card.looked_up_ms.store(EXPIRED_MS, Ordering::Release);
        return;
    }
    let charged = card.charged.load(Ordering::Acquire) as i64;
    let accounted = charged.saturating_add(card.reserved.load(Ordering::Acquire) as i64);
    let overhead = match on_card(device) {
        Some(process) => (process as i64).saturating_sub(accounted),
        None => estimate(device, card, accounted),
    };
    card.overhead.store(overhead, Ordering::Release);
    card.looked_up_ms.store(if quiet.is_some() { now_ms() } else { EXPIRED_MS }, Ordering::Release);
}

/// Queries the reserved bytes of pools and graphs, if the program uses any.
pub(super) fn look_up_reserved(device: i32, card: &Card) {
    if let Some(bytes) = pools::reserved_bytes(device) {
        card.reserved.store(bytes, Ordering::Release);
    }
}

/// Follows the driver before it reports a full card: releases the pools' unused memory, and looks up again.
pub(super) fn make_room(device: i32, card: &Card) {
    pools::trim(device);
    look_up(device, card);
}

/// The process's footprint, for use outside of the program's calls and without calling the driver.
pub(super) fn used_now(device: i32, card: &Card) -> u64 {
    on_card(device).unwrap_or_else(|| card.used())
}

/// Bytes of this process on the device, as NVML reports them.
fn on_card(device: i32) -> Option<u64> {
    let bus_id = bus_id(device)?;
    nvml()?.usage(&bus_id, std::process::id())?.process
}

/// Estimates the overhead if NVML does not report it.
///
/// `accounted` is the number of charged and reserved bytes.
fn estimate(device: i32, card: &Card, accounted: i64) -> i64 {
    let Some(bound) = BOUNDS.get(device as usize) else { return 0 };
    // Some charged bytes may have been moved to host memory. Spilled bytes are also in host memory, but are not charged.
    // Negative if spilled bytes came back, which are not charged then either.
    let moved = spill::on_host(device).map(|bytes| bytes as i64 - card.spilled.load(Ordering::Relaxed) as i64);
    // Only the current device can be queried.
    if let Some(moved) = moved
        && calls::current_context() != 0
        && current_device() == device
    {
        bound.fetch_min(in_use().saturating_sub(accounted - moved).max(0), Ordering::AcqRel);
    }
    let bound = Some(bound.load(Ordering::Acquire)).filter(|&bytes| bytes != i64::MAX).unwrap_or(0);
    bound - moved.unwrap_or(0)
}

/// Bytes in use on the current device, by any process.
fn in_use() -> i64 {
    calls::memory_info().map_or(0, |(free, total)| total.saturating_sub(free) as i64)
}

/// The lowest upper bound of each card's overhead so far; the largest number before the first.
static BOUNDS: [AtomicI64; MAX_DEVICES] = [const { AtomicI64::new(i64::MAX) }; MAX_DEVICES];

/// Returns the bytes in use on the card before a device's primary context may be created.
pub fn context_coming(device: i32) -> Option<u64> {
    limited(device)?;
    if calls::primary_is_active(device) != Ok(false) {
        return None;
    }
    Some(nvml()?.usage(&bus_id(device)?, std::process::id())?.used)
}

/// Derives a bound from the growth of the card's use, after the primary context was created.
pub fn context_came(device: i32, before: Option<u64>) {
    let Some((card, _)) = limited(device) else { return };
    card.look_up_again();
    if let Some(before) = before
        && let Some(bus_id) = bus_id(device)
        && let Some(usage) = nvml().and_then(|nvml| nvml.usage(&bus_id, std::process::id()))
    {
        BOUNDS[device as usize].fetch_min(usage.used.saturating_sub(before) as i64, Ordering::AcqRel);
    }
}

/// Records that the process's memory has changed in a way that no hook has charged.
pub fn changed() {
    CARDS.iter().for_each(Card::look_up_again);
}

/// Forgets the bounds after a context was destroyed: its overhead was freed.
pub fn context_destroyed() {
    BOUNDS.iter().for_each(|bound| bound.store(i64::MAX, Ordering::Release));
    changed();
}

fn bus_id(device: i32) -> Option<String> {
    static BUS_IDS: [Mutex<Option<String>>; MAX_DEVICES] = [const { Mutex::new(None) }; MAX_DEVICES];
    // Waits only briefly: in a forked child the thread that held the lock does not exist.
    let mut known = BUS_IDS.get(device as usize)?.try_lock_for(LOCK_TIMEOUT)?;
    if known.is_none() {
        *known = calls::device_bus_id(device).ok();
    }
    known.clone()
}

/// NVML for hooks, loaded at first use.
///
/// The inner `None` means that it is not available.
static NVML: Mutex<Option<Option<&'static Nvml>>> = Mutex::new(None);

fn nvml() -> Option<&'static Nvml> {
    *NVML.lock().get_or_insert_with(|| Nvml::load().map(|nvml| &*Box::leak(Box::new(nvml))))
}

fn now_ms() -> u64 {
    (monotonic_ns() / 1_000_000).max(1)
}

pub fn reset_in_child() {
    locks::unlock_in_child(&NVML);
}
