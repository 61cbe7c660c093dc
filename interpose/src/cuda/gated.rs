//! The driver's calls that touch device memory: in a program started for offloading, each passes the gate.
//!
//! In every other program `cuGetProcAddress` and `dlsym` answer with the driver's own functions, and who is linked
//! against libcuda itself passes through these at the price of a call.

use std::ffi::{c_int, c_uint, c_void};

use super::driver::{CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS};
use super::entry::c_name;
use super::hooks::{Entry, Hook, entry, stream_entry};
use crate::mover::backing::{self, Fact};
use crate::mover::driver::Code;
use crate::mover::{self, captures, gate};
use crate::symbols::Real;

/// Functions, kernels, streams, graphs, arrays, descriptors: opaque to memlab.
type Opaque = *mut c_void;

/// A function that passes the gate and calls the real one, with what is to be done before and after.
macro_rules! gated {
    ($name:ident ($($arg:ident: $type:ty),*)) => { gated!($name ($($arg: $type),*), {}, |result, _before| {}); };
    ($name:ident ($($arg:ident: $type:ty),*), $before:block, |$result:ident, $found:pat_param| $after:expr) => {
        #[allow(non_snake_case, clippy::let_unit_value)]
        mod $name {
            use super::*;
            static REAL: Real<unsafe extern "C" fn($($type),*) -> c_int> =
                Real::in_library(c"libcuda.so.1", c_name!($name));
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                let Some(real) = REAL.get() else { return CUDA_ERROR_NOT_INITIALIZED };
                let _pass = gate::enter();
                let $found = $before;
                // SAFETY: the driver's own function with its caller's arguments, which it checks.
                #[allow(unused_mut)]
                let mut $result = unsafe { real($($arg),*) };
                $after;
                $result
            }
            pub const HOOK: Hook = Hook {
                abi_name: stringify!($name),
                address: $name as *const c_void,
                learn: |real| REAL.learn(real),
            };
        }
    };
}

/// The start of a capture, which is noted for those who have to wait for its end.
macro_rules! begins_capture {
    ($name:ident ($stream:ident: $type:ty $(, $arg:ident: $more:ty)*)) => {
        gated!($name ($stream: $type $(, $arg: $more)*), { captures::begins($stream as u64) }, |result, is_new| {
            if result != CUDA_SUCCESS && is_new {
                captures::ended($stream as u64);
            }
        });
    };
}

