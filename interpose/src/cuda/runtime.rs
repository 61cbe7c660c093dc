//! The CUDA runtime's allocation calls. They give the driver's call beneath them its name and its caller; where no
//! driver-level hook has seen the call (memlab was loaded after the runtime had found the driver), they record it.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys;
use memlab_trace::record::DriverKind::{self, Array, Async, Device, Imported, Managed, Pinned, Registered};

use super::driver::CUDA_SUCCESS;
use super::driver_memory::{self as memory, Space};
use super::entry::{c_name, entry_point};
use super::info;
use crate::limit;
use crate::limit::calls::CUDA_ERROR_OUT_OF_MEMORY;
use crate::symbols::{self, Real};

type Opaque = *mut c_void;

/// What a hook answers when the real function cannot be found (`cudaErrorInitializationError`).
const CUDA_ERROR_INITIALIZATION: c_int = 3;

/// The CUDA runtime function a thread is in.
#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    caller: usize,
    /// A driver-level hook has recorded its allocation.
    recorded: bool,
}

thread_local! {
    static CALL: Cell<Option<Call>> = const { Cell::new(None) };
}

/// Name and caller of the outermost CUDA function the thread is in, for the driver call `name` made from `caller`.
/// The runtime call, if there is one, counts as recorded from here on.
pub fn outermost_call(name: &'static str, caller: usize) -> (&'static str, usize) {
    CALL.with(|call| match call.get() {
        Some(outer) => {
            call.set(Some(Call { recorded: true, ..outer }));
            (outer.name, outer.caller)
        }
        None => (name, caller),
    })
}

/// The caller of that function, for a driver call made from `caller`.
pub fn outermost_caller(caller: usize) -> usize {
    CALL.with(|call| call.get().map_or(caller, |outer| outer.caller))
}

/// Marks the thread as inside runtime function `name`; `None` if it already is inside another.
fn enter(name: &'static str, caller: usize) -> Option<Inside> {
    CALL.with(|call| {
        call.get().is_none().then(|| {
            call.set(Some(Call { name, caller, recorded: false }));
            Inside
        })
    })
}

struct Inside;

impl Inside {
    /// Whether a driver-level hook recorded the call.
    fn leave(self) -> bool {
        CALL.with(|call| call.take().is_some_and(|call| call.recorded))
    }
}

/// Finds a runtime function: in what follows in lookup order, or in a runtime loaded out of the global scope's sight.
fn find<F: Copy>(real: &Real<F>) -> Option<F> {
    real.get().or_else(|| {
        for soname in [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0"] {
            let found = symbols::in_loaded_library(soname, real.symbol());
            if !found.is_null() {
                real.learn(found);
                break;
            }
        }
        real.get()
    })
}

macro_rules! hook {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*), |$real:ident, $caller:ident| $body:expr) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;
            static REAL: Real<unsafe extern "C" fn($($type),*) -> c_int> = Real::next(c_name!($name));
            unsafe extern "C" fn body($($arg: $type,)* $caller: usize) -> c_int {
                let Some($real) = find(&REAL) else { return CUDA_ERROR_INITIALIZATION };
                // SAFETY: the runtime's own function gets its caller's arguments; what it writes is read only after it
                // succeeded.
                unsafe { $body }
            }
            entry_point!($count, $name, body);
            pub const HOOK: (&str, *const c_void) = (stringify!($name), $name as *const c_void);
        }
    };
}

macro_rules! takes {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*) => $kind:expr, $address:expr, $bytes:expr) => {
        hook!($name [$count] ($($arg: $type),*), |real, caller| {
            let inside = enter(stringify!($name), caller);
            let result = real($($arg),*);
            let recorded = inside.is_none_or(Inside::leave);
            if result == CUDA_SUCCESS && !recorded {
                return crate::quietly(|| record($kind, $address as u64, $bytes as u64, stringify!($name), caller))
                    .unwrap_or(result);
            }
            result
        });
    };
}

