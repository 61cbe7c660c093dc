//! Graphs: each function is one call of the driver.

use std::ffi::c_char;

use crate::api::{answer, api, api_without_context};
use crate::driver_calls::is_12;
use crate::memory::own_context;

api! {
    fn cudaGraphCreate(cu; graph: *mut usize, flags: u32) {
        cu.cuGraphCreate(graph, flags)?;
    }

    fn cudaGraphInstantiate(cu; executable: *mut usize, graph: usize, flags: u64) {
        cu.cuGraphInstantiate(executable, graph, flags)?;
    }

    fn cudaGraphInstantiateWithFlags(cu; executable: *mut usize, graph: usize, flags: u64) {
        cu.cuGraphInstantiate(executable, graph, flags)?;
    }

    fn cudaGraphInstantiateWithParams | cudaGraphInstantiateWithParams_ptsz (
        cu; executable: *mut usize, graph: usize, params: *mut u8,
    ) {
        cu.cuGraphInstantiateWithParams(executable, graph, params)?;
    }

    fn cudaGraphUpload | cudaGraphUpload_ptsz (cu; executable: usize, stream: usize) {
        cu.cuGraphUpload(executable, stream)?;
    }

    fn cudaGraphLaunch | cudaGraphLaunch_ptsz (cu; executable: usize, stream: usize) {
        cu.cuGraphLaunch(executable, stream)?;
    }

    fn cudaGraphAddMemAllocNode(cu; node: *mut usize, graph: usize, on: *const usize, count: usize, params: *mut u8) {
        cu.cuGraphAddMemAllocNode(node, graph, on, count, params)?;
    }

    fn cudaGraphAddMemFreeNode(cu; node: *mut usize, graph: usize, on: *const usize, count: usize, address: u64) {
        cu.cuGraphAddMemFreeNode(node, graph, on, count, address)?;
    }

    fn cudaGraphAddKernelNode(cu; node: *mut usize, graph: usize, on: *const usize, count: usize, params: *const u8) {
        cu.cuGraphAddKernelNode(node, graph, on, count, params)?;
    }

    fn cudaGraphAddMemcpyNode(cu; node: *mut usize, graph: usize, on: *const usize, count: usize, params: *const u8) {
        cu.cuGraphAddMemcpyNode(node, graph, on, count, params, own_context(cu)?)?;
    }

    fn cudaGraphAddMemsetNode(cu; node: *mut usize, graph: usize, on: *const usize, count: usize, params: *const u8) {
        cu.cuGraphAddMemsetNode(node, graph, on, count, params, own_context(cu)?)?;
    }

    fn cudaGraphAddHostNode(cu; node: *mut usize, graph: usize, on: *const usize, count: usize, params: *const u8) {
        cu.cuGraphAddHostNode(node, graph, on, count, params)?;
    }

    fn cudaGraphAddChildGraphNode(cu; node: *mut usize, graph: usize, on: *const usize, count: usize, child: usize) {
        cu.cuGraphAddChildGraphNode(node, graph, on, count, child)?;
    }

    fn cudaGraphAddEmptyNode(cu; node: *mut usize, graph: usize, on: *const usize, count: usize) {
        cu.cuGraphAddEmptyNode(node, graph, on, count)?;
    }

    fn cudaGraphAddNode(
        cu; node: *mut usize, graph: usize, on: *const usize, edges_or_count: usize, count_or_params: usize,
        params: *mut u8,
    ) {
        if is_12() {
            let params = count_or_params as *mut u8;
            cu.cuGraphAddNode(node, graph, on, std::ptr::null(), edges_or_count, params)?;
        } else {
            cu.cuGraphAddNode(node, graph, on, edges_or_count as *const u8, count_or_params, params)?;
        }
    }

    fn cudaGraphAddNode_v2(
        cu; node: *mut usize, graph: usize, on: *const usize, edges: *const u8, count: usize, params: *mut u8,
    ) {
        cu.cuGraphAddNode(node, graph, on, edges, count, params)?;
    }

    fn cudaGraphConditionalHandleCreate(cu; handle: *mut u64, graph: usize, default: u32, flags: u32) {
        cu.cuGraphConditionalHandleCreate(handle, graph, own_context(cu)?, default, flags)?;
    }
}

