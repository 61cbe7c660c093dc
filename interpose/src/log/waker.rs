//! Wakes the thread that compacts the trace.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::Thread;

/// The thread that compacts; null while there is none. What it points to is never freed.
static THREAD: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());

/// Whether there is a thread, or one is being started.
pub fn is_set() -> bool {
    !THREAD.load(Ordering::Acquire).is_null()
}

/// The thread to wake from now on.
pub fn set(thread: Thread) {
    THREAD.store(ptr::from_mut(Box::leak(Box::new(thread))), Ordering::Release);
}

/// A file has grown large. Called in hooks, so it only wakes the thread.
pub fn wake() {
    // SAFETY: null, or never freed.
    if let Some(thread) = unsafe { THREAD.load(Ordering::Acquire).as_ref() } {
        thread.unpark();
    }
}

/// A forked child has no such thread.
pub fn reset_in_child() {
    THREAD.store(ptr::null_mut(), Ordering::Release);
}
