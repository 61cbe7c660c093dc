//! Who is told of calls and of work: the simulated CUPTI, if it asks.

use simgpu_observer::{Observer, Slot};

/// Where CUPTI puts itself.
pub static OBSERVER: Slot = Slot::new();

/// Sets who is told; null removes it.
///
/// # Safety
/// The observer is null or never ends.
#[unsafe(no_mangle)]
unsafe extern "C" fn simgpu_observe_driver(observer: *const Observer) {
    // SAFETY: the caller's promise.
    OBSERVER.set(unsafe { observer.as_ref() });
}
