//! Whether memlab answers memory calls itself.

use std::sync::atomic::{AtomicBool, Ordering};

static ENABLED: AtomicBool = AtomicBool::new(false);
/// Some of the program's memory has spilled over a limit, whether or not the program was started for offloading.
static SPILLED: AtomicBool = AtomicBool::new(false);

/// Whether the program was started for offloading.
#[inline]
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

pub fn enable() {
    ENABLED.store(true, Ordering::Release);
}

/// Whether addresses and handles that the program has may be memlab's.
#[inline]
pub fn holds_memory() -> bool {
    is_enabled() || SPILLED.load(Ordering::Relaxed)
}

/// Called before the program gets the first of them.
pub fn begin_to_hold() {
    SPILLED.store(true, Ordering::Release);
}
