//! Hooks on the CUDA runtime's allocation calls.
//!
//! They pass their name and caller to the driver-level hooks. They record the call only if no driver-level hook has seen it
//! (memlab was loaded after the runtime had found the driver).

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys;
use memlab_trace::record::DriverKind::{self, Array, Async, Device, Imported, Managed, Pinned, Registered};

use super::driver_memory::{self, Space};
use super::hook::{c_name, entry_point};
use crate::limit;
use crate::limit::card::{self, footprint};
use crate::recorder::Recorder;
use interpose_base::panics;
use interpose_base::symbols::{self, Real};
use interpose_driver::caller::RuntimeCall;
use interpose_driver::calls::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use interpose_driver::device::{current_device, range_bytes};
use interpose_driver::types::{ExternalMemory, Handle, In, Out};

/// Result of a hook that cannot find the real function (`cudaErrorInitializationError`).
const CUDA_ERROR_INITIALIZATION: c_int = 3;

/// `cudaStreamCaptureStatusActive`
const CAPTURE_IS_ACTIVE: c_int = 1;

/// A hooked function.
pub struct RuntimeHook {
    pub name: &'static str,
    /// memlab's function.
    pub address: *const c_void,
}

// SAFETY: the address is that of a function, and functions can be called from any thread.
unsafe impl Sync for RuntimeHook {}

/// Finds a runtime function: in the objects after memlab, or in a runtime outside the global scope.
fn find<F: Copy>(real: &Real<F>) -> Option<F> {
    real.get().or_else(|| {
        for soname in [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0"] {
            let found = symbols::in_loaded_library(soname, real.symbol());
            if !found.is_null() {
                real.set_if_unknown(found);
                break;
            }
        }
        real.get()
    })
}

/// Defines hooks, one row each (`KIND[COUNT] SYMBOL(ARGUMENTS) => { DETAILS };`, as in [`super::hook::driver_hook_table`]),
/// and their table `HOOKS`.
macro_rules! runtime_hook_table {
    ($($kind:ident $count:tt $symbol:ident $arguments:tt => $details:tt;)*) => {
        $($kind! { $symbol $count $arguments $details })*
        pub static HOOKS: &[RuntimeHook] = &[$(
            RuntimeHook { name: stringify!($symbol), address: $symbol::$symbol as *const c_void },
        )*];
    };
}

/// Defines a hook by its details: see [`super::hook::driver_hook`].
macro_rules! runtime_hook {
    ($name:ident [$($count:tt)?] ($($arg:ident: $type:ty),*) { |$real:ident $(, $caller:ident)?| $body:expr }) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;

            static REAL: Real<unsafe extern "C" fn($($type),*) -> c_int> = Real::next(c_name!($name));

            entry_point! { $name [$($count)?]
                ($($arg: $type),*) ($($caller)?) {
                    let Some(function) = find(&REAL) else { return CUDA_ERROR_INITIALIZATION };
                    // SAFETY: the runtime's own function, of this signature, with its caller's arguments.
                    let $real = |$($arg: $type),*| unsafe { function($($arg),*) };
                    $body
                }
            }
        }
    };
}

/// A call that allocates memory.
///
/// The details give the kind, the address, and the bytes once it has succeeded.
macro_rules! takes {
    ($name:ident $count:tt ($($arg:ident: $type:ty),*) { $kind:expr, $address:expr, $bytes:expr }) => {
        runtime_hook! { $name $count ($($arg: $type),*) { |real, caller| {
            let call = RuntimeCall::enter(stringify!($name), caller);
            let result = real($($arg),*);
            let recorded = call.is_none_or(RuntimeCall::leave);
            if result == CUDA_SUCCESS && !recorded {
                return panics::catch(|| record($kind, $address, $bytes as u64, stringify!($name), caller))
                    .unwrap_or(result);
            }
            result
        } } }
    };
}

/// A call that frees memory.
///
/// The details give the address space, and the address.
macro_rules! frees {
    ($name:ident $count:tt ($($arg:ident: $type:ty),*) { $space:expr, $address:expr }) => {
        runtime_hook! { $name $count ($($arg: $type),*) { |real| {
            // This removes the allocation from the table; the driver-level hook then finds nothing to do.
            limit::calls::free($space, $address, || real($($arg),*))
        } } }
    };
}