gated!(cuLaunch(function: Opaque));
gated!(cuLaunchGrid(function: Opaque, width: c_int, height: c_int));
gated!(cuLaunchGridAsync(function: Opaque, width: c_int, height: c_int, stream: Opaque));
gated!(cuLaunchKernel(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Opaque, arguments: Opaque, extra: Opaque));
gated!(cuLaunchKernel_ptsz(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Opaque, arguments: Opaque, extra: Opaque));
gated!(cuLaunchKernelEx(config: Opaque, function: Opaque, arguments: Opaque, extra: Opaque));
gated!(cuLaunchKernelEx_ptsz(config: Opaque, function: Opaque, arguments: Opaque, extra: Opaque));
gated!(cuLaunchCooperativeKernel(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Opaque, arguments: Opaque));
gated!(cuLaunchCooperativeKernel_ptsz(function: Opaque, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Opaque, arguments: Opaque));
gated!(cuLaunchCooperativeKernelMultiDevice(launches: Opaque, count: c_uint, flags: c_uint));
gated!(cuGraphLaunch(graph: Opaque, stream: Opaque));
gated!(cuGraphLaunch_ptsz(graph: Opaque, stream: Opaque));
gated!(cuGraphUpload(graph: Opaque, stream: Opaque));
gated!(cuGraphUpload_ptsz(graph: Opaque, stream: Opaque));
gated!(cuMemcpy(to: u64, from: u64, bytes: usize));
gated!(cuMemcpy_ptds(to: u64, from: u64, bytes: usize));
gated!(cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Opaque));
gated!(cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize, stream: Opaque));
gated!(cuMemcpyPeer(to: u64, to_context: Opaque, from: u64, from_context: Opaque, bytes: usize));
gated!(cuMemcpyPeer_ptds(to: u64, to_context: Opaque, from: u64, from_context: Opaque, bytes: usize));
gated!(cuMemcpyPeerAsync(to: u64, to_context: Opaque, from: u64, from_context: Opaque, bytes: usize, stream: Opaque));
gated!(cuMemcpyPeerAsync_ptsz(to: u64, to_context: Opaque, from: u64, from_context: Opaque, bytes: usize, stream: Opaque));
gated!(cuMemcpyHtoD_v2(to: u64, from: Opaque, bytes: usize));
gated!(cuMemcpyHtoD_v2_ptds(to: u64, from: Opaque, bytes: usize));
gated!(cuMemcpyHtoDAsync_v2(to: u64, from: Opaque, bytes: usize, stream: Opaque));
gated!(cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: Opaque, bytes: usize, stream: Opaque));
gated!(cuMemcpyDtoH_v2(to: Opaque, from: u64, bytes: usize));
gated!(cuMemcpyDtoH_v2_ptds(to: Opaque, from: u64, bytes: usize));
gated!(cuMemcpyDtoHAsync_v2(to: Opaque, from: u64, bytes: usize, stream: Opaque));
gated!(cuMemcpyDtoHAsync_v2_ptsz(to: Opaque, from: u64, bytes: usize, stream: Opaque));
gated!(cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize));
gated!(cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize));
gated!(cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Opaque));
gated!(cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, bytes: usize, stream: Opaque));
gated!(cuMemcpyDtoA_v2(to: Opaque, offset: usize, from: u64, bytes: usize));
gated!(cuMemcpyDtoA_v2_ptds(to: Opaque, offset: usize, from: u64, bytes: usize));
gated!(cuMemcpyAtoD_v2(to: u64, from: Opaque, offset: usize, bytes: usize));
gated!(cuMemcpyAtoD_v2_ptds(to: u64, from: Opaque, offset: usize, bytes: usize));
gated!(cuMemcpyHtoA_v2(to: Opaque, offset: usize, from: Opaque, bytes: usize));
gated!(cuMemcpyHtoA_v2_ptds(to: Opaque, offset: usize, from: Opaque, bytes: usize));
gated!(cuMemcpyAtoH_v2(to: Opaque, from: Opaque, offset: usize, bytes: usize));
gated!(cuMemcpyAtoH_v2_ptds(to: Opaque, from: Opaque, offset: usize, bytes: usize));
gated!(cuMemcpyAtoA_v2(to: Opaque, to_offset: usize, from: Opaque, from_offset: usize, bytes: usize));
gated!(cuMemcpyAtoA_v2_ptds(to: Opaque, to_offset: usize, from: Opaque, from_offset: usize, bytes: usize));
gated!(cuMemcpyHtoAAsync_v2(to: Opaque, offset: usize, from: Opaque, bytes: usize, stream: Opaque));
gated!(cuMemcpyHtoAAsync_v2_ptsz(to: Opaque, offset: usize, from: Opaque, bytes: usize, stream: Opaque));
gated!(cuMemcpyAtoHAsync_v2(to: Opaque, from: Opaque, offset: usize, bytes: usize, stream: Opaque));
gated!(cuMemcpyAtoHAsync_v2_ptsz(to: Opaque, from: Opaque, offset: usize, bytes: usize, stream: Opaque));
gated!(cuMemcpy2D_v2(copy: Opaque));
gated!(cuMemcpy2D_v2_ptds(copy: Opaque));
gated!(cuMemcpy2DUnaligned_v2(copy: Opaque));
gated!(cuMemcpy2DUnaligned_v2_ptds(copy: Opaque));
gated!(cuMemcpy2DAsync_v2(copy: Opaque, stream: Opaque));
gated!(cuMemcpy2DAsync_v2_ptsz(copy: Opaque, stream: Opaque));
gated!(cuMemcpy3D_v2(copy: Opaque));
gated!(cuMemcpy3D_v2_ptds(copy: Opaque));
gated!(cuMemcpy3DAsync_v2(copy: Opaque, stream: Opaque));
gated!(cuMemcpy3DAsync_v2_ptsz(copy: Opaque, stream: Opaque));
gated!(cuMemcpy3DPeer(copy: Opaque));
gated!(cuMemcpy3DPeer_ptds(copy: Opaque));
gated!(cuMemcpy3DPeerAsync(copy: Opaque, stream: Opaque));
gated!(cuMemcpy3DPeerAsync_ptsz(copy: Opaque, stream: Opaque));
gated!(cuMemcpyBatchAsync_v2(to: Opaque, from: Opaque, sizes: Opaque, count: usize, attributes: Opaque, indices: Opaque, attribute_count: usize, stream: Opaque));
gated!(cuMemcpyBatchAsync_v2_ptsz(to: Opaque, from: Opaque, sizes: Opaque, count: usize, attributes: Opaque, indices: Opaque, attribute_count: usize, stream: Opaque));
gated!(cuMemcpyBatchAsync(to: Opaque, from: Opaque, sizes: Opaque, count: usize, attributes: Opaque, indices: Opaque, attribute_count: usize, failed: Opaque, stream: Opaque));
gated!(cuMemcpyBatchAsync_ptsz(to: Opaque, from: Opaque, sizes: Opaque, count: usize, attributes: Opaque, indices: Opaque, attribute_count: usize, failed: Opaque, stream: Opaque));
gated!(cuMemcpy3DBatchAsync_v2(count: usize, operations: Opaque, flags: u64, stream: Opaque));
gated!(cuMemcpy3DBatchAsync_v2_ptsz(count: usize, operations: Opaque, flags: u64, stream: Opaque));
gated!(cuMemcpy3DBatchAsync(count: usize, operations: Opaque, failed: Opaque, flags: u64, stream: Opaque));
gated!(cuMemcpy3DBatchAsync_ptsz(count: usize, operations: Opaque, failed: Opaque, flags: u64, stream: Opaque));
gated!(cuMemcpyWithAttributesAsync(to: u64, from: u64, bytes: usize, attributes: Opaque, stream: Opaque));
gated!(cuMemcpyWithAttributesAsync_ptsz(to: u64, from: u64, bytes: usize, attributes: Opaque, stream: Opaque));
gated!(cuMemsetD8_v2(to: u64, value: u8, count: usize));
gated!(cuMemsetD8_v2_ptds(to: u64, value: u8, count: usize));
gated!(cuMemsetD16_v2(to: u64, value: u16, count: usize));
gated!(cuMemsetD16_v2_ptds(to: u64, value: u16, count: usize));
gated!(cuMemsetD32_v2(to: u64, value: c_uint, count: usize));
gated!(cuMemsetD32_v2_ptds(to: u64, value: c_uint, count: usize));
gated!(cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize));
gated!(cuMemsetD2D8_v2_ptds(to: u64, pitch: usize, value: u8, width: usize, height: usize));
gated!(cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, height: usize));
gated!(cuMemsetD2D16_v2_ptds(to: u64, pitch: usize, value: u16, width: usize, height: usize));
gated!(cuMemsetD2D32_v2(to: u64, pitch: usize, value: c_uint, width: usize, height: usize));
gated!(cuMemsetD2D32_v2_ptds(to: u64, pitch: usize, value: c_uint, width: usize, height: usize));
gated!(cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Opaque));
gated!(cuMemsetD8Async_ptsz(to: u64, value: u8, count: usize, stream: Opaque));
gated!(cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Opaque));
gated!(cuMemsetD16Async_ptsz(to: u64, value: u16, count: usize, stream: Opaque));
gated!(cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Opaque));
gated!(cuMemsetD32Async_ptsz(to: u64, value: c_uint, count: usize, stream: Opaque));
gated!(cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Opaque));
gated!(cuMemsetD2D8Async_ptsz(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Opaque));
gated!(cuMemsetD2D16Async(to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Opaque));
gated!(cuMemsetD2D16Async_ptsz(to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Opaque));
gated!(cuMemsetD2D32Async(to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: Opaque));
gated!(cuMemsetD2D32Async_ptsz(to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: Opaque));
gated!(cuMemBatchDecompressAsync(parameters: Opaque, count: usize, flags: c_uint, failed: Opaque, stream: Opaque));
gated!(cuMemBatchDecompressAsync_ptsz(parameters: Opaque, count: usize, flags: c_uint, failed: Opaque, stream: Opaque));
gated!(cuMemcpy3DWithAttributesAsync(copy: Opaque, flags: u64, stream: Opaque));
gated!(cuMemcpy3DWithAttributesAsync_ptsz(copy: Opaque, flags: u64, stream: Opaque));
gated!(cuStreamBatchMemOp(stream: Opaque, count: c_uint, operations: Opaque, flags: c_uint));
gated!(cuStreamBatchMemOp_ptsz(stream: Opaque, count: c_uint, operations: Opaque, flags: c_uint));
gated!(cuStreamWriteValue32(stream: Opaque, to: u64, value: c_uint, flags: c_uint));
gated!(cuStreamWriteValue32_ptsz(stream: Opaque, to: u64, value: c_uint, flags: c_uint));
gated!(cuStreamWriteValue64(stream: Opaque, to: u64, value: u64, flags: c_uint));
gated!(cuStreamWriteValue64_ptsz(stream: Opaque, to: u64, value: u64, flags: c_uint));
gated!(cuStreamWaitValue32(stream: Opaque, at: u64, value: c_uint, flags: c_uint));
gated!(cuStreamWaitValue32_ptsz(stream: Opaque, at: u64, value: c_uint, flags: c_uint));
gated!(cuStreamWaitValue64(stream: Opaque, at: u64, value: u64, flags: c_uint));
gated!(cuStreamWaitValue64_ptsz(stream: Opaque, at: u64, value: u64, flags: c_uint));
gated!(cuStreamBatchMemOp_v2(stream: Opaque, count: c_uint, operations: Opaque, flags: c_uint));
gated!(cuStreamBatchMemOp_v2_ptsz(stream: Opaque, count: c_uint, operations: Opaque, flags: c_uint));
gated!(cuStreamWriteValue32_v2(stream: Opaque, to: u64, value: c_uint, flags: c_uint));
gated!(cuStreamWriteValue32_v2_ptsz(stream: Opaque, to: u64, value: c_uint, flags: c_uint));
gated!(cuStreamWriteValue64_v2(stream: Opaque, to: u64, value: u64, flags: c_uint));
gated!(cuStreamWriteValue64_v2_ptsz(stream: Opaque, to: u64, value: u64, flags: c_uint));
gated!(cuStreamWaitValue32_v2(stream: Opaque, at: u64, value: c_uint, flags: c_uint));
gated!(cuStreamWaitValue32_v2_ptsz(stream: Opaque, at: u64, value: c_uint, flags: c_uint));
gated!(cuStreamWaitValue64_v2(stream: Opaque, at: u64, value: u64, flags: c_uint));
gated!(cuStreamWaitValue64_v2_ptsz(stream: Opaque, at: u64, value: u64, flags: c_uint));
gated!(cuPointerGetAttribute(data: Opaque, attribute: c_int, pointer: u64), {}, |result, _before| {
    // SAFETY: the caller's own arguments.
    if unsafe { tell(data, attribute, pointer) } {
        result = CUDA_SUCCESS;
    }
});
gated!(cuPointerGetAttributes(count: c_uint, attributes: *const c_int, data: *const Opaque, pointer: u64), {},
|result, _before| {
    if result == CUDA_SUCCESS {
        for index in 0..count as usize {
            // SAFETY: the driver has just read and written so many.
            unsafe { tell(*data.add(index), *attributes.add(index), pointer) };
        }
    }
});
gated!(cuPointerSetAttribute(value: Opaque, attribute: c_int, pointer: u64), {}, |result, _before| {
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, which is asked for before a network card registers memory.
    const SYNC_MEMOPS: c_int = 6;
    if attribute == SYNC_MEMOPS {
        stays(result, pointer, "registered with another device");
    }
});
gated!(cuMemGetAccess(flags: Opaque, location: Opaque, pointer: u64));

