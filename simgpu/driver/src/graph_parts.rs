//! Parts of graphs: nodes, and the memory of memory nodes.
//!
//! Graph memory follows the documentation. A node's address is fixed when the node is added. Its memory is charged to
//! the card at launch, and stays reserved after a free until `cuDeviceGraphMemTrim`.

use crate::allocation::{allocate_on, rounded};
use crate::code::{Answer, Code};
use crate::objects::{Node, Work};
use crate::observed;
use crate::pages;
use crate::space::Kind;
use crate::state::DriverState;

/// Returns the handles of a C array.
///
/// # Safety
/// `first` is null or points to `count` handles.
pub unsafe fn handles(first: *const usize, count: usize) -> Vec<usize> {
    if first.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller vouches for `count` handles.
    unsafe { std::slice::from_raw_parts(first, count).to_vec() }
}

/// Adds a node to a graph.
pub fn add_node(state: &mut DriverState, graph: usize, work: Work, dependencies: Vec<usize>) -> Result<usize, Code> {
    if !state.graphs.contains_key(&graph) {
        return Err(Code::INVALID_VALUE);
    }
    let handle = state.new_handle();
    state.nodes.insert(handle, Node { graph, work, dependencies, task: None, memory: 0 });
    state.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?.nodes.push(handle);
    observed::note_node(handle, 0);
    Ok(handle)
}

/// Makes a node allocate `size` bytes on `device`, and returns the address.
pub fn set_allocation(state: &mut DriverState, node: usize, size: u64, device: usize) -> Result<u64, Code> {
    let address = allocate_on(state, size, Kind::Graph, 0, device, false)?;
    state.nodes.get_mut(&node).ok_or(Code::INVALID_VALUE)?.memory = address;
    Ok(address)
}

/// Makes a node free `address`, which a node must have allocated.
pub fn set_free(state: &mut DriverState, node: usize, address: u64) -> Answer {
    if state.space.get(address).is_none_or(|block| block.kind != Kind::Graph) {
        return Err(Code::INVALID_VALUE);
    }
    state.nodes.get_mut(&node).ok_or(Code::INVALID_VALUE)?.memory = address;
    Ok(())
}

/// Frees memory that a launched graph left allocated, by `cuMemFree` or `cuMemFreeAsync`.
pub fn free_block(state: &mut DriverState, address: u64) -> Answer {
    let block = *state.space.get(address).ok_or(Code::INVALID_VALUE)?;
    let memory = &mut state.graph_memory[block.device];
    if !memory.live.remove(&address) {
        return Err(Code::INVALID_VALUE);
    }
    memory.used -= rounded(block.size);
    // SAFETY: the block is mapped memory of this driver that the program has freed.
    unsafe { pages::zero(block.base, block.mapped) };
    Ok(())
}

/// Allocates the memory of a node at launch.
pub fn allocate_block(state: &mut DriverState, address: u64) -> Answer {
    let block = *state.space.get(address).ok_or(Code::INVALID_VALUE)?;
    let memory = &state.graph_memory[block.device];
    if memory.live.contains(&address) {
        return Err(Code::INVALID_VALUE);
    }
    let used = memory.used + rounded(block.size);
    let missing = used.saturating_sub(memory.reserved);
    state.charge(block.device, missing)?;
    let memory = &mut state.graph_memory[block.device];
    memory.live.insert(address);
    memory.used = used;
    memory.used_high = memory.used_high.max(used);
    memory.reserved += missing;
    memory.reserved_high = memory.reserved_high.max(memory.reserved);
    Ok(())
}