macro_rules! gives_back {
    ($name:ident [$count:tt] ($($arg:ident: $type:ty),*) => $space:expr, $address:expr) => {
        hook!($name [$count] ($($arg: $type),*), |real, _caller| {
            // What is known by this address is struck off here; the driver-level hook then finds nothing left to do.
            let _flight = limit::Flight::begin();
            let freed = crate::quietly(|| memory::freeing($space, $address as u64)).flatten();
            let result = real($($arg),*);
            crate::quietly(|| if result == CUDA_SUCCESS { memory::freed(freed) } else { memory::not_freed(freed) });
            result
        });
    };
}

static FREE: Real<unsafe extern "C" fn(u64) -> c_int> = Real::next(c"cudaFree");

/// Records what no driver-level hook has seen, and so no limit has been asked about: what is too much is freed again, and
/// the call answers that the card is full.
fn record(kind: DriverKind, address: u64, bytes: u64, name: &'static str, caller: usize) -> c_int {
    let too_much = limit::calls::taken_unseen(kind, bytes);
    if too_much
        && matches!(kind, Device | Managed)
        && let Some(free) = find(&FREE)
        // SAFETY: the runtime has just handed it out, and nobody has seen it.
        && unsafe { free(address) } == CUDA_SUCCESS
    {
        limit::released(info::current_device(), limit::footprint(kind, bytes));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory::allocated(kind, address, bytes, name, caller);
    CUDA_SUCCESS
}

/// `cudaPitchedPtr`
#[repr(C)]
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

/// `cudaChannelFormatDesc`: bits of each of four channels, and what they hold.
#[repr(C)]
struct ChannelFormat {
    bits: [c_int; 4],
    kind: c_int,
}

/// SAFETY: a valid format.
unsafe fn texel_bytes(format: *const ChannelFormat) -> usize {
    // SAFETY: the caller's word.
    unsafe { (*format).bits.iter().map(|&bits| bits.max(0) as usize).sum::<usize>().div_ceil(8) }
}

takes!(cudaMalloc[2](pointer: *mut u64, bytes: usize) => Device, *pointer, bytes);
takes!(cudaMallocPitch[4](pointer: *mut u64, pitch: *mut usize, width: usize, height: usize)
    => Device, *pointer, (*pitch).saturating_mul(height));
takes!(cudaMalloc3D[1](pitched: *mut PitchedPointer, extent: Extent)
    => Device, (*pitched).pointer, (*pitched).pitch.saturating_mul(extent.height).saturating_mul(extent.depth));
takes!(cudaMallocManaged[3](pointer: *mut u64, bytes: usize, flags: c_uint) => Managed, *pointer, bytes);
takes!(cudaMallocHost[2](pointer: *mut u64, bytes: usize) => Pinned, *pointer, bytes);
takes!(cudaHostAlloc[3](pointer: *mut u64, bytes: usize, flags: c_uint) => Pinned, *pointer, bytes);
takes!(cudaHostRegister[3](pointer: u64, bytes: usize, flags: c_uint) => Registered, pointer, bytes);
takes!(cudaMallocAsync[3](pointer: *mut u64, bytes: usize, stream: Opaque) => Async, *pointer, bytes);
takes!(cudaMallocAsync_ptsz[3](pointer: *mut u64, bytes: usize, stream: Opaque) => Async, *pointer, bytes);
takes!(cudaMallocFromPoolAsync[4](pointer: *mut u64, bytes: usize, pool: Opaque, stream: Opaque)
    => Async, *pointer, bytes);
takes!(cudaMallocFromPoolAsync_ptsz[4](pointer: *mut u64, bytes: usize, pool: Opaque, stream: Opaque)
    => Async, *pointer, bytes);
takes!(cudaMallocArray[5](array: *mut u64, format: *const ChannelFormat, width: usize, height: usize, flags: c_uint)
    => Array, *array, texel_bytes(format).saturating_mul(width).saturating_mul(height.max(1)));
// The extent is on the stack: three integer arguments.
takes!(cudaMalloc3DArray[3](array: *mut u64, format: *const ChannelFormat, extent: Extent, flags: c_uint)
    => Array, *array, texel_bytes(format).saturating_mul(extent.width)
        .saturating_mul(extent.height.max(1)).saturating_mul(extent.depth.max(1)));
takes!(cudaImportExternalMemory[2](memory: *mut u64, handle: *const sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC)
    => Imported, *memory, (*handle).size);
takes!(cudaIpcOpenMemHandle[2](pointer: *mut u64, handle: sys::CUipcMemHandle, flags: c_uint)
    => Imported, *pointer, info::range_size(*pointer));

hook!(cudaMemGetInfo[2](free: *mut usize, total: *mut usize), |real, _caller| {
    let result = real(free, total);
    if result == CUDA_SUCCESS {
        crate::quietly(|| limit::calls::show_memory(free, total));
    }
    result
});

/// Where `totalGlobalMem` lies in `cudaDeviceProp` since CUDA 10: behind the name, two identifiers and a mask.
const TOTAL_IN_PROPERTIES: usize = (256 + 16 + 8 + size_of::<c_uint>()).next_multiple_of(8);

macro_rules! tells_properties {
    ($name:ident) => {
        hook!($name[2](properties: *mut u8, device: c_int), |real, _caller| {
            let result = real(properties, device);
            if result == CUDA_SUCCESS && !properties.is_null() {
                crate::quietly(|| limit::calls::show_total(properties.add(TOTAL_IN_PROPERTIES).cast(), device));
            }
            result
        });
    };
}
tells_properties!(cudaGetDeviceProperties);
tells_properties!(cudaGetDeviceProperties_v2);

gives_back!(cudaFree[1](pointer: u64) => Space::Address, pointer);
gives_back!(cudaFreeAsync[2](pointer: u64, stream: Opaque) => Space::Address, pointer);
gives_back!(cudaFreeAsync_ptsz[2](pointer: u64, stream: Opaque) => Space::Address, pointer);
gives_back!(cudaFreeHost[1](pointer: u64) => Space::Address, pointer);
gives_back!(cudaHostUnregister[1](pointer: u64) => Space::Registered, pointer);
gives_back!(cudaFreeArray[1](array: u64) => Space::Array, array);
gives_back!(cudaFreeMipmappedArray[1](array: u64) => Space::Array, array);
gives_back!(cudaDestroyExternalMemory[1](memory: u64) => Space::Address, memory);
gives_back!(cudaIpcCloseMemHandle[1](pointer: u64) => Space::Address, pointer);

/// memlab's function of this name.
pub fn hook_of(name: &[u8]) -> Option<*const c_void> {
    HOOKS.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, address)| *address)
}

