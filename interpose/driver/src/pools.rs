//! Pools of stream-ordered memory, and graphs' memory: reads their reserved bytes and releases them.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::calls::{self, Code, POOL_RESERVED, POOL_USED, Pool, RelaxedCaptures};
use interpose_base::locks;
use memlab_protocol::request::MAX_DEVICES;

/// Kinds of reserved memory that the process uses.
///
/// The driver is queried only for those.
struct ReservedUse {
    pools: AtomicBool,
    graphs: AtomicBool,
}

static USES: [ReservedUse; MAX_DEVICES] =
    [const { ReservedUse { pools: AtomicBool::new(false), graphs: AtomicBool::new(false) } }; MAX_DEVICES];
/// Pools that the program has created and allocated from: device and handle.
static POOLS: Mutex<Vec<(i32, usize)>> = Mutex::new(Vec::new());

/// Records an allocation of stream-ordered memory, from a pool that the program created or from the device's (0).
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

/// Forgets a pool before it is destroyed, so that it is not queried any more.
pub fn pool_destroyed(pool: usize) {
    POOLS.lock().retain(|&(_, known)| known != pool);
}

/// Records that the program creates graphs that allocate memory.
pub fn graphs_used(device: i32) {
    if let Some(uses) = USES.get(device as usize) {
        uses.graphs.store(true, Ordering::Release);
    }
}

/// Bytes that the device's pools and graphs have reserved; `None` if the program uses neither.
pub fn reserved_bytes(device: i32) -> Option<u64> {
    let uses = USES.get(device as usize)?;
    let (pools, graphs) = (uses.pools.load(Ordering::Acquire), uses.graphs.load(Ordering::Acquire));
    if !pools && !graphs {
        return None;
    }
    let mut reserved = 0u64;
    if pools {
        with_pools(device, |pool| {
            reserved = reserved.saturating_add(calls::pool_attribute(pool, POOL_RESERVED).unwrap_or(0));
        });
    }
    if graphs {
        reserved = reserved.saturating_add(calls::reserved_by_graphs(device).unwrap_or(0));
    }
    Some(reserved)
}

/// Bytes that an allocation's pool (0: the device's current one) has reserved and not handed out.
pub fn spare_bytes(device: i32, pool: usize) -> u64 {
    let Some(pool) = existing(if pool == 0 { calls::current_pool(device) } else { Ok(pool as Pool) }) else { return 0 };
    let attribute = |which| calls::pool_attribute(pool, which).unwrap_or(0);
    attribute(POOL_RESERVED).saturating_sub(attribute(POOL_USED))
}

/// Makes the device's pools release their unused memory.
pub fn trim(device: i32) {
    if USES.get(device as usize).is_some_and(|uses| uses.pools.load(Ordering::Acquire)) {
        let _relaxed = RelaxedCaptures::begin();
        with_pools(device, calls::trim_pool);
    }
}

/// Makes the pools of all devices release their unused memory.
pub fn trim_all() {
    (0..MAX_DEVICES as i32).for_each(trim);
}

/// Returns true if the program allocates stream-ordered memory on any device.
pub fn are_used() -> bool {
    USES.iter().any(|uses| uses.pools.load(Ordering::Acquire))
}

/// Calls `query` with each pool of the device that exists and may hold memory.
fn with_pools(device: i32, mut query: impl FnMut(Pool)) {
    let made = POOLS.lock(); // Held, so that no pool is destroyed during the queries.
    let of_device = [calls::default_pool(device), calls::current_pool(device)].into_iter().filter_map(existing);
    let made = made.iter().filter(|&&(of, _)| of == device).map(|&(_, pool)| pool as Pool);
    let mut seen = Vec::with_capacity(4);
    for pool in of_device.chain(made) {
        if !pool.is_null() && !seen.contains(&pool) {
            seen.push(pool);
            query(pool);
        }
    }
}

fn existing(pool: Result<Pool, Code>) -> Option<Pool> {
    pool.ok().filter(|pool| !pool.is_null())
}

/// Called in a forked child, where the pools are the parent's.
pub fn reset_in_child() {
    locks::reset_in_child(&POOLS, Vec::new());
}
