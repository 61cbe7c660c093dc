//! Calls in flight that allocate or free device memory.
//!
//! Until they end, charges and the card's use differ.

use std::cell::Cell;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Time for which threads wait for each other when charges are compared with the card.
pub const LOCK_TIMEOUT: Duration = Duration::from_millis(50);

/// Held for reading by calls in flight, and for writing by a thread that compares charges with the card.
static IN_FLIGHT: RwLock<()> = RwLock::new(());

/// Blocks new calls while the guard is held; `None` if calls are still in flight after `timeout`.
pub fn none_in_flight(timeout: Duration) -> Option<RwLockWriteGuard<'static, ()>> {
    IN_FLIGHT.try_write_for(timeout)
}

thread_local! {
    /// This thread's depth of nested calls: runtime calls end in driver calls.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call in flight that allocates or frees device memory.
pub struct InFlight {
    _under_way: Option<RwLockReadGuard<'static, ()>>,
}

impl InFlight {
    /// Begins a call.
    ///
    /// Waits for a comparison of charges and card to end, but only briefly. A comparison is short, and in a forked child the
    /// thread that makes it may not exist.
    pub fn begin() -> Self {
        let outermost = DEPTH.with(|depth| depth.replace(depth.get() + 1) == 0);
        Self { _under_way: outermost.then(|| IN_FLIGHT.try_read_for(LOCK_TIMEOUT)).flatten() }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}