/// Memory that multicast objects reach (NCCL's NVLS) stays where it is, and the driver has to be told its own handle.
macro_rules! binds_memory {
    ($name:ident [$($device:ident: $type:ty)?]) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;
            type Function = unsafe extern "C" fn(u64, $($type,)? usize, u64, usize, usize, u64) -> c_int;
            static REAL: Real<Function> = Real::in_library(c"libcuda.so.1", c_name!($name));
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                object: u64,
                $($device: $type,)?
                offset: usize,
                handle: u64,
                from: usize,
                bytes: usize,
                flags: u64,
            ) -> c_int {
                let Some(real) = REAL.get() else { return CUDA_ERROR_NOT_INITIALIZED };
                let _pass = gate::enter();
                // SAFETY: the driver's own function with its caller's arguments, which it checks.
                let bind = |handle| unsafe { real(object, $($device,)? offset, handle, from, bytes, flags) };
                let share = |own| match bind(own) {
                    CUDA_SUCCESS => Ok(()),
                    code => Err(Code(code)),
                };
                let fixed = || backing::fix(handle, MULTICAST, share);
                let answer = if mover::is_enabled() { crate::quietly(fixed).flatten() } else { None };
                answer.map_or_else(|| bind(handle), Code::of)
            }
            pub const HOOK: Hook = Hook {
                abi_name: stringify!($name),
                address: $name as *const c_void,
                learn: |real| REAL.learn(real),
            };
        }
    };
}