/// Symbol and address of every runtime hook.
pub const HOOKS: &[(&str, *const c_void)] = &[
    cudaMalloc::HOOK,
    cudaMallocPitch::HOOK,
    cudaMalloc3D::HOOK,
    cudaMallocManaged::HOOK,
    cudaMallocHost::HOOK,
    cudaHostAlloc::HOOK,
    cudaHostRegister::HOOK,
    cudaMallocAsync::HOOK,
    cudaMallocAsync_ptsz::HOOK,
    cudaMallocFromPoolAsync::HOOK,
    cudaMallocFromPoolAsync_ptsz::HOOK,
    cudaMallocArray::HOOK,
    cudaMalloc3DArray::HOOK,
    cudaImportExternalMemory::HOOK,
    cudaIpcOpenMemHandle::HOOK,
    cudaMemGetInfo::HOOK,
    cudaGetDeviceProperties::HOOK,
    cudaGetDeviceProperties_v2::HOOK,
    cudaFree::HOOK,
    cudaFreeAsync::HOOK,
    cudaFreeAsync_ptsz::HOOK,
    cudaFreeHost::HOOK,
    cudaHostUnregister::HOOK,
    cudaFreeArray::HOOK,
    cudaFreeMipmappedArray::HOOK,
    cudaDestroyExternalMemory::HOOK,
    cudaIpcCloseMemHandle::HOOK,
];
