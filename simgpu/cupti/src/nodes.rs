//! The subscriber's callbacks for graph nodes, in the resource domain.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::subscriber;

/// `CUPTI_CB_DOMAIN_RESOURCE`.
pub const DOMAIN: u32 = 3;

/// `CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED` and `…_CLONED`.
const CREATED: u32 = 13;
const CLONED: u32 = 20;

static CREATED_WANTED: AtomicBool = AtomicBool::new(false);
static CLONED_WANTED: AtomicBool = AtomicBool::new(false);

/// `CUpti_ResourceData`.
#[repr(C)]
struct Resource {
    context: usize,
    handle: usize,
    descriptor: *const Graph,
}

/// `CUpti_GraphData`.
#[repr(C)]
struct Graph {
    graph: usize,
    original_graph: usize,
    node: usize,
    original_node: usize,
    node_type: u32,
    dependency: usize,
    executable: usize,
}

/// Enables or disables a callback. Other callbacks of the domain are never called.
pub fn want(callback: u32, wanted: bool) {
    match callback {
        CREATED => CREATED_WANTED.store(wanted, Ordering::Relaxed),
        CLONED => CLONED_WANTED.store(wanted, Ordering::Relaxed),
        _ => {}
    }
}

/// Disables all callbacks when the subscription ends.
pub fn want_none() {
    [CREATED, CLONED].into_iter().for_each(|callback| want(callback, false));
}

/// Returns true if a callback is enabled.
pub fn is_any_wanted() -> bool {
    CREATED_WANTED.load(Ordering::Relaxed) || CLONED_WANTED.load(Ordering::Relaxed)
}

/// Notifies the subscriber of a new node of a graph.
///
/// A node of an executable graph is reported as created and as a clone, as on a card.
pub fn notify(node: usize, original: usize) {
    let data = Graph {
        graph: 0,
        original_graph: 0,
        node,
        original_node: original,
        node_type: 0,
        dependency: 0,
        executable: 0,
    };
    let data = Resource { context: 0, handle: 0, descriptor: ptr::from_ref(&data) };
    let Some((callback, own)) = subscriber::subscriber() else { return };
    let call = |id, wanted: &AtomicBool| {
        if wanted.load(Ordering::Relaxed) {
            // SAFETY: the program promised such a function; the data is valid during the call.
            unsafe { callback(own as *mut c_void, DOMAIN, id, (&raw const data).cast()) };
        }
    };
    call(CREATED, &CREATED_WANTED);
    if original != 0 {
        call(CLONED, &CLONED_WANTED);
    }
}
