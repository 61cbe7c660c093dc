//! Wakes a background thread from any context, including a signal handler.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::Thread;

/// Handle of the thread to wake; null if none is set.
///
/// The pointee is never freed.
pub struct Waker(AtomicPtr<Thread>);

impl Default for Waker {
    fn default() -> Self {
        Self::new()
    }
}

impl Waker {
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// True if a thread was set.
    pub fn is_set(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_null()
    }

    /// Sets the thread to wake from now on.
    pub fn set(&self, thread: Thread) {
        self.0.store(ptr::from_mut(Box::leak(Box::new(thread))), Ordering::Release);
    }

    /// Wakes the thread.
    ///
    /// Takes no lock and allocates nothing.
    pub fn wake(&self) {
        // SAFETY: null, or never freed.
        if let Some(thread) = unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            thread.unpark();
        }
    }

    /// Called in a forked child, where the thread does not exist.
    pub fn reset_in_child(&self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}
