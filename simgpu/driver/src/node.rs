//! Adding nodes to graphs, and queries about their nodes.

use crate::api::{answer, answer_if_asked, api};
use crate::code::{Answer, Code};
use crate::graph_parts::{add_node, handles, set_allocation, set_free};
use crate::objects::Work;
use crate::state::state;

/// # Safety
/// `dependencies` points to `count` handles and `node` to room for one.
unsafe fn add(node: *mut usize, graph: usize, work: Work, dependencies: *const usize, count: usize) -> Answer {
    // SAFETY: the caller vouches for both pointers.
    unsafe {
        let handle = add_node(&mut *state()?, graph, work, handles(dependencies, count))?;
        answer(node, handle)
    }
}

/// Adds a node from `CUgraphNodeParams`: its kind at 0, the parameters of the kind from 16 on.
///
/// # Safety
/// Those of [`add`], and `params` points to a whole `CUgraphNodeParams` (256 bytes).
unsafe fn add_general(
    node: *mut usize,
    graph: usize,
    dependencies: *const usize,
    count: usize,
    params: *mut u8,
) -> Answer {
    // SAFETY: the caller vouches for the pointers; the offsets are those of cuda.h.
    unsafe {
        let work = Work(params.cast::<i32>().read());
        if !(0..=12).contains(&work.0) {
            return Err(Code::NOT_SUPPORTED); // conditional nodes would need kernels that run
        }
        let mut state = state()?;
        let handle = add_node(&mut state, graph, work, handles(dependencies, count))?;
        if work == Work::MEMORY_ALLOCATION {
            let device = state.device(params.add(16 + 12).cast::<i32>().read())?;
            let address = set_allocation(&mut state, handle, params.add(16 + 104).cast::<u64>().read(), device)?;
            params.add(16 + 112).cast::<u64>().write(address);
        } else if work == Work::MEMORY_FREE {
            set_free(&mut state, handle, params.add(16).cast::<u64>().read())?;
        }
        answer(node, handle)
    }
}

/// Answers the two-call query for a list: the count if the list is null, else up to `count` elements.
///
/// # Safety
/// `list` is null or has room for `*count` elements.
unsafe fn list(all: &[usize], list: *mut usize, count: *mut usize) -> Answer {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        if count.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        if !list.is_null() {
            let room = *count;
            for (index, slot) in (0..room).zip(all.iter().copied().chain(std::iter::repeat(0))) {
                list.add(index).write(slot);
            }
            *count = room.min(all.len());
        } else {
            *count = all.len();
        }
    }
    Ok(())
}