const MULTICAST: &str = "bound to a multicast object";

fn stays(result: c_int, address: u64, why: &'static str) {
    if result == CUDA_SUCCESS && mover::is_enabled() {
        crate::quietly(|| backing::fix_at(address, why));
    }
}

binds_memory!(cuMulticastBindMem []);
binds_memory!(cuMulticastBindMem_v2 [device: c_int]);
gated!(cuMulticastBindAddr(object: u64, offset: usize, address: u64, bytes: usize, flags: u64), {}, |result, _before| {
    stays(result, address, MULTICAST);
});
gated!(cuMulticastBindAddr_v2(object: u64, device: c_int, offset: usize, address: u64, bytes: usize, flags: u64), {},
|result, _before| {
    stays(result, address, MULTICAST);
});

gated!(cuCtxCreate_v2(context: *mut u64, flags: c_uint, device: c_int), {}, |result, _before| {
    // SAFETY: the driver has written it.
    created(result, || unsafe { *context }, device);
});
gated!(cuCtxCreate_v3(context: *mut u64, affinity: Opaque, count: c_int, flags: c_uint, device: c_int), {},
|result, _before| {
    // SAFETY: as above.
    created(result, || unsafe { *context }, device);
});
gated!(cuCtxCreate_v4(context: *mut u64, parameters: Opaque, flags: c_uint, device: c_int), {}, |result, _before| {
    // SAFETY: as above.
    created(result, || unsafe { *context }, device);
});

fn created(result: c_int, context: impl FnOnce() -> u64, device: c_int) {
    if result == CUDA_SUCCESS && mover::is_enabled() {
        mover::context_created(context(), device);
    }
}

/// Writes what an attribute of memory that memlab backs is for the program; says whether it did.
///
/// SAFETY: `to` must have room for that attribute.
unsafe fn tell(to: Opaque, attribute: c_int, pointer: u64) -> bool {
    if to.is_null() || !mover::is_enabled() {
        return false;
    }
    match crate::quietly(|| backing::attribute(pointer, attribute)).flatten() {
        // SAFETY: the caller's word; C does not promise alignment.
        Some(Fact::Number(number)) => unsafe { to.cast::<c_int>().write_unaligned(number) },
        // SAFETY: as above.
        Some(Fact::Word(word)) => unsafe { to.cast::<u64>().write_unaligned(word) },
        None => return false,
    }
    true
}

