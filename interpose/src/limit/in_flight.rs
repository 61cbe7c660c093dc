//! Calls under way that take or give back device memory: what is charged and what is on the card differ meanwhile.

use std::cell::Cell;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long threads wait for each other where charges are compared with the card.
pub const LOCK_TIMEOUT: Duration = Duration::from_millis(50);

/// Held for reading by calls under way, and for writing by who compares charges with the card.
static IN_FLIGHT: RwLock<()> = RwLock::new(());

/// Keeps new calls out while it is held; `None` where some are still under way after `timeout`.
pub fn none_in_flight(timeout: Duration) -> Option<RwLockWriteGuard<'static, ()>> {
    IN_FLIGHT.try_write_for(timeout)
}

thread_local! {
    /// How many calls of this thread are nested: runtime calls end in the driver's.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call under way that takes or gives back device memory.
pub struct InFlight {
    _under_way: Option<RwLockReadGuard<'static, ()>>,
}

impl InFlight {
    /// Begins one. Waits for a comparison of charges and card to end, but not for long: none takes long, and in a forked child
    /// nobody may be left to end it.
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
