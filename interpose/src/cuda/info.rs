//! Small questions to the driver, asked from inside hooks: which device, how large, what is it called.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;

use cudarc::driver::sys;

use super::driver::CUDA_SUCCESS;
use crate::mover::driver::Current;
use crate::symbols::Real;

macro_rules! driver_functions {
    ($($name:ident = $symbol:literal ($($type:ty),*);)*) => {$(
        static $name: Real<unsafe extern "C" fn($($type),*) -> c_int> = Real::in_library(c"libcuda.so.1", $symbol);
    )*};
}

driver_functions! {
    CTX_GET_DEVICE = c"cuCtxGetDevice" (*mut c_int);
    CTX_GET_CURRENT = c"cuCtxGetCurrent" (*mut *mut c_void);
    PRIMARY_STATE = c"cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int);
    PRIMARY_RETAIN = c"cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    PRIMARY_RELEASE = c"cuDevicePrimaryCtxRelease_v2" (c_int);
    ADDRESS_RANGE = c"cuMemGetAddressRange_v2" (*mut u64, *mut usize, u64);
    DEVICE_NAME = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
    DEVICE_MEMORY = c"cuDeviceTotalMem_v2" (*mut usize, c_int);
    DEVICE_BUS_ID = c"cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
}

/// The current context's device; 0 where there is no context, as for the runtime.
pub fn current_device() -> i32 {
    let mut device = 0;
    let Some(get) = CTX_GET_DEVICE.get() else { return 0 };
    // SAFETY: the driver writes one int.
    let result = unsafe { get(&mut device) };
    if result == CUDA_SUCCESS { device } else { 0 }
}

/// The current context; 0 where there is none.
pub fn current_context() -> u64 {
    let mut context = ptr::null_mut();
    let Some(get) = CTX_GET_CURRENT.get() else { return 0 };
    // SAFETY: the driver writes one pointer.
    let result = unsafe { get(&mut context) };
    if result == CUDA_SUCCESS { context as u64 } else { 0 }
}

/// The device of a context.
pub fn device_of(context: u64) -> Option<i32> {
    let current = Current::switch(context).ok()?;
    let mut device = 0;
    // SAFETY: the driver writes one int.
    let result = unsafe { CTX_GET_DEVICE.get()?(&mut device) };
    drop(current);
    (result == CUDA_SUCCESS).then_some(device)
}

/// The device's primary context, if it is in use; else 0.
pub fn primary_context(device: i32) -> u64 {
    let (Some(state), Some(retain), Some(release)) = (PRIMARY_STATE.get(), PRIMARY_RETAIN.get(), PRIMARY_RELEASE.get())
    else {
        return 0;
    };
    let (mut flags, mut active, mut context) = (0, 0, ptr::null_mut());
    // SAFETY: the driver writes to the variables; retaining an active context does not change it, and is undone.
    unsafe {
        if state(device, &mut flags, &mut active) == CUDA_SUCCESS
            && active != 0
            && retain(&mut context, device) == CUDA_SUCCESS
        {
            release(device);
            return context as u64;
        }
    }
    0
}

/// Whether the process uses a device: whether a primary context is active.
pub fn is_in_use() -> bool {
    const DEVICES: i32 = 64;
    let Some(state) = PRIMARY_STATE.get() else { return false };
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver writes to the variables, and refuses where it is not initialised or has no such device.
    let mut known = (0..DEVICES)
        .map_while(|device| unsafe { (state(device, &mut flags, &mut active) == CUDA_SUCCESS).then_some(active != 0) });
    known.any(|active| active)
}

/// Bytes of the allocation that contains `pointer`; 0 where the driver does not say.
pub fn range_size(pointer: u64) -> u64 {
    let (mut base, mut bytes) = (0, 0);
    let Some(range) = ADDRESS_RANGE.get() else { return 0 };
    // SAFETY: the driver checks the pointer and writes to the variables.
    let result = unsafe { range(&mut base, &mut bytes, pointer) };
    if result == CUDA_SUCCESS { bytes as u64 } else { 0 }
}

