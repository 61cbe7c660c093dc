//! The driver's allocation calls: each hook calls the real function and tells [`super::driver_memory`] what happened.
//!
//! What is held when these are called is unknown (the runtime's locks, PyTorch's allocator mutex), so they take no lock
//! that anything outside memlab can hold.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys;
use memlab_trace::record::DriverKind::{Array, Async, Device, Imported, Managed, Pinned, Registered};

use super::driver_memory::{self as memory, Space};
use super::entry::{c_name, entry_point};
use super::hooks::Hook;
use super::info;
use crate::symbols::Real;

pub const CUDA_SUCCESS: c_int = 0;
/// What a hook answers when the real function cannot be found: nothing is initialised then.
const CUDA_ERROR_NOT_INITIALIZED: c_int = 3;

/// Opaque to memlab: streams, pools, graphs, nodes.
type Opaque = *mut c_void;

/// A hook whose body is given the real function and the address it was called from.
macro_rules! hook {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*), |$real:ident, $caller:ident| $body:expr) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;
            type Function = unsafe extern "C" fn($($type),*) -> c_int;
            static REAL: Real<Function> = Real::in_library(c"libcuda.so.1", c_name!($name));
            unsafe extern "C" fn body($($arg: $type,)* $caller: usize) -> c_int {
                let Some($real) = REAL.get() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the driver's own function gets its caller's arguments, which it checks; what it writes is read
                // only after it succeeded.
                unsafe { $body }
            }
            entry_point!($count, $name, body);
            pub const HOOK: Hook = Hook {
                abi_name: stringify!($name),
                address: $name as *const c_void,
                learn: |real| REAL.learn(real),
            };
        }
    };
}

/// A call that takes memory: of which kind, where it lies, and how many bytes, once it has succeeded.
macro_rules! takes {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*) => $kind:expr, $address:expr, $bytes:expr) => {
        hook!($name [$count] ($($arg: $type),*), |real, caller| {
            let result = real($($arg),*);
            if result == CUDA_SUCCESS {
                crate::quietly(|| memory::allocated($kind, $address as u64, $bytes as u64, stringify!($name), caller));
            }
            result
        });
    };
}

/// A call that gives memory back. Said before it happens: once the driver has it, another thread may be given it.
macro_rules! gives_back {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*) => $space:expr, $address:expr) => {
        hook!($name [$count] ($($arg: $type),*), |real, _caller| {
            let freed = crate::quietly(|| memory::freeing($space, $address as u64)).flatten();
            let result = real($($arg),*);
            if result != CUDA_SUCCESS {
                crate::quietly(|| memory::not_freed(freed));
            }
            result
        });
    };
}

takes!(cuMemAlloc_v2[2](pointer: *mut u64, bytes: usize) => Device, *pointer, bytes);
takes!(cuMemAllocPitch_v2[5](pointer: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint)
    => Device, *pointer, (*pitch).saturating_mul(height));
takes!(cuMemAllocManaged[3](pointer: *mut u64, bytes: usize, flags: c_uint) => Managed, *pointer, bytes);
takes!(cuMemAllocHost_v2[2](pointer: *mut u64, bytes: usize) => Pinned, *pointer, bytes);
takes!(cuMemHostAlloc[3](pointer: *mut u64, bytes: usize, flags: c_uint) => Pinned, *pointer, bytes);
takes!(cuMemHostRegister_v2[3](pointer: u64, bytes: usize, flags: c_uint) => Registered, pointer, bytes);
takes!(cuMemAllocAsync[3](pointer: *mut u64, bytes: usize, stream: Opaque) => Async, *pointer, bytes);
takes!(cuMemAllocAsync_ptsz[3](pointer: *mut u64, bytes: usize, stream: Opaque) => Async, *pointer, bytes);
takes!(cuMemAllocFromPoolAsync[4](pointer: *mut u64, bytes: usize, pool: Opaque, stream: Opaque)
    => Async, *pointer, bytes);
takes!(cuMemAllocFromPoolAsync_ptsz[4](pointer: *mut u64, bytes: usize, pool: Opaque, stream: Opaque)
    => Async, *pointer, bytes);
takes!(cuMemPoolImportPointer[3](pointer: *mut u64, pool: Opaque, data: *mut c_void)
    => Imported, *pointer, info::range_size(*pointer));
takes!(cuArrayCreate_v2[2](array: *mut u64, shape: *const sys::CUDA_ARRAY_DESCRIPTOR)
    => Array, *array, info::array_bytes(shape));
takes!(cuArray3DCreate_v2[2](array: *mut u64, shape: *const sys::CUDA_ARRAY3D_DESCRIPTOR)
    => Array, *array, info::array3d_bytes(shape));
takes!(cuMipmappedArrayCreate[3](array: *mut u64, shape: *const sys::CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint)
    => Array, *array, info::mipmapped_bytes(shape, levels));
takes!(cuImportExternalMemory[2](memory: *mut u64, handle: *const sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC)
    => Imported, *memory, (*handle).size);
// The handle is 64 bytes passed by value, on the stack: two integer arguments.
takes!(cuIpcOpenMemHandle_v2[2](pointer: *mut u64, handle: sys::CUipcMemHandle, flags: c_uint)
    => Imported, *pointer, info::range_size(*pointer));
