//! Observer of calls and work: the simulated CUPTI, if it registers.

use std::cell::RefCell;

use simgpu_observer::{Observer, Slot};

/// Slot for CUPTI's observer.
pub static OBSERVER: Slot = Slot::new();

thread_local! {
    /// Nodes that the call in progress has made, and the nodes that they copy, or 0.
    static NEW_NODES: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Records a node that the call in progress has made, to be reported once the state is unlocked.
pub fn note_node(node: usize, original: usize) {
    if OBSERVER.observer().is_some() {
        NEW_NODES.try_with(|nodes| nodes.borrow_mut().push((node, original))).ok();
    }
}

/// Reports the nodes that the call has made. Must not be called with the state locked.
pub fn notify_nodes() {
    for (node, original) in NEW_NODES.try_with(RefCell::take).unwrap_or_default() {
        OBSERVER.node_made(node, original);
    }
}

/// Sets the observer; null removes it.
///
/// # Safety
/// The observer is null or never ends.
#[unsafe(no_mangle)]
unsafe extern "C" fn simgpu_observe_driver(observer: *const Observer) {
    // SAFETY: the caller's promise.
    OBSERVER.set(unsafe { observer.as_ref() });
}