pub struct DeviceFacts {
    pub name: String,
    pub total_bytes: u64,
    pub bus_id: Option<String>,
}

pub fn device_facts(device: i32) -> DeviceFacts {
    let mut text: [c_char; 128] = [0; 128];
    let length = text.len() as c_int - 1;
    let mut total = 0;
    // SAFETY: the driver writes at most `length` characters, NUL-terminated, and one size.
    unsafe {
        let named = DEVICE_NAME.get().is_some_and(|name| name(text.as_mut_ptr(), length, device) == CUDA_SUCCESS);
        let name = if named { CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned() } else { "GPU".into() };
        if let Some(memory) = DEVICE_MEMORY.get() {
            memory(&mut total, device);
        }
        text.fill(0);
        let placed = DEVICE_BUS_ID.get().is_some_and(|bus| bus(text.as_mut_ptr(), length, device) == CUDA_SUCCESS);
        let bus_id = placed.then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned());
        DeviceFacts { name, total_bytes: total as u64, bus_id }
    }
}

/// Bytes from one row of pitched memory to the next, as every device of today lays it out.
pub fn pitch(width: usize) -> usize {
    const ALIGNMENT: usize = 512;
    width.checked_next_multiple_of(ALIGNMENT).unwrap_or(width)
}

/// Bytes of one channel of a `CUarray_format`, which is passed as a plain integer.
fn format_bytes(format: u32) -> u64 {
    match format {
        0x02 | 0x09 | 0x10 => 2, // 16-bit integers and floats
        0x03 | 0x0a | 0x20 => 4, // 32-bit integers and floats
        _ => 1,                  // bytes, and formats of video and textures, whose size is a guess
    }
}

/// SAFETY: the descriptor of a `cuArrayCreate`.
pub unsafe fn array_bytes(shape: *const sys::CUDA_ARRAY_DESCRIPTOR) -> u64 {
    // SAFETY: the caller's word.
    unsafe {
        let format = shape.byte_add(offset_of!(sys::CUDA_ARRAY_DESCRIPTOR, Format)).cast::<u32>().read();
        let (width, height, channels) = ((*shape).Width, (*shape).Height, (*shape).NumChannels);
        volume(width, height, 1).saturating_mul(u64::from(channels)).saturating_mul(format_bytes(format))
    }
}

/// SAFETY: the descriptor of a `cuArray3DCreate`.
pub unsafe fn array3d_bytes(shape: *const sys::CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    // SAFETY: the caller's word.
    unsafe {
        let format = shape.byte_add(offset_of!(sys::CUDA_ARRAY3D_DESCRIPTOR, Format)).cast::<u32>().read();
        let (width, height, depth) = ((*shape).Width, (*shape).Height, (*shape).Depth);
        volume(width, height, depth)
            .saturating_mul(u64::from((*shape).NumChannels))
            .saturating_mul(format_bytes(format))
    }
}

/// Each level has half the width, height and depth of the one before.
///
/// SAFETY: the descriptor of a `cuMipmappedArrayCreate`.
pub unsafe fn mipmapped_bytes(shape: *const sys::CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> u64 {
    // SAFETY: the caller's word.
    let (base, dimensions) = unsafe {
        let dimensions = [(*shape).Width, (*shape).Height, (*shape).Depth].into_iter().filter(|&size| size > 1).count();
        (array3d_bytes(shape), dimensions)
    };
    (0..levels.min(32)).map(|level| base >> (level as usize * dimensions).min(63)).sum()
}

/// A height or depth of 0 means that the array has no such dimension.
fn volume(width: usize, height: usize, depth: usize) -> u64 {
    (width as u64).saturating_mul(height.max(1) as u64).saturating_mul(depth.max(1) as u64)
}
