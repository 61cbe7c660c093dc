//! Driver calls that allocate and free memory.
//!
//! Each hook calls the real function and reports the result to [`driver_memory`](super::driver_memory).
//!
//! Callers may hold any lock (the runtime's, PyTorch's allocator mutex), so the hooks take no lock that code outside memlab
//! can hold.

use std::ffi::c_uint;
use std::ptr;

use cudarc::driver::sys;
use memlab_trace::record::DriverKind::{Array, Async, Device, Imported, Managed, Pinned, Registered};

use super::answers::{answer_ourselves_or, answer_with_movable};
use super::driver_memory::{self, Space};
use super::hook::{driver_hook, driver_hook_table};
use crate::limit;
use crate::limit::calls::{Call, PoolCall};
use crate::memory_calls::MemoryCall;
use interpose_base::panics;
use interpose_driver::arrays::{array_bytes, array3d_bytes, mipmapped_bytes, pitch as pitch_of};
use interpose_driver::calls::CUDA_SUCCESS;
use interpose_driver::device::range_bytes;
use interpose_driver::types::{AllocationNode, Array3dShape, ArrayShape, ExternalMemory, Handle, In, Out};
use interpose_driver::vmm::{allocations, gate};

/// A call that allocates memory.
///
/// The details give the kind, the address, and the bytes once it has succeeded.
macro_rules! takes {
    ($name:ident $count:tt ($($arg:ident: $type:ty),*) { $kind:expr, $address:expr, $bytes:expr }) => {
        driver_hook! { $name $count ($($arg: $type),*) { |real, caller| {
            let _pass = gate::enter();
            let _memory_call = MemoryCall::begin();
            let result = real($($arg),*);
            if result == CUDA_SUCCESS {
                panics::catch(|| driver_memory::allocated($kind, $address, $bytes as u64, stringify!($name), caller));
            }
            result
        } } }
    };
}

/// A call that allocates device memory, if its limit allows.
///
/// Takes two more details: the requested size and, for memory that may spill, how to return the host address.
macro_rules! takes_limited {
    ($name:ident $count:tt ($($arg:ident: $type:ty),*)
     { $kind:expr, $address:expr, $bytes:expr; wants $wanted:expr $(; spilled |$spilled:ident| $deliver:expr)? }) => {
        driver_hook! { $name $count ($($arg: $type),*) { |real, caller| {
            let _pass = gate::enter();
            let call = Call { kind: $kind, name: stringify!($name), caller, bytes: $wanted as u64 };
            let deliver_spilled = takes_limited!(@deliver $($spilled $deliver)?);
            limit::calls::take(&call, || real($($arg),*), || ($address, $bytes as u64), deliver_spilled)
        } } }
    };
    (@deliver) => { None::<fn(u64)> };
    (@deliver $spilled:ident $deliver:expr) => { Some(|$spilled: u64| $deliver) };
}

/// A call that allocates stream-ordered memory, if the limit allows.
macro_rules! takes_from_pool {
    ($name:ident $count:tt ($($arg:ident: $type:ty),*) { $pointer:expr, $bytes:expr, $pool:expr, $stream:expr }) => {
        driver_hook! { $name $count ($($arg: $type),*) { |real, caller| {
            let _pass = gate::enter();
            let call = Call { kind: Async, name: stringify!($name), caller, bytes: $bytes as u64 };
            let from = PoolCall { pool: $pool, stream: $stream, pointer: $pointer };
            limit::calls::take_from_pool(&call, from, || real($($arg),*))
        } } }
    };
}

/// A call that frees memory.
///
/// The details give the address space, and the address.
macro_rules! frees_driver_memory {
    ($name:ident $count:tt ($($arg:ident: $type:ty),*) { $space:expr, $address:expr }) => {
        driver_hook! { $name $count ($($arg: $type),*) { |real| {
            limit::calls::free($space, $address, || real($($arg),*))
        } } }
    };
}

/// A call that frees memory which may be memlab's.
macro_rules! frees_maybe_ours {
    ($name:ident $count:tt ($pointer:ident: u64 $(, $arg:ident: $type:ty)*) {}) => {
        driver_hook! { $name $count ($pointer: u64 $(, $arg: $type)*) { |real| {
            limit::calls::free(Space::Address, $pointer, || answer_ourselves_or(
                || allocations::free($pointer).or_else(|| limit::spill::free($pointer)),
                || real($pointer $(, $arg)*),
            ))
        } } }
    };
}

