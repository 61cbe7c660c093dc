//! Who is told of calls and of work: the simulated CUPTI, if it asks.

use std::cell::RefCell;

use simgpu_observer::{Observer, Slot};

/// Where CUPTI puts itself.
pub static OBSERVER: Slot = Slot::new();

thread_local! {
    /// Nodes that the call in progress has made, and what they are copies of, or 0.
    static NEW_NODES: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Notes a node that the call in progress has made. It is told of when the state is unlocked.
pub fn note_node(node: usize, original: usize) {
    if OBSERVER.observer().is_some() {
        NEW_NODES.try_with(|nodes| nodes.borrow_mut().push((node, original))).ok();
    }
}

/// Tells of the nodes that the call has made. Not to be called with the state locked.
pub fn notify_nodes() {
    for (node, original) in NEW_NODES.try_with(RefCell::take).unwrap_or_default() {
        OBSERVER.node_made(node, original);
    }
}

/// Sets who is told; null removes it.
///
/// # Safety
/// The observer is null or never ends.
#[unsafe(no_mangle)]
unsafe extern "C" fn simgpu_observe_driver(observer: *const Observer) {
    // SAFETY: the caller's promise.
    OBSERVER.set(unsafe { observer.as_ref() });
}
