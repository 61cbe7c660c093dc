//! The driver's allocation calls: each hook calls the real function and tells [`super::driver_memory`] what happened.
//!
//! What is held when these are called is unknown (the runtime's locks, PyTorch's allocator mutex), so they take no lock
//! that anything outside memlab can hold.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys;
use memlab_trace::record::DriverKind::{Array, Async, Device, Imported, Managed, Pinned, Registered};

use super::driver_memory::{self as memory, Space};
use super::entry::{c_name, entry_point};
use super::hooks::Hook;
use super::info;
use crate::limit::calls::{Call, PoolCall};
use crate::limit::{self, Flight};
use crate::mover::backing;
use crate::mover::driver::{Access, Code, Properties};
use crate::mover::{self, gate};
use crate::symbols::Real;

pub const CUDA_SUCCESS: c_int = 0;
/// What a hook answers when the real function cannot be found: nothing is initialised then.
pub const CUDA_ERROR_NOT_INITIALIZED: c_int = 3;

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
            let _pass = gate::enter();
            let result = real($($arg),*);
            if result == CUDA_SUCCESS {
                crate::quietly(|| memory::allocated($kind, $address as u64, $bytes as u64, stringify!($name), caller));
            }
            result
        });
    };
}

/// A call that takes memory of the device, if its limit allows: also, how many bytes that will be, and, where the memory
/// can be put elsewhere, what the call then answers.
macro_rules! takes_limited {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*) => $kind:expr, $address:expr, $bytes:expr;
     wants $wanted:expr $(; spilled |$spilled:ident| $put:expr)?) => {
        hook!($name [$count] ($($arg: $type),*), |real, caller| {
            let _pass = gate::enter();
            let call = Call { kind: $kind, name: stringify!($name), caller, bytes: $wanted as u64 };
            let put = takes_limited!(@put $($spilled $put)?);
            limit::calls::take(&call, || real($($arg),*), || ($address as u64, $bytes as u64), put)
        });
    };
    (@put) => { None::<fn(u64)> };
    (@put $spilled:ident $put:expr) => { Some(|$spilled: u64| $put) };
}

/// A call that takes stream-ordered memory, if the limit allows.
macro_rules! takes_from_pool {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*) => $pointer:expr, $bytes:expr, $pool:expr, $stream:expr) => {
        hook!($name [$count] ($($arg: $type),*), |real, caller| {
            let _pass = gate::enter();
            let call = Call { kind: Async, name: stringify!($name), caller, bytes: $bytes as u64 };
            let from = PoolCall { pool: $pool, stream: $stream, pointer: $pointer };
            limit::calls::take_from_pool(&call, from, || real($($arg),*))
        });
    };
}

/// A call that gives memory back. Said before it happens: once the driver has it, another thread may be given it.
macro_rules! gives_back {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*) => $space:expr, $address:expr) => {
        hook!($name [$count] ($($arg: $type),*), |real, _caller| {
            let _flight = Flight::begin();
            let freed = crate::quietly(|| memory::freeing($space, $address as u64)).flatten();
            let result = real($($arg),*);
            crate::quietly(|| if result == CUDA_SUCCESS { memory::freed(freed) } else { memory::not_freed(freed) });
            result
        });
    };
}

/// Answers a call by memlab's own virtual memory management, if some of the program's memory is in it and this is concerned;
/// else lets the driver answer.
fn instead(own: impl FnOnce() -> Option<Result<(), Code>>, real: impl FnOnce() -> c_int) -> c_int {
    let answer = if mover::holds_memory() { crate::quietly(own).flatten() } else { None };
    answer.map_or_else(real, Code::of)
}

/// The same for a call that takes memory: only if the program was started for that. What NCCL takes for itself is the
/// driver's: it shares it with other processes and with network cards.
fn backed(caller: usize, own: impl FnOnce() -> Option<Result<(), Code>>, real: impl FnOnce() -> c_int) -> c_int {
    let is_movable = || crate::quietly(|| !memory::library_at(caller).starts_with("libnccl")) == Some(true);
    if mover::is_enabled() && is_movable() { instead(own, real) } else { real() }
}

/// A call that gives back memory which may be memlab's.
macro_rules! frees {
    ($name:ident [$count:tt] ($pointer:ident: u64 $(, $arg:ident: $type:ty)*)) => {
        hook!($name [$count] ($pointer: u64 $(, $arg: $type)*), |real, _caller| {
            let _flight = Flight::begin();
            let freed = crate::quietly(|| memory::freeing(Space::Address, $pointer)).flatten();
            let result = instead(
                || backing::free($pointer).or_else(|| limit::spill::free($pointer)),
                || real($pointer $(, $arg)*),
            );
            crate::quietly(|| if result == CUDA_SUCCESS { memory::freed(freed) } else { memory::not_freed(freed) });
            result
        });
    };
}

