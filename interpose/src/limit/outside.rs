//! What the process holds on a card that no hook sees byte by byte: contexts and kernels, pools, graphs.
//!
//! NVML says what the driver has booked for the process; what hooks have booked and pools have reserved is taken off, and
//! the rest lies *elsewhere*. It changes rarely (a kernel is loaded, a context made), so the figure is asked for again only
//! when it is a quarter of a second old, when it may stand in somebody's way, and when the program asks how much is free.
//! The two sides are compared only while no call is under way that changes them.
//!
//! Where NVML does not tell (in a container with process ids of its own, on a part of a card), what lies elsewhere is
//! estimated: by how much the card got fuller while the primary context was made, and at most by all that is in use on the
//! card and was not taken by this process through a hook. Both are upper bounds that other processes can only raise, so the
//! smallest ever seen counts. It does not grow with kernels that are loaded later.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{CARDS, CHANGED, Card, NEVER, PATIENCE, UNDER_WAY, limited};
use crate::cuda::driver::CUDA_SUCCESS;
use crate::cuda::info;
use crate::lifecycle::{free_in_child, reset_in_child};
use crate::mover::{self, driver};
use crate::request::DEVICES;
use crate::sampler::Nvml;
use crate::symbols::Real;

/// What was looked up counts for so long.
const FRESH_MS: u64 = 250;

macro_rules! driver_functions {
    ($($name:ident = $symbol:literal ($($type:ty),*);)*) => {$(
        static $name: Real<unsafe extern "C" fn($($type),*) -> c_int> = Real::in_library(c"libcuda.so.1", $symbol);
    )*};
}

driver_functions! {
    MEMORY_INFO = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    DEFAULT_POOL = c"cuDeviceGetDefaultMemPool" (*mut *mut c_void, c_int);
    CURRENT_POOL = c"cuDeviceGetMemPool" (*mut *mut c_void, c_int);
    POOL_ATTRIBUTE = c"cuMemPoolGetAttribute" (*mut c_void, c_int, *mut c_void);
    TRIM_POOL = c"cuMemPoolTrimTo" (*mut c_void, usize);
    GRAPH_ATTRIBUTE = c"cuDeviceGetGraphMemAttribute" (c_int, c_int, *mut c_void);
    PRIMARY_STATE = c"cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int);
}

/// Looks up what lies elsewhere, if what is known of it is old. What pools have reserved is always asked for.
pub(super) fn look_up_if_old(device: i32, card: &Card) {
    let known = card.looked_up_ms.load(Ordering::Acquire);
    if known > CHANGED && now_ms().saturating_sub(known) <= FRESH_MS {
        ask_pools(device, card);
    } else {
        // What is known, if old, will do where another thread's long call is in the way.
        look_up_within(if known > CHANGED { Duration::ZERO } else { PATIENCE }, device, card);
    }
}

/// Looks up what lies elsewhere, with a little patience for calls that are under way.
pub(super) fn look_up(device: i32, card: &Card) {
    look_up_within(PATIENCE, device, card);
}

fn look_up_within(patience: Duration, device: i32, card: &Card) {
    const OLD: u64 = CHANGED + 1;
    let quiet = UNDER_WAY.try_write_for(patience);
    ask_pools(device, card);
    let known = card.looked_up_ms.load(Ordering::Acquire);
    if quiet.is_none() && known != NEVER {
        // A wrong figure would stay wrong when the calls end; the last right one is better.
        card.looked_up_ms.store(OLD, Ordering::Release);
        return;
    }
    let booked = card.booked.load(Ordering::Acquire) as i64;
    let accounted = booked.saturating_add(card.reserved.load(Ordering::Acquire) as i64);
    let elsewhere = match on_card(device) {
        Some(process) => (process as i64).saturating_sub(accounted),
        None => estimate(device, card, accounted),
    };
    card.elsewhere.store(elsewhere, Ordering::Release);
    card.looked_up_ms.store(if quiet.is_some() { now_ms() } else { OLD }, Ordering::Release);
}

/// Does what the driver does before it calls a card full: takes back what pools keep, and looks again.
pub(super) fn make_room(device: i32, card: &Card) {
    trim_pools(device);
    look_up(device, card);
}

/// The process's footprint, for somebody who is not in a call of the program's and leaves the driver alone.
pub(super) fn used_now(device: i32, card: &Card) -> u64 {
    on_card(device).unwrap_or_else(|| card.used())
}

/// What NVML says that this process holds on the device.
fn on_card(device: i32) -> Option<u64> {
    let bus_id = bus_id(device)?;
    nvml()?.usage(&bus_id, std::process::id())?.process
}

