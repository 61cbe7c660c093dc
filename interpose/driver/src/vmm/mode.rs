//! Decides whether memlab answers memory calls itself.

use std::sync::atomic::{AtomicBool, Ordering};

static ENABLED: AtomicBool = AtomicBool::new(false);
/// True if some of the program's memory has spilled over a limit, even if the program was not started for offloading.
static SPILLED: AtomicBool = AtomicBool::new(false);

/// Returns true if the program was started for offloading.
#[inline]
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

pub fn enable() {
    ENABLED.store(true, Ordering::Release);
}

/// Returns true if addresses and handles held by the program may be memlab's.
#[inline]
pub fn holds_memory() -> bool {
    is_enabled() || SPILLED.load(Ordering::Relaxed)
}

/// Called before the program gets the first such address or handle.
pub fn begin_to_hold() {
    SPILLED.store(true, Ordering::Release);
}
