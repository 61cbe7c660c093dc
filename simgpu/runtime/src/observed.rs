//! Observer of calls: the simulated CUPTI, if it registers.

use simgpu_observer::{Observer, Slot};

/// Slot for CUPTI's observer.
pub static OBSERVER: Slot = Slot::new();

/// Sets the observer; null removes it.
///
/// # Safety
/// The observer is null or never ends.
#[unsafe(no_mangle)]
unsafe extern "C" fn simgpu_observe_runtime(observer: *const Observer) {
    // SAFETY: the caller's promise.
    OBSERVER.set(unsafe { observer.as_ref() });
}
