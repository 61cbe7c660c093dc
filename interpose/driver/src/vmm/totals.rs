//! Totals of the program's memory by location.

use std::time::Duration;

use parking_lot::Mutex;

use super::arena::ARENA;
use super::movable_memory::{MOVABLE_MEMORY, Totals};
use interpose_base::locks;

/// Totals from the last time the tables could be read: they are locked while bytes are copied.
#[derive(Clone, Copy)]
pub struct LastTotals {
    pub totals: Totals,
    /// Host memory that is pinned for the program's bytes.
    pub arena_bytes: u64,
}

static LAST_SEEN: Mutex<LastTotals> = Mutex::new(LastTotals {
    totals: Totals { device_bytes: 0, host_bytes: 0, fixed_bytes: 0, backed_bytes: 0 },
    arena_bytes: 0,
});

/// The current totals, or the last ones if the tables stay locked for longer than `timeout`.
pub fn latest(timeout: Duration) -> LastTotals {
    let mut seen = LAST_SEEN.lock();
    if let Some(memory) = MOVABLE_MEMORY.try_lock_for(timeout) {
        seen.totals = memory.totals();
    }
    if let Some(arena) = ARENA.try_lock_for(timeout) {
        seen.arena_bytes = arena.bytes() - arena.unmade_bytes();
    }
    *seen
}

/// Bytes of all devices that are in host memory, from the last totals.
pub fn host_bytes() -> u64 {
    latest(Duration::ZERO).totals.host_bytes
}

/// Bytes of a device that are in host memory; `None` while they are being moved.
pub fn host_bytes_of(device: i32) -> Option<u64> {
    Some(MOVABLE_MEMORY.try_lock()?.host_bytes_by_device().get(&device).copied().unwrap_or(0))
}

pub fn reset_in_child() {
    locks::unlock_in_child(&LAST_SEEN);
}