// A node's memory is taken when the graph runs, but its address and size are decided here.
takes!(cuGraphAddMemAllocNode[5](node: *mut Opaque, graph: Opaque, after: *const Opaque, count: usize,
        parameters: *mut sys::CUDA_MEM_ALLOC_NODE_PARAMS)
    => Async, (*parameters).dptr, (*parameters).bytesize);

gives_back!(cuMemFree_v2[1](pointer: u64) => Space::Address, pointer);
gives_back!(cuMemFreeAsync[2](pointer: u64, stream: Opaque) => Space::Address, pointer);
gives_back!(cuMemFreeAsync_ptsz[2](pointer: u64, stream: Opaque) => Space::Address, pointer);
gives_back!(cuMemFreeHost[1](pointer: u64) => Space::Address, pointer);
gives_back!(cuMemHostUnregister[1](pointer: u64) => Space::Registered, pointer);
gives_back!(cuIpcCloseMemHandle[1](pointer: u64) => Space::Address, pointer);
gives_back!(cuArrayDestroy[1](array: u64) => Space::Array, array);
gives_back!(cuMipmappedArrayDestroy[1](array: u64) => Space::Array, array);
gives_back!(cuDestroyExternalMemory[1](memory: u64) => Space::Address, memory);
gives_back!(cuGraphAddMemFreeNode[5](node: *mut Opaque, graph: Opaque, after: *const Opaque, count: usize, pointer: u64)
    => Space::Address, pointer);

hook!(cuMemCreate[4](handle: *mut u64, bytes: usize, properties: *const sys::CUmemAllocationProp, flags: u64),
|real, caller| {
    let result = real(handle, bytes, properties, flags);
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::created(*handle, bytes as u64, info::location_of(properties), caller));
    }
    result
});
hook!(cuMemImportFromShareableHandle[3](handle: *mut u64, source: *mut c_void, kind: c_int), |real, caller| {
    let result = real(handle, source, kind);
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::imported_handle(*handle, caller));
    }
    result
});
hook!(cuMemRetainAllocationHandle[2](handle: *mut u64, address: *mut c_void), |real, _caller| {
    let result = real(handle, address);
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::retained(*handle));
    }
    result
});
hook!(cuMemRelease[1](handle: u64), |real, _caller| {
    let released = crate::quietly(|| memory::releasing(handle)) == Some(true);
    let result = real(handle);
    if result != CUDA_SUCCESS && released {
        crate::quietly(|| memory::retained(handle));
    }
    result
});
hook!(cuMemMap[5](address: u64, bytes: usize, offset: usize, handle: u64, flags: u64), |real, _caller| {
    let result = real(address, bytes, offset, handle, flags);
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::mapped(address, bytes as u64, handle));
    }
    result
});
hook!(cuMemUnmap[2](address: u64, bytes: usize), |real, _caller| {
    let result = real(address, bytes);
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::unmapped(address, bytes as u64));
    }
    result
});
hook!(cuCtxDestroy_v2[1](context: Opaque), |real, _caller| {
    let result = real(context);
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::context_destroyed(context as u64));
    }
    result
});
hook!(cuDevicePrimaryCtxReset_v2[1](device: c_int), |real, _caller| {
    let context = info::primary_context(device);
    let result = real(device);
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::context_destroyed(context));
    }
    result
});

pub static HOOKS: &[Hook] = &[
    cuMemAlloc_v2::HOOK,
    cuMemAllocPitch_v2::HOOK,
    cuMemAllocManaged::HOOK,
    cuMemAllocHost_v2::HOOK,
    cuMemHostAlloc::HOOK,
    cuMemHostRegister_v2::HOOK,
    cuMemAllocAsync::HOOK,
    cuMemAllocAsync_ptsz::HOOK,
    cuMemAllocFromPoolAsync::HOOK,
    cuMemAllocFromPoolAsync_ptsz::HOOK,
    cuMemPoolImportPointer::HOOK,
    cuArrayCreate_v2::HOOK,
    cuArray3DCreate_v2::HOOK,
    cuMipmappedArrayCreate::HOOK,
    cuImportExternalMemory::HOOK,
    cuIpcOpenMemHandle_v2::HOOK,
    cuGraphAddMemAllocNode::HOOK,
    cuMemFree_v2::HOOK,
    cuMemFreeAsync::HOOK,
    cuMemFreeAsync_ptsz::HOOK,
    cuMemFreeHost::HOOK,
    cuMemHostUnregister::HOOK,
    cuIpcCloseMemHandle::HOOK,
    cuArrayDestroy::HOOK,
    cuMipmappedArrayDestroy::HOOK,
    cuDestroyExternalMemory::HOOK,
    cuGraphAddMemFreeNode::HOOK,
    cuMemCreate::HOOK,
    cuMemImportFromShareableHandle::HOOK,
    cuMemRetainAllocationHandle::HOOK,
    cuMemRelease::HOOK,
    cuMemMap::HOOK,
    cuMemUnmap::HOOK,
    cuCtxDestroy_v2::HOOK,
    cuDevicePrimaryCtxReset_v2::HOOK,
];