begins_capture!(cuStreamBeginCapture_v2(stream: Opaque, mode: c_int));
begins_capture!(cuStreamBeginCapture_v2_ptsz(stream: Opaque, mode: c_int));
begins_capture!(cuStreamBeginCaptureToGraph(stream: Opaque, graph: Opaque, dependencies: Opaque, edges: Opaque, count: usize, mode: c_int));
begins_capture!(cuStreamBeginCaptureToGraph_ptsz(stream: Opaque, graph: Opaque, dependencies: Opaque, edges: Opaque, count: usize, mode: c_int));

/// The end of a capture must always get through.
macro_rules! ends_capture {
    ($name:ident ($stream:ident: $type:ty $(, $arg:ident: $more:ty)*)) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;
            static REAL: Real<unsafe extern "C" fn($type $(, $more)*) -> c_int> =
                Real::in_library(c"libcuda.so.1", c_name!($name));
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($stream: $type $(, $arg: $more)*) -> c_int {
                let Some(real) = REAL.get() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: as above.
                let result = unsafe { real($stream $(, $arg)*) };
                match result {
                    CUDA_SUCCESS => captures::ended($stream as u64),
                    _ => captures::ended_perhaps($stream as u64),
                }
                if mover::holds_memory() {
                    crate::quietly(backing::free_what_was_put_off);
                }
                result
            }
            pub const HOOK: Hook = Hook {
                abi_name: stringify!($name),
                address: $name as *const c_void,
                learn: |real| REAL.learn(real),
            };
        }
    };
}

ends_capture!(cuStreamEndCapture(stream: Opaque, graph: Opaque));
ends_capture!(cuStreamEndCapture_ptsz(stream: Opaque, graph: Opaque));
ends_capture!(cuStreamDestroy_v2(stream: Opaque));

