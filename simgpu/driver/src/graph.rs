//! Graphs: nodes with a kind and dependencies, and memory nodes that hold memory.
//!
//! A launch executes only memory nodes. Graph memory follows the documentation. A node's address is fixed when the node
//! is added. Its memory is charged to the card at launch, and stays reserved after a free until `cuDeviceGraphMemTrim`.

use simgpu_observer::{GraphNode, Submitted};

use crate::api::{answer, api};
use crate::capture;
use crate::code::{Answer, Code};
use crate::current::current;
use crate::graph_parts::{add_node, allocate_block, free_block, handles, set_allocation, set_free};
use crate::objects::Work;
use crate::objects::{Executable, Graph, Node};
use crate::observed;
use crate::state::state;
use crate::stream_handle;
use crate::submitted;
use crate::userobject;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE_ON_LAUNCH: u64 = 1;

fn instantiate(to: *mut usize, graph: usize, flags: u64) -> Answer {
    let mut state = state()?;
    let known = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
    let memory = known.nodes.iter().filter_map(|node| {
        let node = state.nodes.get(node)?;
        (node.memory != 0).then_some((node.work, node.memory))
    });
    let tasks = known.nodes.iter().filter_map(|node| Some((*node, state.nodes.get(node)?.task?)));
    let (memory, tasks, objects) = (memory.collect(), tasks.collect::<Vec<_>>(), known.objects.clone());
    userobject::retain_all(&objects);
    // An executable graph has separate nodes.
    let tasks = tasks.into_iter().map(|(original, task)| {
        let node = state.new_handle();
        observed::note_node(node, original);
        (node, task)
    });
    let tasks = tasks.collect();
    let handle = state.new_handle();
    state.executables.insert(handle, Executable { flags, tasks, memory, objects });
    // SAFETY: the caller of cuGraphInstantiate vouches for the pointer.
    unsafe { answer(to, handle) }
}

fn launch(executable: usize, stream: usize) -> Answer {
    let mut state = state()?;
    stream_handle::check(&state, stream)?;
    let known = state.executables.get(&executable).ok_or(Code::INVALID_VALUE)?;
    let (actions, auto_free) = (known.memory.clone(), known.flags & AUTO_FREE_ON_LAUNCH != 0);
    let submitted_work: Vec<Submitted> = known
        .tasks
        .iter()
        .filter_map(|(node, task)| {
            submitted::on_stream(&state, *task, stream, GraphNode { graph: executable, node: *node })
        })
        .collect();
    if !capture::submit(&mut state, stream, Work::GRAPH)? {
        return Ok(());
    }
    if auto_free {
        for (_, address) in &actions {
            free_block(&mut state, *address).ok();
        }
    }
    for (work, address) in actions {
        if work == Work::MEMORY_ALLOCATION {
            allocate_block(&mut state, address)?;
        } else {
            free_block(&mut state, address)?;
        }
    }
    drop(state);
    submitted::notify(submitted_work);
    Ok(())
}

