//! Place at which each node of a CUDA graph was captured, by CUPTI's number of the node.

use cupti_sys::bindings::{CUgraphNode, CUpti_CallbackIdResource, CUpti_GraphData};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::library::CUPTI;
use crate::attribution::result::Attribution;
use interpose_base::locks;

/// Callbacks that report nodes.
pub const CALLBACKS: [CUpti_CallbackIdResource; 2] = [
    CUpti_CallbackIdResource::CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
    CUpti_CallbackIdResource::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED,
];

/// Maximum number of nodes kept.
///
/// Others count where their graph is launched.
const MAX_NODES: usize = 1 << 20;

static PLACES: Mutex<Option<HashMap<u64, Attribution>>> = Mutex::new(None);

/// Records a new node: of captured work, or of an executable graph, whose nodes are clones.
///
/// CUPTI also reports a clone as created, by the call that instantiates its graph.
///
/// # Safety
///
/// `data` must be CUPTI's, of one of [`CALLBACKS`].
pub unsafe fn node_created(id: CUpti_CallbackIdResource, data: &CUpti_GraphData, here: Attribution) {
    // SAFETY: CUPTI reports only nodes that exist.
    let Some(node) = (unsafe { number(data.node) }) else { return };
    if id != CUpti_CallbackIdResource::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED {
        let mut places = PLACES.lock();
        let places = places.get_or_insert_default();
        if places.len() < MAX_NODES {
            places.entry(node).or_insert(here);
        }
        return;
    }
    // SAFETY: as above.
    let Some(original) = (unsafe { number(data.originalNode) }) else { return };
    let mut places = PLACES.lock();
    let places = places.get_or_insert_default();
    if let Some(place) = places.get(&original).copied()
        && (places.len() < MAX_NODES || places.contains_key(&node))
    {
        places.insert(node, place);
    }
}

/// # Safety
///
/// The node must exist.
unsafe fn number(node: CUgraphNode) -> Option<u64> {
    // SAFETY: the caller promises that the node exists.
    CUPTI.get().and_then(|cupti| unsafe { cupti.graph_node(node) }.ok())
}

/// Returns the place of a node; `None` if it is unknown, or 0.
pub fn place(node: u64) -> Option<Attribution> {
    if node == 0 {
        return None;
    }
    PLACES.lock().as_ref().and_then(|places| places.get(&node).copied())
}

/// Called in a forked child, where no GPU work runs.
pub fn reset_in_child() {
    locks::reset_in_child(&PLACES, None);
}