/// What `cuGetProcAddress` is asked for.
pub const ENTRIES: &[Entry] = &[
    entry("cuLaunch", 2000, "cuLaunch"),
    entry("cuLaunchGrid", 2000, "cuLaunchGrid"),
    entry("cuLaunchGridAsync", 2000, "cuLaunchGridAsync"),
    stream_entry("cuLaunchKernel", 4000, "cuLaunchKernel", "cuLaunchKernel_ptsz"),
    stream_entry("cuLaunchKernelEx", 11060, "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"),
    stream_entry("cuLaunchCooperativeKernel", 9000, "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"),
    entry("cuLaunchCooperativeKernelMultiDevice", 9000, "cuLaunchCooperativeKernelMultiDevice"),
    stream_entry("cuGraphLaunch", 10000, "cuGraphLaunch", "cuGraphLaunch_ptsz"),
    stream_entry("cuGraphUpload", 11010, "cuGraphUpload", "cuGraphUpload_ptsz"),
    stream_entry("cuMemcpy", 4000, "cuMemcpy", "cuMemcpy_ptds"),
    stream_entry("cuMemcpyAsync", 4000, "cuMemcpyAsync", "cuMemcpyAsync_ptsz"),
    stream_entry("cuMemcpyPeer", 4000, "cuMemcpyPeer", "cuMemcpyPeer_ptds"),
    stream_entry("cuMemcpyPeerAsync", 4000, "cuMemcpyPeerAsync", "cuMemcpyPeerAsync_ptsz"),
    stream_entry("cuMemcpyHtoD", 3020, "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"),
    stream_entry("cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz"),
    stream_entry("cuMemcpyDtoH", 3020, "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"),
    stream_entry("cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz"),
    stream_entry("cuMemcpyDtoD", 3020, "cuMemcpyDtoD_v2", "cuMemcpyDtoD_v2_ptds"),
    stream_entry("cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_v2_ptsz"),
    stream_entry("cuMemcpyDtoA", 3020, "cuMemcpyDtoA_v2", "cuMemcpyDtoA_v2_ptds"),
    stream_entry("cuMemcpyAtoD", 3020, "cuMemcpyAtoD_v2", "cuMemcpyAtoD_v2_ptds"),
    stream_entry("cuMemcpyHtoA", 3020, "cuMemcpyHtoA_v2", "cuMemcpyHtoA_v2_ptds"),
    stream_entry("cuMemcpyAtoH", 3020, "cuMemcpyAtoH_v2", "cuMemcpyAtoH_v2_ptds"),
    stream_entry("cuMemcpyAtoA", 3020, "cuMemcpyAtoA_v2", "cuMemcpyAtoA_v2_ptds"),
    stream_entry("cuMemcpyHtoAAsync", 3020, "cuMemcpyHtoAAsync_v2", "cuMemcpyHtoAAsync_v2_ptsz"),
    stream_entry("cuMemcpyAtoHAsync", 3020, "cuMemcpyAtoHAsync_v2", "cuMemcpyAtoHAsync_v2_ptsz"),
    stream_entry("cuMemcpy2D", 3020, "cuMemcpy2D_v2", "cuMemcpy2D_v2_ptds"),
    stream_entry("cuMemcpy2DUnaligned", 3020, "cuMemcpy2DUnaligned_v2", "cuMemcpy2DUnaligned_v2_ptds"),
    stream_entry("cuMemcpy2DAsync", 3020, "cuMemcpy2DAsync_v2", "cuMemcpy2DAsync_v2_ptsz"),
    stream_entry("cuMemcpy3D", 3020, "cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds"),
    stream_entry("cuMemcpy3DAsync", 3020, "cuMemcpy3DAsync_v2", "cuMemcpy3DAsync_v2_ptsz"),
    stream_entry("cuMemcpy3DPeer", 4000, "cuMemcpy3DPeer", "cuMemcpy3DPeer_ptds"),
    stream_entry("cuMemcpy3DPeerAsync", 4000, "cuMemcpy3DPeerAsync", "cuMemcpy3DPeerAsync_ptsz"),
    stream_entry("cuMemcpyBatchAsync", 13000, "cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync_v2_ptsz"),
    stream_entry("cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_ptsz"),
    stream_entry("cuMemcpy3DBatchAsync", 13000, "cuMemcpy3DBatchAsync_v2", "cuMemcpy3DBatchAsync_v2_ptsz"),
    stream_entry("cuMemcpy3DBatchAsync", 12080, "cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_ptsz"),
    stream_entry(
        "cuMemcpyWithAttributesAsync",
        13020,
        "cuMemcpyWithAttributesAsync",
        "cuMemcpyWithAttributesAsync_ptsz",
    ),
    stream_entry("cuMemsetD8", 3020, "cuMemsetD8_v2", "cuMemsetD8_v2_ptds"),
    stream_entry("cuMemsetD16", 3020, "cuMemsetD16_v2", "cuMemsetD16_v2_ptds"),
    stream_entry("cuMemsetD32", 3020, "cuMemsetD32_v2", "cuMemsetD32_v2_ptds"),
    stream_entry("cuMemsetD2D8", 3020, "cuMemsetD2D8_v2", "cuMemsetD2D8_v2_ptds"),
    stream_entry("cuMemsetD2D16", 3020, "cuMemsetD2D16_v2", "cuMemsetD2D16_v2_ptds"),
    stream_entry("cuMemsetD2D32", 3020, "cuMemsetD2D32_v2", "cuMemsetD2D32_v2_ptds"),
    stream_entry("cuMemsetD8Async", 3020, "cuMemsetD8Async", "cuMemsetD8Async_ptsz"),
    stream_entry("cuMemsetD16Async", 3020, "cuMemsetD16Async", "cuMemsetD16Async_ptsz"),
    stream_entry("cuMemsetD32Async", 3020, "cuMemsetD32Async", "cuMemsetD32Async_ptsz"),
    stream_entry("cuMemsetD2D8Async", 3020, "cuMemsetD2D8Async", "cuMemsetD2D8Async_ptsz"),
    stream_entry("cuMemsetD2D16Async", 3020, "cuMemsetD2D16Async", "cuMemsetD2D16Async_ptsz"),
    stream_entry("cuMemsetD2D32Async", 3020, "cuMemsetD2D32Async", "cuMemsetD2D32Async_ptsz"),
    stream_entry("cuMemBatchDecompressAsync", 12060, "cuMemBatchDecompressAsync", "cuMemBatchDecompressAsync_ptsz"),
    stream_entry(
        "cuMemcpy3DWithAttributesAsync",
        13020,
        "cuMemcpy3DWithAttributesAsync",
        "cuMemcpy3DWithAttributesAsync_ptsz",
    ),
    stream_entry("cuStreamBatchMemOp", 11070, "cuStreamBatchMemOp_v2", "cuStreamBatchMemOp_v2_ptsz"),
    stream_entry("cuStreamBatchMemOp", 8000, "cuStreamBatchMemOp", "cuStreamBatchMemOp_ptsz"),
    stream_entry("cuStreamWriteValue32", 11070, "cuStreamWriteValue32_v2", "cuStreamWriteValue32_v2_ptsz"),
    stream_entry("cuStreamWriteValue32", 8000, "cuStreamWriteValue32", "cuStreamWriteValue32_ptsz"),
    stream_entry("cuStreamWriteValue64", 11070, "cuStreamWriteValue64_v2", "cuStreamWriteValue64_v2_ptsz"),
    stream_entry("cuStreamWriteValue64", 9000, "cuStreamWriteValue64", "cuStreamWriteValue64_ptsz"),
    stream_entry("cuStreamWaitValue32", 11070, "cuStreamWaitValue32_v2", "cuStreamWaitValue32_v2_ptsz"),
    stream_entry("cuStreamWaitValue32", 8000, "cuStreamWaitValue32", "cuStreamWaitValue32_ptsz"),
    stream_entry("cuStreamWaitValue64", 11070, "cuStreamWaitValue64_v2", "cuStreamWaitValue64_v2_ptsz"),
    stream_entry("cuStreamWaitValue64", 9000, "cuStreamWaitValue64", "cuStreamWaitValue64_ptsz"),
    entry("cuPointerGetAttribute", 4000, "cuPointerGetAttribute"),
    entry("cuPointerGetAttributes", 7000, "cuPointerGetAttributes"),
    entry("cuPointerSetAttribute", 6000, "cuPointerSetAttribute"),
    entry("cuMemGetAccess", 10020, "cuMemGetAccess"),
    entry("cuMulticastBindMem", 13010, "cuMulticastBindMem_v2"),
    entry("cuMulticastBindMem", 12010, "cuMulticastBindMem"),
    entry("cuMulticastBindAddr", 13010, "cuMulticastBindAddr_v2"),
    entry("cuMulticastBindAddr", 12010, "cuMulticastBindAddr"),
    entry("cuCtxCreate", 12050, "cuCtxCreate_v4"),
    entry("cuCtxCreate", 11040, "cuCtxCreate_v3"),
    entry("cuCtxCreate", 3020, "cuCtxCreate_v2"),
    stream_entry("cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"),
    stream_entry(
        "cuStreamBeginCaptureToGraph",
        12030,
        "cuStreamBeginCaptureToGraph",
        "cuStreamBeginCaptureToGraph_ptsz",
    ),
    stream_entry("cuStreamEndCapture", 10000, "cuStreamEndCapture", "cuStreamEndCapture_ptsz"),
    entry("cuStreamDestroy", 4000, "cuStreamDestroy_v2"),
];