/// A call that queries the capture of a stream.
///
/// In CUDA 11 and 12 the first one has three parameters, and others have up to seven: passing on all seven is right for
/// each.
macro_rules! asks_about_capture {
    ($name:ident [] ($stream:ident: Handle, $status:ident: Out<c_int>, $id:ident: Out<u64> $(, $arg:ident: $type:ty)*) {}) => {
        runtime_hook! { $name [] ($stream: Handle, $status: Out<c_int>, $id: Out<u64> $(, $arg: $type)*) { |real| {
            let result = real($stream, $status, $id $(, $arg)*);
            if let Some(session) = Recorder::enter_if_recording() {
                let is_captured = result == CUDA_SUCCESS && $status.get() == Some(CAPTURE_IS_ACTIVE);
                session.thread.capture.answer = if is_captured { $id.get().unwrap_or(0) } else { 0 };
            }
            result
        } } }
    };
}

/// A call that returns a device's properties, including its memory.
macro_rules! tells_properties {
    ($name:ident [] ($properties:ident: Properties, $device:ident: c_int) {}) => {
        runtime_hook! { $name [] ($properties: Properties, $device: c_int) { |real| {
            let result = real($properties, $device);
            if result == CUDA_SUCCESS {
                panics::catch(|| limit::calls::show_total($properties.total(), $device));
            }
            result
        } } }
    };
}

runtime_hook_table! {
    takes[2] cudaMalloc(pointer: Out<u64>, bytes: usize) => { Device, pointer.value(), bytes };
    takes[4] cudaMallocPitch(pointer: Out<u64>, pitch: Out<usize>, width: usize, height: usize) => {
        Device, pointer.value(), pitch.value().saturating_mul(height)
    };
    takes[1] cudaMalloc3D(pitched: Out<PitchedPointer>, extent: Extent) => {
        Device, pitched.value().pointer, extent.bytes_with_rows_of(pitched.value().pitch)
    };
    takes[3] cudaMallocManaged(pointer: Out<u64>, bytes: usize, flags: c_uint) => { Managed, pointer.value(), bytes };
    takes[2] cudaMallocHost(pointer: Out<u64>, bytes: usize) => { Pinned, pointer.value(), bytes };
    takes[3] cudaHostAlloc(pointer: Out<u64>, bytes: usize, flags: c_uint) => { Pinned, pointer.value(), bytes };
    takes[3] cudaHostRegister(pointer: u64, bytes: usize, flags: c_uint) => { Registered, pointer, bytes };
    takes[3] cudaMallocAsync(pointer: Out<u64>, bytes: usize, stream: Handle) => { Async, pointer.value(), bytes };
    takes[3] cudaMallocAsync_ptsz(pointer: Out<u64>, bytes: usize, stream: Handle) => { Async, pointer.value(), bytes };
    takes[4] cudaMallocFromPoolAsync(pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle) => {
        Async, pointer.value(), bytes
    };
    takes[4] cudaMallocFromPoolAsync_ptsz(pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle) => {
        Async, pointer.value(), bytes
    };
    takes[5] cudaMallocArray(array: Out<u64>, format: In<ChannelFormat>, width: usize, height: usize, flags: c_uint) => {
        Array, array.value(), texel_bytes(format).saturating_mul(width).saturating_mul(height.max(1))
    };
    // The extent is on the stack: three integer arguments.
    takes[3] cudaMalloc3DArray(array: Out<u64>, format: In<ChannelFormat>, extent: Extent, flags: c_uint) => {
        Array, array.value(), extent.bytes_with_texels_of(texel_bytes(format))
    };
    takes[2] cudaImportExternalMemory(memory: Out<u64>, handle: In<ExternalMemory>) => {
        Imported, memory.value(), handle.get().map_or(0, |handle| handle.bytes)
    };
    takes[2] cudaIpcOpenMemHandle(pointer: Out<u64>, handle: sys::CUipcMemHandle, flags: c_uint) => {
        Imported, pointer.value(), range_bytes(pointer.value())
    };

    runtime_hook[] cudaMemGetInfo(free: Out<usize>, total: Out<usize>) => { |real| {
        let result = real(free, total);
        if result == CUDA_SUCCESS {
            panics::catch(|| limit::calls::show_memory(free, total));
        }
        result
    } };
    tells_properties[] cudaGetDeviceProperties(properties: Properties, device: c_int) => {};
    tells_properties[] cudaGetDeviceProperties_v2(properties: Properties, device: c_int) => {};

    asks_about_capture[] cudaStreamGetCaptureInfo(
        stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Handle, dependencies: Handle, edges: Handle, count: Handle
    ) => {};
    asks_about_capture[] cudaStreamGetCaptureInfo_v2(
        stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Handle, dependencies: Handle, edges: Handle, count: Handle
    ) => {};
    asks_about_capture[] cudaStreamGetCaptureInfo_v3(
        stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Handle, dependencies: Handle, edges: Handle, count: Handle
    ) => {};

    frees[] cudaFree(pointer: u64) => { Space::Address, pointer };
    frees[] cudaFreeAsync(pointer: u64, stream: Handle) => { Space::Address, pointer };
    frees[] cudaFreeAsync_ptsz(pointer: u64, stream: Handle) => { Space::Address, pointer };
    frees[] cudaFreeHost(pointer: u64) => { Space::Address, pointer };
    frees[] cudaHostUnregister(pointer: u64) => { Space::Registered, pointer };
    frees[] cudaFreeArray(array: u64) => { Space::Array, array };
    frees[] cudaFreeMipmappedArray(array: u64) => { Space::Array, array };
    frees[] cudaDestroyExternalMemory(memory: u64) => { Space::Address, memory };
    frees[] cudaIpcCloseMemHandle(pointer: u64) => { Space::Address, pointer };
}