/// What lies elsewhere, where NVML does not tell. `accounted`: what is booked and reserved.
fn estimate(device: i32, card: &Card, accounted: i64) -> i64 {
    let Some(bound) = BOUNDS.get(device as usize) else { return 0 };
    // Of what is booked, some may have been moved to host memory. What was spilled is there too, but not booked.
    let moved =
        mover::host_bytes(device).map(|bytes| bytes.saturating_sub(card.spilled.load(Ordering::Relaxed)) as i64);
    // Only the current device can be asked.
    if let Some(moved) = moved
        && info::current_context() != 0
        && info::current_device() == device
    {
        bound.fetch_min(in_use().saturating_sub(accounted - moved).max(0), Ordering::AcqRel);
    }
    let bound = Some(bound.load(Ordering::Acquire)).filter(|&bytes| bytes != i64::MAX).unwrap_or(0);
    bound - moved.unwrap_or(0)
}

/// Bytes in use on the current device, by whomever.
fn in_use() -> i64 {
    let (mut free, mut total) = (0, 0);
    let Some(ask) = MEMORY_INFO.get() else { return 0 };
    // SAFETY: the driver writes two sizes.
    let asked = unsafe { ask(&mut free, &mut total) };
    if asked == CUDA_SUCCESS { total.saturating_sub(free) as i64 } else { 0 }
}

/// The least that was ever seen to bound what lies elsewhere on each card; the largest number before anybody looked.
static BOUNDS: [AtomicI64; DEVICES] = [const { AtomicI64::new(i64::MAX) }; DEVICES];

/// The primary context of a device may be about to be made: tells what is in use on the card before.
pub fn context_coming(device: i32) -> Option<u64> {
    limited(device)?;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver writes to the variables.
    let asked = unsafe { PRIMARY_STATE.get()?(device, &mut flags, &mut active) };
    if asked != CUDA_SUCCESS || active != 0 {
        return None;
    }
    Some(nvml()?.usage(&bus_id(device)?, std::process::id())?.used)
}

/// It was made.
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

/// What the process holds has changed in a way that no hook has booked.
pub fn changed() {
    CARDS.iter().for_each(Card::look_up_again);
}

/// A context was destroyed: what it took is no longer there.
pub fn context_gone() {
    BOUNDS.iter().for_each(|bound| bound.store(i64::MAX, Ordering::Release));
    changed();
}

/// What the process uses beside plain allocations: asked for only where it is.
struct Uses {
    pools: AtomicBool,
    graphs: AtomicBool,
}

static USES: [Uses; DEVICES] =
    [const { Uses { pools: AtomicBool::new(false), graphs: AtomicBool::new(false) } }; DEVICES];
/// Pools of the program's own that it has taken memory from: device and handle.
static POOLS: Mutex<Vec<(i32, usize)>> = Mutex::new(Vec::new());

/// The program takes stream-ordered memory: of its own pool, or of the device's (0).
pub fn pool_used(device: i32, pool: usize) {
    let Some(uses) = USES.get(device as usize) else { return };
    uses.pools.store(true, Ordering::Release);
    if pool != 0 {
        let mut pools = POOLS.lock();
        if !pools.contains(&(device, pool)) {
            pools.push((device, pool));
        }
    }
}

/// A pool is about to be destroyed, and not to be asked any more.
pub fn pool_gone(pool: usize) {
    POOLS.lock().retain(|&(_, known)| known != pool);
}

/// The program makes graphs that take memory.
pub fn graphs_used(device: i32) {
    if let Some(uses) = USES.get(device as usize) {
        uses.graphs.store(true, Ordering::Release);
    }
}

/// Asks pools and graphs what they have reserved.
pub(super) fn ask_pools(device: i32, card: &Card) {
    const RESERVED: c_int = 5; // CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    const RESERVED_BY_GRAPHS: c_int = 2; // CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
    let Some(uses) = USES.get(device as usize) else { return };
    let (pools, graphs) = (uses.pools.load(Ordering::Acquire), uses.graphs.load(Ordering::Acquire));
    if !pools && !graphs {
        return;
    }
    let mut reserved = 0u64;
    if pools {
        with_pools(device, |pool| reserved = reserved.saturating_add(attribute(pool, RESERVED)));
    }
    if graphs && let Some(ask) = GRAPH_ATTRIBUTE.get() {
        let mut bytes = 0u64;
        // SAFETY: the attribute is a 64-bit number.
        if unsafe { ask(device, RESERVED_BY_GRAPHS, (&raw mut bytes).cast()) } == CUDA_SUCCESS {
            reserved = reserved.saturating_add(bytes);
        }
    }
    card.reserved.store(reserved, Ordering::Release);
}