api_without_context! {
    fn cudaGraphDestroy(cu; graph: usize) {
        cu.cuGraphDestroy(graph)?;
    }

    fn cudaGraphClone(cu; clone: *mut usize, graph: usize) {
        cu.cuGraphClone(clone, graph)?;
    }

    fn cudaGraphExecDestroy(cu; executable: usize) {
        cu.cuGraphExecDestroy(executable)?;
    }

    fn cudaGraphExecGetFlags(cu; executable: usize, flags: *mut u64) {
        cu.cuGraphExecGetFlags(executable, flags)?;
    }

    fn cudaGraphExecUpdate(cu; executable: usize, graph: usize, result: *mut u8) {
        cu.cuGraphExecUpdate(executable, graph, result)?;
    }

    fn cudaGraphGetNodes(cu; graph: usize, nodes: *mut usize, count: *mut usize) {
        cu.cuGraphGetNodes(graph, nodes, count)?;
    }

    fn cudaGraphGetRootNodes(cu; graph: usize, nodes: *mut usize, count: *mut usize) {
        cu.cuGraphGetRootNodes(graph, nodes, count)?;
    }

    fn cudaGraphNodeGetContainingGraph(cu; node: usize, graph: *mut usize) {
        cu.cuGraphNodeGetContainingGraph(node, graph)?;
    }

    fn cudaGraphNodeGetType(cu; node: usize, kind: *mut i32) {
        cu.cuGraphNodeGetType(node, kind)?;
    }

    fn cudaGraphNodeGetDependencies(cu; node: usize, nodes: *mut usize, edges_or_count: *mut u8, count: *mut usize) {
        if is_12() {
            cu.cuGraphNodeGetDependencies(node, nodes, std::ptr::null_mut(), edges_or_count.cast())?;
        } else {
            cu.cuGraphNodeGetDependencies(node, nodes, edges_or_count, count)?;
        }
    }

    fn cudaGraphNodeGetDependencies_v2(cu; node: usize, nodes: *mut usize, edges: *mut u8, count: *mut usize) {
        cu.cuGraphNodeGetDependencies(node, nodes, edges, count)?;
    }

    fn cudaGraphAddDependencies(
        cu; graph: usize, from: *const usize, to: *const usize, edges_or_count: usize, count: usize,
    ) {
        if is_12() {
            cu.cuGraphAddDependencies(graph, from, to, std::ptr::null(), edges_or_count)?;
        } else {
            cu.cuGraphAddDependencies(graph, from, to, edges_or_count as *const u8, count)?;
        }
    }

    fn cudaGraphDestroyNode(cu; node: usize) {
        cu.cuGraphDestroyNode(node)?;
    }

    fn cudaGraphDebugDotPrint(cu; graph: usize, path: *const c_char, flags: u32) {
        cu.cuGraphDebugDotPrint(graph, path, flags)?;
    }

    fn cudaGraphNodeSetEnabled(_cu; _executable: usize, _node: usize, _enabled: u32) {}

    fn cudaGraphNodeGetEnabled(_cu; _executable: usize, _node: usize, enabled: *mut u32) {
        answer(enabled, 1)?;
    }

    fn cudaDeviceGraphMemTrim(cu; device: i32) {
        cu.cuDeviceGraphMemTrim(device)?;
    }

    fn cudaDeviceGetGraphMemAttribute(cu; device: i32, attribute: i32, value: *mut u64) {
        cu.cuDeviceGetGraphMemAttribute(device, attribute, value)?;
    }

    fn cudaDeviceSetGraphMemAttribute(cu; device: i32, attribute: i32, value: *const u64) {
        cu.cuDeviceSetGraphMemAttribute(device, attribute, value)?;
    }

    fn cudaUserObjectCreate(cu; object: *mut usize, data: usize, destroy: usize, references: u32, flags: u32) {
        cu.cuUserObjectCreate(object, data, destroy, references, flags)?;
    }

    fn cudaUserObjectRetain(cu; object: usize, count: u32) {
        cu.cuUserObjectRetain(object, count)?;
    }

    fn cudaUserObjectRelease(cu; object: usize, count: u32) {
        cu.cuUserObjectRelease(object, count)?;
    }

    fn cudaGraphRetainUserObject(cu; graph: usize, object: usize, count: u32, flags: u32) {
        cu.cuGraphRetainUserObject(graph, object, count, flags)?;
    }

    fn cudaGraphReleaseUserObject(cu; graph: usize, object: usize, count: u32) {
        cu.cuGraphReleaseUserObject(graph, object, count)?;
    }
}