pub static HOOKS: &[Hook] = &[
    cuLaunch::HOOK,
    cuLaunchGrid::HOOK,
    cuLaunchGridAsync::HOOK,
    cuLaunchKernel::HOOK,
    cuLaunchKernel_ptsz::HOOK,
    cuLaunchKernelEx::HOOK,
    cuLaunchKernelEx_ptsz::HOOK,
    cuLaunchCooperativeKernel::HOOK,
    cuLaunchCooperativeKernel_ptsz::HOOK,
    cuLaunchCooperativeKernelMultiDevice::HOOK,
    cuGraphLaunch::HOOK,
    cuGraphLaunch_ptsz::HOOK,
    cuGraphUpload::HOOK,
    cuGraphUpload_ptsz::HOOK,
    cuMemcpy::HOOK,
    cuMemcpy_ptds::HOOK,
    cuMemcpyAsync::HOOK,
    cuMemcpyAsync_ptsz::HOOK,
    cuMemcpyPeer::HOOK,
    cuMemcpyPeer_ptds::HOOK,
    cuMemcpyPeerAsync::HOOK,
    cuMemcpyPeerAsync_ptsz::HOOK,
    cuMemcpyHtoD_v2::HOOK,
    cuMemcpyHtoD_v2_ptds::HOOK,
    cuMemcpyHtoDAsync_v2::HOOK,
    cuMemcpyHtoDAsync_v2_ptsz::HOOK,
    cuMemcpyDtoH_v2::HOOK,
    cuMemcpyDtoH_v2_ptds::HOOK,
    cuMemcpyDtoHAsync_v2::HOOK,
    cuMemcpyDtoHAsync_v2_ptsz::HOOK,
    cuMemcpyDtoD_v2::HOOK,
    cuMemcpyDtoD_v2_ptds::HOOK,
    cuMemcpyDtoDAsync_v2::HOOK,
    cuMemcpyDtoDAsync_v2_ptsz::HOOK,
    cuMemcpyDtoA_v2::HOOK,
    cuMemcpyDtoA_v2_ptds::HOOK,
    cuMemcpyAtoD_v2::HOOK,
    cuMemcpyAtoD_v2_ptds::HOOK,
    cuMemcpyHtoA_v2::HOOK,
    cuMemcpyHtoA_v2_ptds::HOOK,
    cuMemcpyAtoH_v2::HOOK,
    cuMemcpyAtoH_v2_ptds::HOOK,
    cuMemcpyAtoA_v2::HOOK,
    cuMemcpyAtoA_v2_ptds::HOOK,
    cuMemcpyHtoAAsync_v2::HOOK,
    cuMemcpyHtoAAsync_v2_ptsz::HOOK,
    cuMemcpyAtoHAsync_v2::HOOK,
    cuMemcpyAtoHAsync_v2_ptsz::HOOK,
    cuMemcpy2D_v2::HOOK,
    cuMemcpy2D_v2_ptds::HOOK,
    cuMemcpy2DUnaligned_v2::HOOK,
    cuMemcpy2DUnaligned_v2_ptds::HOOK,
    cuMemcpy2DAsync_v2::HOOK,
    cuMemcpy2DAsync_v2_ptsz::HOOK,
    cuMemcpy3D_v2::HOOK,
    cuMemcpy3D_v2_ptds::HOOK,
    cuMemcpy3DAsync_v2::HOOK,
    cuMemcpy3DAsync_v2_ptsz::HOOK,
    cuMemcpy3DPeer::HOOK,
    cuMemcpy3DPeer_ptds::HOOK,
    cuMemcpy3DPeerAsync::HOOK,
    cuMemcpy3DPeerAsync_ptsz::HOOK,
    cuMemcpyBatchAsync_v2::HOOK,
    cuMemcpyBatchAsync_v2_ptsz::HOOK,
    cuMemcpyBatchAsync::HOOK,
    cuMemcpyBatchAsync_ptsz::HOOK,
    cuMemcpy3DBatchAsync_v2::HOOK,
    cuMemcpy3DBatchAsync_v2_ptsz::HOOK,
    cuMemcpy3DBatchAsync::HOOK,
    cuMemcpy3DBatchAsync_ptsz::HOOK,
    cuMemcpyWithAttributesAsync::HOOK,
    cuMemcpyWithAttributesAsync_ptsz::HOOK,
    cuMemsetD8_v2::HOOK,
    cuMemsetD8_v2_ptds::HOOK,
    cuMemsetD16_v2::HOOK,
    cuMemsetD16_v2_ptds::HOOK,
    cuMemsetD32_v2::HOOK,
    cuMemsetD32_v2_ptds::HOOK,
    cuMemsetD2D8_v2::HOOK,
    cuMemsetD2D8_v2_ptds::HOOK,
    cuMemsetD2D16_v2::HOOK,
    cuMemsetD2D16_v2_ptds::HOOK,
    cuMemsetD2D32_v2::HOOK,
    cuMemsetD2D32_v2_ptds::HOOK,
    cuMemsetD8Async::HOOK,
    cuMemsetD8Async_ptsz::HOOK,
    cuMemsetD16Async::HOOK,
    cuMemsetD16Async_ptsz::HOOK,
    cuMemsetD32Async::HOOK,
    cuMemsetD32Async_ptsz::HOOK,
    cuMemsetD2D8Async::HOOK,
    cuMemsetD2D8Async_ptsz::HOOK,
    cuMemsetD2D16Async::HOOK,
    cuMemsetD2D16Async_ptsz::HOOK,
    cuMemsetD2D32Async::HOOK,
    cuMemsetD2D32Async_ptsz::HOOK,
    cuMulticastBindMem_v2::HOOK,
    cuMulticastBindAddr_v2::HOOK,
    cuMemBatchDecompressAsync::HOOK,
    cuMemBatchDecompressAsync_ptsz::HOOK,
    cuMemcpy3DWithAttributesAsync::HOOK,
    cuMemcpy3DWithAttributesAsync_ptsz::HOOK,
    cuStreamBatchMemOp::HOOK,
    cuStreamBatchMemOp_ptsz::HOOK,
    cuStreamWriteValue32::HOOK,
    cuStreamWriteValue32_ptsz::HOOK,
    cuStreamWriteValue64::HOOK,
    cuStreamWriteValue64_ptsz::HOOK,
    cuStreamWaitValue32::HOOK,
    cuStreamWaitValue32_ptsz::HOOK,
    cuStreamWaitValue64::HOOK,
    cuStreamWaitValue64_ptsz::HOOK,
    cuStreamBatchMemOp_v2::HOOK,
    cuStreamBatchMemOp_v2_ptsz::HOOK,
    cuStreamWriteValue32_v2::HOOK,
    cuStreamWriteValue32_v2_ptsz::HOOK,
    cuStreamWriteValue64_v2::HOOK,
    cuStreamWriteValue64_v2_ptsz::HOOK,
    cuStreamWaitValue32_v2::HOOK,
    cuStreamWaitValue32_v2_ptsz::HOOK,
    cuStreamWaitValue64_v2::HOOK,
    cuStreamWaitValue64_v2_ptsz::HOOK,
    cuPointerGetAttribute::HOOK,
    cuPointerGetAttributes::HOOK,
    cuPointerSetAttribute::HOOK,
    cuMemGetAccess::HOOK,
    cuMulticastBindMem::HOOK,
    cuMulticastBindAddr::HOOK,
    cuCtxCreate_v2::HOOK,
    cuCtxCreate_v3::HOOK,
    cuCtxCreate_v4::HOOK,
];

/// Captures are known in every program: memory may have spilled, and what is freed beside a capture has to wait.
pub static CAPTURE_HOOKS: &[Hook] = &[
    cuStreamBeginCapture_v2::HOOK,
    cuStreamBeginCapture_v2_ptsz::HOOK,
    cuStreamBeginCaptureToGraph::HOOK,
    cuStreamBeginCaptureToGraph_ptsz::HOOK,
    cuStreamEndCapture::HOOK,
    cuStreamEndCapture_ptsz::HOOK,
    cuStreamDestroy_v2::HOOK,
];