static FREE: Real<unsafe extern "C" fn(u64) -> c_int> = Real::next(c"cudaFree");

/// Records an allocation that no driver-level hook has seen, so its limit was not checked.
///
/// If it exceeds the limit, it is freed again and the call fails with out of memory.
fn record(kind: DriverKind, address: u64, bytes: u64, name: &'static str, caller: usize) -> c_int {
    let too_much = limit::calls::taken_unseen(kind, bytes);
    if too_much
        && matches!(kind, Device | Managed)
        && let Some(free) = find(&FREE)
        // SAFETY: the runtime has just returned it, and the program has not seen it.
        && unsafe { free(address) } == CUDA_SUCCESS
    {
        card::released(current_device(), footprint(kind, bytes));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_memory::allocated(kind, address, bytes, name, caller);
    CUDA_SUCCESS
}

/// `cudaPitchedPtr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PitchedPointer {
    pointer: u64,
    pitch: usize,
    width: usize,
    height: usize,
}

/// `cudaExtent`, which is passed by value on the stack.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extent {
    width: usize,
    height: usize,
    depth: usize,
}

impl Extent {
    fn bytes_with_rows_of(self, pitch: usize) -> usize {
        pitch.saturating_mul(self.height).saturating_mul(self.depth)
    }

    fn bytes_with_texels_of(self, bytes: usize) -> usize {
        bytes.saturating_mul(self.width).saturating_mul(self.height.max(1)).saturating_mul(self.depth.max(1))
    }
}

/// `cudaChannelFormatDesc`: the bits of each of four channels, and their type.
#[repr(C)]
#[derive(Clone, Copy)]
struct ChannelFormat {
    bits: [c_int; 4],
    kind: c_int,
}

fn texel_bytes(format: In<ChannelFormat>) -> usize {
    let bits = format.get().map_or([0; 4], |format| format.bits);
    bits.iter().map(|&bits| bits.max(0) as usize).sum::<usize>().div_ceil(8)
}

/// `cudaDeviceProp`, as the program passes it to be filled.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Properties(Out<u8>);

impl Properties {
    /// The offset of `totalGlobalMem` since CUDA 10: behind the name, two identifiers and a mask.
    const TOTAL_MEMORY_OFFSET: usize = (256 + 16 + 8 + size_of::<c_uint>()).next_multiple_of(8);

    fn total(self) -> Out<usize> {
        // SAFETY: the program has made room for the whole structure.
        unsafe { self.0.at(Self::TOTAL_MEMORY_OFFSET) }
    }
}