api! {
    fn cuGraphCreate(graph: *mut usize, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = state()?;
        let handle = state.new_handle();
        state.graphs.insert(handle, Graph::default());
        answer(graph, handle)?;
    }

    fn cuGraphDestroy(graph: usize) {
        let mut state = state()?;
        let graph = state.graphs.remove(&graph).ok_or(Code::INVALID_VALUE)?;
        for node in graph.nodes {
            state.nodes.remove(&node);
        }
        drop(state);
        userobject::release_all(graph.objects);
    }

    fn cuGraphClone(clone: *mut usize, graph: usize) {
        let mut state = state()?;
        let original = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.nodes.clone();
        let handle = state.new_handle();
        state.graphs.insert(handle, Graph::default());
        for node in original {
            let Node { work, dependencies, task, memory, .. } = &state.nodes[&node];
            let (work, dependencies, task, memory) = (*work, dependencies.clone(), *task, *memory);
            let copy = add_node(&mut state, handle, work, dependencies)?;
            let copy = state.nodes.get_mut(&copy).ok_or(Code::UNKNOWN)?;
            (copy.task, copy.memory) = (task, memory);
        }
        answer(clone, handle)?;
    }

    fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, flags: u64) {
        instantiate(executable, graph, flags)?;
    }

    fn cuGraphInstantiate | cuGraphInstantiate_v2 (
        executable: *mut usize, graph: usize, _error_node: *mut usize, _log: *mut u8, _size: usize,
    ) {
        instantiate(executable, graph, 0)?;
    }

    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz (
        executable: *mut usize, graph: usize, params: *const u64,
    ) {
        // CUDA_GRAPH_INSTANTIATE_PARAMS begins with the flags.
        instantiate(executable, graph, params.as_ref().copied().unwrap_or(0))?;
    }

    fn cuGraphExecDestroy(executable: usize) {
        let executable = state()?.executables.remove(&executable).ok_or(Code::INVALID_VALUE)?;
        userobject::release_all(executable.objects);
    }

    fn cuGraphExecGetFlags(executable: usize, flags: *mut u64) {
        let state = state()?;
        answer(flags, state.executables.get(&executable).ok_or(Code::INVALID_VALUE)?.flags)?;
    }

    fn cuGraphExecUpdate | cuGraphExecUpdate_v2 (_executable: usize, _graph: usize, _result: *mut u64) {
        return Err(Code::NOT_SUPPORTED);
    }

    fn cuGraphUpload | cuGraphUpload_ptsz (executable: usize, stream: usize) {
        let state = state()?;
        stream_handle::check(&state, stream)?;
        state.executables.get(&executable).ok_or(Code::INVALID_VALUE)?;
    }

    fn cuGraphLaunch | cuGraphLaunch_ptsz (executable: usize, stream: usize) {
        launch(executable, stream)?;
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        let mut state = state()?;
        let device = state.device(device)?;
        let memory = &mut state.graph_memory[device];
        let spare = memory.reserved - memory.used;
        memory.reserved = memory.used;
        state.cards.give_back(device, spare);
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: *mut u64) {
        let state = state()?;
        let memory = &state.graph_memory[state.device(device)?];
        let figures = [memory.used, memory.used_high, memory.reserved, memory.reserved_high];
        let figure = usize::try_from(attribute).ok().and_then(|index| figures.get(index));
        answer(value, *figure.ok_or(Code::INVALID_VALUE)?)?;
    }

    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: i32, value: *const u64) {
        let mut state = state()?;
        let device = state.device(device)?;
        let memory = &mut state.graph_memory[device];
        if value.is_null() || *value != 0 {
            return Err(Code::INVALID_VALUE);
        }
        match attribute {
            1 => memory.used_high = memory.used,
            3 => memory.reserved_high = memory.reserved,
            _ => return Err(Code::INVALID_VALUE),
        }
    }

    fn cuGraphAddMemAllocNode(
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, params: *mut u8,
    ) {
        let mut state = state()?;
        current(&state)?;
        crate::fail::count_allocation()?;
        let handle = add_node(&mut state, graph, Work::MEMORY_ALLOCATION, handles(dependencies, count))?;
        // CUDA_MEM_ALLOC_NODE_PARAMS: pool properties (88 bytes, the location's device at 12), access descriptors (at
        // 88, 96), size (at 104), address (at 112).
        let device = params.add(12).cast::<i32>().read();
        let device = state.device(device)?;
        let size = params.add(104).cast::<u64>().read();
        let address = set_allocation(&mut state, handle, size, device)?;
        params.add(112).cast::<u64>().write(address);
        answer(node, handle)?;
    }

    fn cuGraphAddMemFreeNode(
        node: *mut usize, graph: usize, dependencies: *const usize, count: usize, address: u64,
    ) {
        let mut state = state()?;
        let handle = add_node(&mut state, graph, Work::MEMORY_FREE, handles(dependencies, count))?;
        set_free(&mut state, handle, address)?;
        answer(node, handle)?;
    }

    fn cuGraphMemFreeNodeGetParams(node: usize, address: *mut u64) {
        let state = state()?;
        answer(address, state.nodes.get(&node).ok_or(Code::INVALID_VALUE)?.memory)?;
    }
}
