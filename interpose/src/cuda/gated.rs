//! Driver calls that touch device memory.
//!
//! In a program started for offloading, each passes the gate.
//!
//! In other programs `cuGetProcAddress` and `dlsym` return the driver's functions. Only code linked directly against libcuda
//! passes through these hooks, at the cost of one call.

use std::ffi::{c_int, c_uint};

use super::hook::{driver_hook, driver_hook_table};
use interpose_driver::types::Handle;
use interpose_driver::vmm::gate;

/// A function that passes the gate and calls the real function.
macro_rules! gated {
    ($name:ident [] ($($arg:ident: $type:ty),*) {}) => {
        driver_hook! { $name [] ($($arg: $type),*) { |real| {
            let _pass = gate::enter();
            real($($arg),*)
        } } }
    };
}

/// Takes rows like those of [`driver_hook_table`]; all are gated functions and have no details.
macro_rules! gated_hooks {
    ($($requested_name:ident $arguments:tt $since:literal: $symbol:ident $(/ $per_thread:ident)?;)*) => {
        driver_hook_table! { $(gated[] $requested_name $arguments $since: $symbol $(/ $per_thread)? => {};)* }
    };
}

gated_hooks! {
    cuLaunch(function: Handle) 2000: cuLaunch;
    cuLaunchGrid(function: Handle, width: c_int, height: c_int) 2000: cuLaunchGrid;
    cuLaunchGridAsync(function: Handle, width: c_int, height: c_int, stream: Handle) 2000: cuLaunchGridAsync;
    cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: Handle, arguments: Handle, extra: Handle
    ) 4000: cuLaunchKernel / cuLaunchKernel_ptsz;
    cuLaunchKernelEx(config: Handle, function: Handle, arguments: Handle, extra: Handle) 11060:
        cuLaunchKernelEx / cuLaunchKernelEx_ptsz;
    cuLaunchCooperativeKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: Handle, arguments: Handle
    ) 9000: cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz;
    cuLaunchCooperativeKernelMultiDevice(launches: Handle, count: c_uint, flags: c_uint) 9000:
        cuLaunchCooperativeKernelMultiDevice;
    cuGraphLaunch(graph: Handle, stream: Handle) 10000: cuGraphLaunch / cuGraphLaunch_ptsz;
    cuGraphUpload(graph: Handle, stream: Handle) 11010: cuGraphUpload / cuGraphUpload_ptsz;
    cuMemcpy(to: u64, from: u64, bytes: usize) 4000: cuMemcpy / cuMemcpy_ptds;
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) 4000: cuMemcpyAsync / cuMemcpyAsync_ptsz;
    cuMemcpyPeer(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) 4000:
        cuMemcpyPeer / cuMemcpyPeer_ptds;
    cuMemcpyPeerAsync(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle) 4000:
        cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz;
    cuMemcpyHtoD(to: u64, from: Handle, bytes: usize) 3020: cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds;
    cuMemcpyHtoDAsync(to: u64, from: Handle, bytes: usize, stream: Handle) 3020:
        cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz;
    cuMemcpyDtoD(to: u64, from: u64, bytes: usize) 3020: cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds;
    cuMemcpyDtoDAsync(to: u64, from: u64, bytes: usize, stream: Handle) 3020:
        cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz;
    cuMemcpyDtoA(to: Handle, offset: usize, from: u64, bytes: usize) 3020: cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds;
    cuMemcpyAtoD(to: u64, from: Handle, offset: usize, bytes: usize) 3020: cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds;
    cuMemcpyHtoA(to: Handle, offset: usize, from: Handle, bytes: usize) 3020: cuMemcpyHtoA_v2 / cuMemcpyHtoA_v2_ptds;
    cuMemcpyAtoH(to: Handle, from: Handle, offset: usize, bytes: usize) 3020: cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds;
    cuMemcpyAtoA(to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize) 3020:
        cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds;
    cuMemcpyHtoAAsync(to: Handle, offset: usize, from: Handle, bytes: usize, stream: Handle) 3020:
        cuMemcpyHtoAAsync_v2 / cuMemcpyHtoAAsync_v2_ptsz;
    cuMemcpyAtoHAsync(to: Handle, from: Handle, offset: usize, bytes: usize, stream: Handle) 3020:
        cuMemcpyAtoHAsync_v2 / cuMemcpyAtoHAsync_v2_ptsz;
    cuMemcpy2D(copy: Handle) 3020: cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds;
    cuMemcpy2DUnaligned(copy: Handle) 3020: cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds;
    cuMemcpy2DAsync(copy: Handle, stream: Handle) 3020: cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz;
    cuMemcpy3D(copy: Handle) 3020: cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds;
    cuMemcpy3DAsync(copy: Handle, stream: Handle) 3020: cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz;
    cuMemcpy3DPeer(copy: Handle) 4000: cuMemcpy3DPeer / cuMemcpy3DPeer_ptds;
    cuMemcpy3DPeerAsync(copy: Handle, stream: Handle) 4000: cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz;
    cuMemcpyBatchAsync(
        to: Handle, from: Handle, sizes: Handle, count: usize, attributes: Handle, indices: Handle,
        attribute_count: usize, stream: Handle
    ) 13000: cuMemcpyBatchAsync_v2 / cuMemcpyBatchAsync_v2_ptsz;
    cuMemcpyBatchAsync(
        to: Handle, from: Handle, sizes: Handle, count: usize, attributes: Handle, indices: Handle,
        attribute_count: usize, failed: Handle, stream: Handle
    ) 12080: cuMemcpyBatchAsync / cuMemcpyBatchAsync_ptsz;
    cuMemcpy3DBatchAsync(count: usize, operations: Handle, flags: u64, stream: Handle) 13000:
        cuMemcpy3DBatchAsync_v2 / cuMemcpy3DBatchAsync_v2_ptsz;
    cuMemcpy3DBatchAsync(count: usize, operations: Handle, failed: Handle, flags: u64, stream: Handle) 12080:
        cuMemcpy3DBatchAsync / cuMemcpy3DBatchAsync_ptsz;
    cuMemcpyWithAttributesAsync(to: u64, from: u64, bytes: usize, attributes: Handle, stream: Handle) 13020:
        cuMemcpyWithAttributesAsync / cuMemcpyWithAttributesAsync_ptsz;
    cuMemsetD8(to: u64, value: u8, count: usize) 3020: cuMemsetD8_v2 / cuMemsetD8_v2_ptds;
    cuMemsetD16(to: u64, value: u16, count: usize) 3020: cuMemsetD16_v2 / cuMemsetD16_v2_ptds;
    cuMemsetD32(to: u64, value: c_uint, count: usize) 3020: cuMemsetD32_v2 / cuMemsetD32_v2_ptds;
    cuMemsetD2D8(to: u64, pitch: usize, value: u8, width: usize, height: usize) 3020:
        cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds;
    cuMemsetD2D16(to: u64, pitch: usize, value: u16, width: usize, height: usize) 3020:
        cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds;
    cuMemsetD2D32(to: u64, pitch: usize, value: c_uint, width: usize, height: usize) 3020:
        cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds;
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) 3020: cuMemsetD8Async / cuMemsetD8Async_ptsz;
    cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) 3020: cuMemsetD16Async / cuMemsetD16Async_ptsz;
    cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) 3020:
        cuMemsetD32Async / cuMemsetD32Async_ptsz;
    cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) 3020:
        cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz;
    cuMemsetD2D16Async(to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) 3020:
        cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz;
    cuMemsetD2D32Async(to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: Handle) 3020:
        cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz;
    cuMemBatchDecompressAsync(parameters: Handle, count: usize, flags: c_uint, failed: Handle, stream: Handle) 12060:
        cuMemBatchDecompressAsync / cuMemBatchDecompressAsync_ptsz;
    cuMemcpy3DWithAttributesAsync(copy: Handle, flags: u64, stream: Handle) 13020:
        cuMemcpy3DWithAttributesAsync / cuMemcpy3DWithAttributesAsync_ptsz;
    cuStreamBatchMemOp(stream: Handle, count: c_uint, operations: Handle, flags: c_uint) 11070:
        cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz;
    cuStreamBatchMemOp(stream: Handle, count: c_uint, operations: Handle, flags: c_uint) 8000:
        cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz;
    cuStreamWriteValue32(stream: Handle, to: u64, value: c_uint, flags: c_uint) 11070:
        cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz;
    cuStreamWriteValue32(stream: Handle, to: u64, value: c_uint, flags: c_uint) 8000:
        cuStreamWriteValue32 / cuStreamWriteValue32_ptsz;
    cuStreamWriteValue64(stream: Handle, to: u64, value: u64, flags: c_uint) 11070:
        cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz;
    cuStreamWriteValue64(stream: Handle, to: u64, value: u64, flags: c_uint) 9000:
        cuStreamWriteValue64 / cuStreamWriteValue64_ptsz;
    cuStreamWaitValue32(stream: Handle, at: u64, value: c_uint, flags: c_uint) 11070:
        cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz;
    cuStreamWaitValue32(stream: Handle, at: u64, value: c_uint, flags: c_uint) 8000:
        cuStreamWaitValue32 / cuStreamWaitValue32_ptsz;
    cuStreamWaitValue64(stream: Handle, at: u64, value: u64, flags: c_uint) 11070:
        cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz;
    cuStreamWaitValue64(stream: Handle, at: u64, value: u64, flags: c_uint) 9000:
        cuStreamWaitValue64 / cuStreamWaitValue64_ptsz;
    cuMemGetAccess(flags: Handle, location: Handle, pointer: u64) 10020: cuMemGetAccess;
}