hook!(cuMemAlloc_v2[2](pointer: *mut u64, bytes: usize), |real, caller| {
    let _pass = gate::enter();
    let wanted = if pointer.is_null() { 0 } else { bytes as u64 };
    let call = Call { kind: Device, name: "cuMemAlloc_v2", caller, bytes: wanted };
    // A null pointer is the driver's to complain of, here and below.
    let own = || match wanted {
        0 => None,
        bytes => backing::allocate(bytes).map(|answer| answer.map(|address| *pointer = address)),
    };
    let take = || backed(caller, own, || real(pointer, bytes));
    limit::calls::take(&call, take, || (*pointer, bytes as u64), Some(|address| *pointer = address))
});
takes_limited!(cuMemAllocPitch_v2[5](pointer: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint)
    => Device, *pointer, (*pitch).saturating_mul(height);
    wants if pointer.is_null() || pitch.is_null() { 0 } else { info::pitch(width).saturating_mul(height) };
    spilled |address| (*pointer, *pitch) = (address, info::pitch(width)));
takes_limited!(cuMemAllocManaged[3](pointer: *mut u64, bytes: usize, flags: c_uint) => Managed, *pointer, bytes;
    wants if pointer.is_null() { 0 } else { bytes }); // The CPU touches it too: not to be had of what is mapped for the device.
takes!(cuMemAllocHost_v2[2](pointer: *mut u64, bytes: usize) => Pinned, *pointer, bytes);
takes!(cuMemHostAlloc[3](pointer: *mut u64, bytes: usize, flags: c_uint) => Pinned, *pointer, bytes);
takes!(cuMemHostRegister_v2[3](pointer: u64, bytes: usize, flags: c_uint) => Registered, pointer, bytes);
takes_from_pool!(cuMemAllocAsync[3](pointer: *mut u64, bytes: usize, stream: Opaque)
    => pointer, bytes, ptr::null_mut(), stream);
takes_from_pool!(cuMemAllocAsync_ptsz[3](pointer: *mut u64, bytes: usize, stream: Opaque)
    => pointer, bytes, ptr::null_mut(), stream);
takes_from_pool!(cuMemAllocFromPoolAsync[4](pointer: *mut u64, bytes: usize, pool: Opaque, stream: Opaque)
    => pointer, bytes, pool, stream);
takes_from_pool!(cuMemAllocFromPoolAsync_ptsz[4](pointer: *mut u64, bytes: usize, pool: Opaque, stream: Opaque)
    => pointer, bytes, pool, stream);
takes!(cuMemPoolImportPointer[3](pointer: *mut u64, pool: Opaque, data: *mut c_void)
    => Imported, *pointer, info::range_size(*pointer));
takes_limited!(cuArrayCreate_v2[2](array: *mut u64, shape: *const sys::CUDA_ARRAY_DESCRIPTOR)
    => Array, *array, info::array_bytes(shape);
    wants if shape.is_null() { 0 } else { info::array_bytes(shape) });
takes_limited!(cuArray3DCreate_v2[2](array: *mut u64, shape: *const sys::CUDA_ARRAY3D_DESCRIPTOR)
    => Array, *array, info::array3d_bytes(shape);
    wants if shape.is_null() { 0 } else { info::array3d_bytes(shape) });
takes_limited!(cuMipmappedArrayCreate[3](array: *mut u64, shape: *const sys::CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint)
    => Array, *array, info::mipmapped_bytes(shape, levels);
    wants if shape.is_null() { 0 } else { info::mipmapped_bytes(shape, levels) });
takes!(cuImportExternalMemory[2](memory: *mut u64, handle: *const sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC)
    => Imported, *memory, (*handle).size);
// The handle is 64 bytes passed by value, on the stack: two integer arguments.
takes!(cuIpcOpenMemHandle_v2[2](pointer: *mut u64, handle: sys::CUipcMemHandle, flags: c_uint)
    => Imported, *pointer, info::range_size(*pointer));