driver_hook_table! {
    driver_hook[2] cuMemAlloc(pointer: Out<u64>, bytes: usize) 3020: cuMemAlloc_v2 => { |real, caller| {
        let _pass = gate::enter();
        // The driver reports the error for a null pointer, here and below.
        let wanted = if pointer.is_null() { 0 } else { bytes as u64 };
        let call = Call { kind: Device, name: "cuMemAlloc_v2", caller, bytes: wanted };
        let allocate_movable = || match wanted {
            0 => None,
            bytes => allocations::allocate(bytes).map(|answer| answer.map(|address| pointer.set(address))),
        };
        let take = || answer_with_movable(caller, allocate_movable, || real(pointer, bytes));
        limit::calls::take(&call, take, || (pointer.value(), bytes as u64), Some(|address| pointer.set(address)))
    } };
    takes_limited[5] cuMemAllocPitch(
        pointer: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: c_uint
    ) 3020: cuMemAllocPitch_v2 => {
        Device, pointer.value(), pitch.value().saturating_mul(height);
        wants if pointer.is_null() || pitch.is_null() { 0 } else { pitch_of(width).saturating_mul(height) };
        spilled |address| { pointer.set(address); pitch.set(pitch_of(width)) }
    };
    // The CPU also accesses managed memory, so host memory mapped for the device cannot replace it.
    takes_limited[3] cuMemAllocManaged(pointer: Out<u64>, bytes: usize, flags: c_uint) 6000: cuMemAllocManaged => {
        Managed, pointer.value(), bytes; wants if pointer.is_null() { 0 } else { bytes }
    };
    takes[2] cuMemAllocHost(pointer: Out<u64>, bytes: usize) 3020: cuMemAllocHost_v2 => {
        Pinned, pointer.value(), bytes
    };
    takes[3] cuMemHostAlloc(pointer: Out<u64>, bytes: usize, flags: c_uint) 2020: cuMemHostAlloc => {
        Pinned, pointer.value(), bytes
    };
    takes[3] cuMemHostRegister(pointer: u64, bytes: usize, flags: c_uint) 6050: cuMemHostRegister_v2 => {
        Registered, pointer, bytes
    };
    takes_from_pool[3] cuMemAllocAsync(pointer: Out<u64>, bytes: usize, stream: Handle) 11020:
        cuMemAllocAsync / cuMemAllocAsync_ptsz => { pointer, bytes, ptr::null_mut(), stream };
    takes_from_pool[4] cuMemAllocFromPoolAsync(pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle) 11020:
        cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz => { pointer, bytes, pool, stream };
    takes[3] cuMemPoolImportPointer(pointer: Out<u64>, pool: Handle, data: Handle) 11020: cuMemPoolImportPointer => {
        Imported, pointer.value(), range_bytes(pointer.value())
    };
    takes_limited[2] cuArrayCreate(array: Out<u64>, shape: In<ArrayShape>) 3020: cuArrayCreate_v2 => {
        Array, array.value(), shape.get().map_or(0, array_bytes); wants shape.get().map_or(0, array_bytes)
    };
    takes_limited[2] cuArray3DCreate(array: Out<u64>, shape: In<Array3dShape>) 3020: cuArray3DCreate_v2 => {
        Array, array.value(), shape.get().map_or(0, array3d_bytes); wants shape.get().map_or(0, array3d_bytes)
    };
    takes_limited[3] cuMipmappedArrayCreate(array: Out<u64>, shape: In<Array3dShape>, levels: c_uint) 5000:
        cuMipmappedArrayCreate => {
        Array, array.value(), shape.get().map_or(0, |shape| mipmapped_bytes(shape, levels));
        wants shape.get().map_or(0, |shape| mipmapped_bytes(shape, levels))
    };
    takes[2] cuImportExternalMemory(memory: Out<u64>, handle: In<ExternalMemory>) 10000:
        cuImportExternalMemory => { Imported, memory.value(), handle.get().map_or(0, |handle| handle.bytes) };
    // The handle is 64 bytes passed by value, on the stack: two integer arguments.
    takes[2] cuIpcOpenMemHandle(pointer: Out<u64>, handle: sys::CUipcMemHandle, flags: c_uint) 11000:
        cuIpcOpenMemHandle_v2 => { Imported, pointer.value(), range_bytes(pointer.value()) };
    // A node's memory is allocated when the graph runs, but its address and size are decided here.
    driver_hook[5] cuGraphAddMemAllocNode(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, parameters: Out<AllocationNode>
    ) 11040: cuGraphAddMemAllocNode => { |real, caller| {
        let _pass = gate::enter();
        let bytes = parameters.get().map_or(0, |parameters| parameters.bytes as u64);
        let result = limit::calls::take_in_graph(bytes, || real(node, graph, after, count, parameters));
        if result == CUDA_SUCCESS {
            let address = parameters.get().map_or(0, |parameters| parameters.address);
            panics::catch(|| driver_memory::allocated(Async, address, bytes, "cuGraphAddMemAllocNode", caller));
        }
        result
    } };

    frees_maybe_ours[] cuMemFree(pointer: u64) 3020: cuMemFree_v2 => {};
    frees_maybe_ours[] cuMemFreeAsync(pointer: u64, stream: Handle) 11020: cuMemFreeAsync / cuMemFreeAsync_ptsz => {};
    frees_driver_memory[] cuMemFreeHost(pointer: u64) 2000: cuMemFreeHost => { Space::Address, pointer };
    frees_driver_memory[] cuMemHostUnregister(pointer: u64) 4000: cuMemHostUnregister => { Space::Registered, pointer };
    frees_driver_memory[] cuIpcCloseMemHandle(pointer: u64) 4010: cuIpcCloseMemHandle => { Space::Address, pointer };
    frees_driver_memory[] cuArrayDestroy(array: u64) 2000: cuArrayDestroy => { Space::Array, array };
    frees_driver_memory[] cuMipmappedArrayDestroy(array: u64) 5000: cuMipmappedArrayDestroy => { Space::Array, array };
    frees_driver_memory[] cuDestroyExternalMemory(memory: u64) 10000:
        cuDestroyExternalMemory => { Space::Address, memory };
    frees_driver_memory[] cuGraphAddMemFreeNode(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, pointer: u64
    ) 11040: cuGraphAddMemFreeNode => { Space::Address, pointer };
}