api! {
    fn cuGraphAddKernelNode | cuGraphAddKernelNode_v2 (
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, _params: *const u8,
    ) {
        add(node, graph, Work::KERNEL, dependencies, count)?;
    }

    fn cuGraphAddMemcpyNode(
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, _params: *const u8, _context: usize,
    ) {
        add(node, graph, Work::MEMCPY, dependencies, count)?;
    }

    fn cuGraphAddMemsetNode(
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, _params: *const u8, _context: usize,
    ) {
        add(node, graph, Work::MEMSET, dependencies, count)?;
    }

    fn cuGraphAddHostNode(
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, _params: *const u8,
    ) {
        add(node, graph, Work::HOST, dependencies, count)?;
    }

    fn cuGraphAddChildGraphNode(
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, _child: usize,
    ) {
        add(node, graph, Work::GRAPH, dependencies, count)?;
    }

    fn cuGraphAddEmptyNode(node: *mut usize, graph: usize, dependencies: *const usize, count: usize) {
        add(node, graph, Work::EMPTY, dependencies, count)?;
    }

    fn cuGraphAddEventRecordNode(
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, _event: usize,
    ) {
        add(node, graph, Work::EVENT_RECORD, dependencies, count)?;
    }

    fn cuGraphAddEventWaitNode(
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, _event: usize,
    ) {
        add(node, graph, Work::EVENT_WAIT, dependencies, count)?;
    }

    fn cuGraphAddNode(node: *mut usize, graph: usize, dependencies: *const usize, count: usize, params: *mut u8) {
        add_general(node, graph, dependencies, count, params)?;
    }

    fn cuGraphAddNode_v2(
        node: *mut usize, graph: usize, dependencies: *const usize, _edges: *const u8, count: usize, params: *mut u8,
    ) {
        add_general(node, graph, dependencies, count, params)?;
    }

    fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) {
        let state = state()?;
        list(&state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.nodes, nodes, count)?;
    }

    fn cuGraphGetRootNodes(graph: usize, nodes: *mut usize, count: *mut usize) {
        let state = state()?;
        let all = &state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.nodes;
        let root = |node: &usize| state.nodes.get(node).is_some_and(|node| node.dependencies.is_empty());
        list(&all.iter().copied().filter(root).collect::<Vec<_>>(), nodes, count)?;
    }

    fn cuGraphNodeGetType(node: usize, kind: *mut i32) {
        let state = state()?;
        answer(kind, state.nodes.get(&node).ok_or(Code::INVALID_VALUE)?.work.0)?;
    }

    fn cuGraphNodeGetContainingGraph(node: usize, graph: *mut usize) {
        let state = state()?;
        answer(graph, state.nodes.get(&node).ok_or(Code::INVALID_VALUE)?.graph)?;
    }

    fn cuGraphNodeGetDependencies(node: usize, dependencies: *mut usize, count: *mut usize) {
        let state = state()?;
        list(&state.nodes.get(&node).ok_or(Code::INVALID_VALUE)?.dependencies, dependencies, count)?;
    }

    fn cuGraphNodeGetDependencies_v2(node: usize, dependencies: *mut usize, edges: *mut u64, count: *mut usize) {
        let state = state()?;
        let own = &state.nodes.get(&node).ok_or(Code::INVALID_VALUE)?.dependencies;
        list(own, dependencies, count)?;
        if !edges.is_null() {
            for index in 0..own.len().min(*count) {
                edges.add(index).write(0); // CUgraphEdgeData: 8 bytes, zero for a plain dependency
            }
        }
    }

    fn cuGraphAddDependencies(graph: usize, from: *const usize, to: *const usize, count: usize) {
        let mut state = state()?;
        state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
        for (from, to) in handles(from, count).into_iter().zip(handles(to, count)) {
            state.nodes.get_mut(&to).ok_or(Code::INVALID_VALUE)?.dependencies.push(from);
        }
    }

    fn cuGraphAddDependencies_v2(
        graph: usize, from: *const usize, to: *const usize, _edges: *const u8, count: usize,
    ) {
        let mut state = state()?;
        state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
        for (from, to) in handles(from, count).into_iter().zip(handles(to, count)) {
            state.nodes.get_mut(&to).ok_or(Code::INVALID_VALUE)?.dependencies.push(from);
        }
    }

    fn cuGraphDestroyNode(node: usize) {
        let mut state = state()?;
        let graph = state.nodes.remove(&node).ok_or(Code::INVALID_VALUE)?.graph;
        if let Some(graph) = state.graphs.get_mut(&graph) {
            graph.nodes.retain(|known| *known != node);
        }
    }

    fn cuGraphNodeSetEnabled(_executable: usize, _node: usize, _enabled: u32) {}

    fn cuGraphNodeGetEnabled(_executable: usize, _node: usize, enabled: *mut u32) {
        answer_if_asked(enabled, 1);
    }

    fn cuGraphKernelNodeSetParams | cuGraphKernelNodeSetParams_v2 (_node: usize, _params: *const u8) {}

    fn cuGraphExecKernelNodeSetParams | cuGraphExecKernelNodeSetParams_v2 (
        _executable: usize, _node: usize, _params: *const u8,
    ) {}

    fn cuGraphDebugDotPrint(_graph: usize, _path: *const i8, _flags: u32) {}

    fn cuGraphConditionalHandleCreate(
        _handle: *mut u64, _graph: usize, _context: usize, _default: u32, _flags: u32,
    ) {
        return Err(Code::NOT_SUPPORTED);
    }
}