// A node's memory is taken when the graph runs, but its address and size are decided here.
hook!(cuGraphAddMemAllocNode[5](node: *mut Opaque, graph: Opaque, after: *const Opaque, count: usize,
        parameters: *mut sys::CUDA_MEM_ALLOC_NODE_PARAMS), |real, caller| {
    let _pass = gate::enter();
    let bytes = if parameters.is_null() { 0 } else { (*parameters).bytesize as u64 };
    let result = limit::calls::take_in_graph(bytes, || real(node, graph, after, count, parameters));
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::allocated(Async, (*parameters).dptr, bytes, "cuGraphAddMemAllocNode", caller));
    }
    result
});

frees!(cuMemFree_v2[1](pointer: u64));
frees!(cuMemFreeAsync[2](pointer: u64, stream: Opaque));
frees!(cuMemFreeAsync_ptsz[2](pointer: u64, stream: Opaque));
gives_back!(cuMemFreeHost[1](pointer: u64) => Space::Address, pointer);
gives_back!(cuMemHostUnregister[1](pointer: u64) => Space::Registered, pointer);
gives_back!(cuIpcCloseMemHandle[1](pointer: u64) => Space::Address, pointer);
gives_back!(cuArrayDestroy[1](array: u64) => Space::Array, array);
gives_back!(cuMipmappedArrayDestroy[1](array: u64) => Space::Array, array);
gives_back!(cuDestroyExternalMemory[1](memory: u64) => Space::Address, memory);
gives_back!(cuGraphAddMemFreeNode[5](node: *mut Opaque, graph: Opaque, after: *const Opaque, count: usize, pointer: u64)
    => Space::Address, pointer);

hook!(cuMemCreate[4](handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64), |real, caller| {
    let _pass = gate::enter();
    let own = || match flags {
        0 if !handle.is_null() && !properties.is_null() => {
            backing::create(bytes as u64, &*properties).map(|answer| answer.map(|made| *handle = made))
        }
        _ => None,
    };
    let take = || backed(caller, own, || real(handle, bytes, properties, flags));
    limit::calls::create(handle, bytes as u64, properties, flags, caller, take)
});
hook!(cuMemImportFromShareableHandle[3](handle: *mut u64, source: *mut c_void, kind: c_int), |real, caller| {
    let result = real(handle, source, kind);
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::imported_handle(*handle, caller));
    }
    result
});
hook!(cuMemRetainAllocationHandle[2](handle: *mut u64, address: u64), |real, _caller| {
    let own = || match handle.is_null() {
        true => None,
        false => backing::retain(address).map(|answer| answer.map(|known| *handle = known)),
    };
    let result = instead(own, || real(handle, address));
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::retained(*handle));
    }
    result
});
hook!(cuMemRelease[1](handle: u64), |real, _caller| {
    let _flight = Flight::begin();
    let released = crate::quietly(|| memory::releasing(handle)) == Some(true);
    let result = instead(|| backing::release(handle), || real(handle));
    if result != CUDA_SUCCESS && released {
        crate::quietly(|| memory::retained(handle));
    }
    result
});
hook!(cuMemMap[5](address: u64, bytes: usize, offset: usize, handle: u64, flags: u64), |real, _caller| {
    let _pass = gate::enter();
    let own = || backing::map(address, bytes as u64, offset as u64, handle, flags);
    let result = instead(own, || real(address, bytes, offset, handle, flags));
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::mapped(address, bytes as u64, handle));
    }
    limit::spill::attempt_over();
    result
});
hook!(cuMemUnmap[2](address: u64, bytes: usize), |real, _caller| {
    let _flight = Flight::begin();
    let result = instead(|| backing::unmap(address, bytes as u64), || real(address, bytes));
    if result == CUDA_SUCCESS {
        crate::quietly(|| memory::unmapped(address, bytes as u64));
    }
    result
});
hook!(cuMemPoolDestroy[1](pool: Opaque), |real, _caller| {
    crate::quietly(|| limit::outside::pool_gone(pool as usize));
    real(pool)
});
hook!(cuMemGetInfo_v2[2](free: *mut usize, total: *mut usize), |real, _caller| {
    let result = real(free, total);
    if result == CUDA_SUCCESS {
        crate::quietly(|| limit::calls::show_memory(free, total));
    }
    result
});
hook!(cuDeviceTotalMem_v2[2](total: *mut usize, device: c_int), |real, _caller| {
    let result = real(total, device);
    if result == CUDA_SUCCESS {
        crate::quietly(|| limit::calls::show_total(total, device));
    }
    result
});
hook!(cuDevicePrimaryCtxRetain[2](context: *mut Opaque, device: c_int), |real, _caller| {
    let before = crate::quietly(|| limit::outside::context_coming(device)).flatten();
    let result = real(context, device);
    if result == CUDA_SUCCESS {
        crate::quietly(|| limit::outside::context_came(device, before));
    }
    result
});
hook!(cuMemSetAccess[4](address: u64, bytes: usize, access: *const Access, count: usize), |real, _caller| {
    let _pass = gate::enter();
    let result = real(address, bytes, access, count);
    if result == CUDA_SUCCESS && mover::holds_memory() {
        crate::quietly(|| backing::access_set(address, bytes as u64, std::slice::from_raw_parts(access, count)));
    }
    result
});
hook!(cuMemGetAllocationPropertiesFromHandle[2](properties: *mut Properties, handle: u64), |real, _caller| {
    let own = || match properties.is_null() {
        true => None,
        false => backing::properties(handle).map(|answer| answer.map(|known| *properties = known)),
    };
    instead(own, || real(properties, handle))
});
hook!(cuMemExportToShareableHandle[4](shared: *mut c_void, handle: u64, kind: c_int, flags: u64), |real, _caller| {
    let _pass = gate::enter();
    let share = |own| match real(shared, own, kind, flags) {
        CUDA_SUCCESS => Ok(()),
        code => Err(Code(code)),
    };
    instead(|| backing::fix(handle, "shared with another process", share), || real(shared, handle, kind, flags))
});
hook!(cuMemGetHandleForAddressRange[5](shared: *mut c_void, address: u64, bytes: usize, kind: c_int, flags: u64),
|real, _caller| {
    let _pass = gate::enter();
    let result = real(shared, address, bytes, kind, flags);
    if result == CUDA_SUCCESS && mover::holds_memory() {
        crate::quietly(|| backing::fix_at(address, "registered with another device"));
    }
    result
});
hook!(cuMemGetAddressRange_v2[3](base: *mut u64, bytes: *mut usize, address: u64), |real, _caller| {
    let own = || backing::range(address).map(|(start, length)| {
        if !base.is_null() {
            *base = start;
        }
        if !bytes.is_null() {
            *bytes = length as usize;
        }
        Ok(())
    });
    instead(own, || real(base, bytes, address))
});
hook!(cuIpcGetMemHandle[2](handle: *mut c_void, address: u64), |real, _caller| {
    let result = real(handle, address);
    if result != CUDA_SUCCESS && mover::is_enabled() && crate::quietly(|| backing::is_backed(address)) == Some(true) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            crate::say("memory that can be offloaded cannot be shared with another process by CUDA IPC: start the \
                        program without --offload, or pass tensors between its processes in host memory");
        }
    }
    result
});
hook!(cuCtxEnablePeerAccess[2](peer: Opaque, flags: c_uint), |real, _caller| {
    let _pass = gate::enter(); // It lets the peer reach what is mapped.
    let result = real(peer, flags);
    if result == CUDA_SUCCESS {
        crate::quietly(|| {
            if let Some(owner) = info::device_of(peer as u64) {
                backing::peer_enabled(owner, info::current_device());
            }
        });
    }
    result
});

