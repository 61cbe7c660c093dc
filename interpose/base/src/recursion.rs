//! Keeps memlab from recording its own allocations and calls.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread as inside memlab until dropped.
pub struct RecursionGuard(());

impl RecursionGuard {
    /// `None` if the thread is already inside memlab.
    #[inline]
    pub fn enter() -> Option<Self> {
        INSIDE.with(|inside| (!inside.replace(true)).then_some(Self(())))
    }
}

impl Drop for RecursionGuard {
    #[inline]
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(false));
    }
}