/// Bytes that the pool an allocation comes from (0: the device's current one) has reserved and not handed out.
pub(super) fn spare(device: i32, pool: usize) -> u64 {
    const RESERVED: c_int = 5;
    const USED: c_int = 7; // CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    let pool = if pool == 0 { pool_of(&CURRENT_POOL, device) } else { pool as *mut c_void };
    if pool.is_null() { 0 } else { attribute(pool, RESERVED).saturating_sub(attribute(pool, USED)) }
}

/// Gives back what the device's pools keep and nobody uses.
pub(super) fn trim_pools(device: i32) {
    if !USES.get(device as usize).is_some_and(|uses| uses.pools.load(Ordering::Acquire)) {
        return;
    }
    let _allowed = AnyCapture::allowed();
    if let Some(trim) = TRIM_POOL.get() {
        // SAFETY: `with_pools` gives pools that exist.
        with_pools(device, |pool| _ = unsafe { trim(pool, 0) });
    }
}

/// Whether the program takes stream-ordered memory, on any device.
pub fn uses_pools() -> bool {
    USES.iter().any(|uses| uses.pools.load(Ordering::Acquire))
}

/// Gives back what all pools keep and nobody uses.
pub fn trim_all_pools() {
    (0..DEVICES as i32).for_each(trim_pools);
}

/// Calls `look` with each pool of the device that exists and may hold memory.
fn with_pools(device: i32, mut look: impl FnMut(*mut c_void)) {
    let own = POOLS.lock(); // Held, so that none is destroyed meanwhile.
    let of_device = [pool_of(&DEFAULT_POOL, device), pool_of(&CURRENT_POOL, device)];
    let own = own.iter().filter(|&&(of, _)| of == device).map(|&(_, pool)| pool as *mut c_void);
    let mut seen = Vec::with_capacity(4);
    for pool in of_device.into_iter().chain(own) {
        if !pool.is_null() && !seen.contains(&pool) {
            seen.push(pool);
            look(pool);
        }
    }
}

type PoolOf = Real<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>;

fn pool_of(which: &PoolOf, device: i32) -> *mut c_void {
    let mut pool = std::ptr::null_mut();
    // SAFETY: the driver writes a handle.
    let asked = which.get().map(|ask| unsafe { ask(&mut pool, device) });
    if asked == Some(CUDA_SUCCESS) { pool } else { std::ptr::null_mut() }
}

fn attribute(pool: *mut c_void, which: c_int) -> u64 {
    let mut value = 0u64;
    // SAFETY: the pool exists, and the attributes asked for are 64-bit numbers.
    let asked = POOL_ATTRIBUTE.get().map(|ask| unsafe { ask(pool, which, (&raw mut value).cast()) });
    if asked == Some(CUDA_SUCCESS) { value } else { 0 }
}

/// While it lives, this thread may make calls that would break another thread's capture.
pub(super) struct AnyCapture(c_int);

impl AnyCapture {
    pub(super) fn allowed() -> Self {
        Self(driver::exchange_capture_mode(driver::RELAXED))
    }

    /// Whether the program had said so itself, as PyTorch does around allocations while it captures.
    pub(super) fn was_allowed(&self) -> bool {
        self.0 == driver::RELAXED
    }
}

impl Drop for AnyCapture {
    fn drop(&mut self) {
        driver::exchange_capture_mode(self.0);
    }
}

fn bus_id(device: i32) -> Option<String> {
    static BUS_IDS: [Mutex<Option<String>>; DEVICES] = [const { Mutex::new(None) }; DEVICES];
    // Not waited for long: in a forked child nobody may be left to unlock it.
    let mut known = BUS_IDS.get(device as usize)?.try_lock_for(PATIENCE)?;
    if known.is_none() {
        *known = info::device_facts(device).bus_id;
    }
    known.clone()
}

/// NVML as hooks use it, once it is needed: `None` inside where there is none.
static NVML: Mutex<Option<Option<&'static Nvml>>> = Mutex::new(None);

fn nvml() -> Option<&'static Nvml> {
    *NVML.lock().get_or_insert_with(|| Nvml::load().map(|nvml| &*Box::leak(Box::new(nvml))))
}

fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

pub(super) fn forget_in_child() {
    free_in_child(&NVML);
    reset_in_child(&POOLS, Vec::new());
}
