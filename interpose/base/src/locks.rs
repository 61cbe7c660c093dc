//! memlab's locks in a forked child, where the parent's thread that held one does not exist.

use parking_lot::Mutex;

/// Unlocks a lock that another thread of the parent may have held.
///
/// Must only be called in the child, by its only thread, which does not hold the lock.
pub fn unlock_in_child<T>(lock: &Mutex<T>) {
    if lock.is_locked() {
        // SAFETY: the thread that locked it was the parent's and does not exist here.
        unsafe { lock.force_unlock() };
    }
}

/// Unlocks the lock and replaces its value, which is useless in the child or may be half changed.
///
/// The old value is leaked, not dropped.
pub fn reset_in_child<T>(lock: &Mutex<T>, value: T) {
    unlock_in_child(lock);
    // SAFETY: the child has one thread, and it holds no reference into the lock.
    unsafe { std::ptr::write(lock.data_ptr(), value) };
}
