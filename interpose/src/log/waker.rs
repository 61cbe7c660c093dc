//! Wakes the thread that compacts the trace.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::Thread;

/// The compacting thread; null while there is none. The pointee is never freed.
static THREAD: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());

/// Whether there is a thread, or one is being started.
pub fn is_set() -> bool {
    !THREAD.load(Ordering::Acquire).is_null()
}

/// Sets the thread to wake from now on.
pub fn set(thread: Thread) {
    THREAD.store(ptr::from_mut(Box::leak(Box::new(thread))), Ordering::Release);
}

/// Called in hooks when a file has grown large; it only wakes the thread.
pub fn wake() {
    // SAFETY: null, or never freed.
    if let Some(thread) = unsafe { THREAD.load(Ordering::Acquire).as_ref() } {
        thread.unpark();
    }
}

/// Called in a forked child, which has no such thread.
pub fn reset_in_child() {
    THREAD.store(ptr::null_mut(), Ordering::Release);
}
