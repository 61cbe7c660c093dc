//! Locks of memlab's own in a forked child, where the thread that held one does not exist.

use parking_lot::Mutex;

/// Unlocks what another thread of the parent may have held.
///
/// To be called in the child alone, by its only thread, which does not hold the lock.
pub fn unlock_in_child<T>(lock: &Mutex<T>) {
    if lock.is_locked() {
        // SAFETY: the thread that locked it was the parent's and does not exist here.
        unsafe { lock.force_unlock() };
    }
}

/// Unlocks it and replaces what it protects, which is useless in the child or may have been left half changed. The old
/// value is leaked, not dropped.
pub fn reset_in_child<T>(lock: &Mutex<T>, value: T) {
    unlock_in_child(lock);
    // SAFETY: the child has one thread, and it holds no reference into the lock.
    unsafe { std::ptr::write(lock.data_ptr(), value) };
}