/// Destroys a context, and forgets what was allocated in it.
fn destroy_context(context: u64, real: impl FnOnce() -> c_int) -> c_int {
    let _flight = Flight::begin();
    let mut result = CUDA_SUCCESS;
    if mover::holds_memory() {
        crate::quietly(|| {
            backing::destroy_context(context, || {
                result = real();
                result == CUDA_SUCCESS
            });
        });
    } else {
        result = real();
    }
    if result == CUDA_SUCCESS {
        crate::quietly(|| {
            memory::context_destroyed(context);
            limit::spill::context_destroyed(context);
            limit::outside::context_gone();
        });
    }
    result
}

hook!(cuCtxDestroy_v2[1](context: Opaque), |real, _caller| {
    destroy_context(context as u64, || real(context))
});
hook!(cuDevicePrimaryCtxReset_v2[1](device: c_int), |real, _caller| {
    destroy_context(info::primary_context(device), || real(device))
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
    cuMemPoolDestroy::HOOK,
    cuMemGetInfo_v2::HOOK,
    cuDeviceTotalMem_v2::HOOK,
    cuDevicePrimaryCtxRetain::HOOK,
    cuMemSetAccess::HOOK,
    cuMemGetAllocationPropertiesFromHandle::HOOK,
    cuMemExportToShareableHandle::HOOK,
    cuMemGetHandleForAddressRange::HOOK,
    cuMemGetAddressRange_v2::HOOK,
    cuIpcGetMemHandle::HOOK,
    cuCtxEnablePeerAccess::HOOK,
    cuCtxDestroy_v2::HOOK,
    cuDevicePrimaryCtxReset_v2::HOOK,
];
