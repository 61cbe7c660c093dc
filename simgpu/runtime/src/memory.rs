//! Allocates, frees, copies and fills memory: each function is one call of the driver.

use crate::api::{answer, api, api_without_context};
use crate::code::{Answer, Error};
use crate::current::{context, current};
use crate::driver_calls::{Driver, IpcHandle, is_12};

/// `cudaMemcpyKind`.
const HOST_TO_DEVICE: i32 = 1;
const DEVICE_TO_HOST: i32 = 2;
const DEVICE_TO_DEVICE: i32 = 3;

/// # Safety
/// The ranges are valid, as the program promises.
pub unsafe fn copy(cu: &Driver, to: u64, from: u64, bytes: usize, kind: i32) -> Answer {
    // SAFETY: the caller vouches for the ranges.
    unsafe {
        match kind {
            _ if bytes == 0 => Ok(()),
            HOST_TO_DEVICE => cu.cuMemcpyHtoD(to, from, bytes),
            DEVICE_TO_HOST => cu.cuMemcpyDtoH(to, from, bytes),
            DEVICE_TO_DEVICE => cu.cuMemcpyDtoD(to, from, bytes),
            0 | 4 => cu.cuMemcpy(to, from, bytes),
            _ => Err(Error(21)), // cudaErrorInvalidMemcpyDirection
        }
    }
}

/// # Safety
/// The ranges are valid, as the program promises.
pub unsafe fn copy_async(cu: &Driver, to: u64, from: u64, bytes: usize, kind: i32, stream: usize) -> Answer {
    // SAFETY: the caller vouches for the ranges.
    unsafe {
        match kind {
            _ if bytes == 0 => Ok(()),
            HOST_TO_DEVICE => cu.cuMemcpyHtoDAsync(to, from, bytes, stream),
            DEVICE_TO_HOST => cu.cuMemcpyDtoHAsync(to, from, bytes, stream),
            DEVICE_TO_DEVICE => cu.cuMemcpyDtoDAsync(to, from, bytes, stream),
            0 | 4 => cu.cuMemcpyAsync(to, from, bytes, stream),
            _ => Err(Error(21)), // cudaErrorInvalidMemcpyDirection
        }
    }
}

/// `cudaExtent`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `cudaPitchedPtr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pitched {
    pub address: u64,
    pub pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// `cudaHostRegisterFlags` and `cudaHostAllocFlags` have the driver's values.
const MAPPED: u32 = 2;

api! {
    fn cudaMemGetInfo(cu; free: *mut usize, total: *mut usize) {
        cu.cuMemGetInfo(free, total)?;
    }

    fn cudaMalloc(cu; to: *mut u64, bytes: usize) {
        answer(to, 0)?;
        if bytes > 0 {
            cu.cuMemAlloc(to, bytes)?;
        }
    }

    fn cudaMallocManaged(cu; to: *mut u64, bytes: usize, flags: u32) {
        cu.cuMemAllocManaged(to, bytes, flags)?;
    }

    fn cudaMallocPitch(cu; to: *mut u64, pitch: *mut usize, width: usize, height: usize) {
        cu.cuMemAllocPitch(to, pitch, width, height, 16)?;
    }

    fn cudaMalloc3D(cu; to: *mut Pitched, extent: Extent) {
        let Extent { width, height, depth } = extent;
        let (mut address, mut pitch) = (0, 0);
        cu.cuMemAllocPitch(&mut address, &mut pitch, width, height * depth, 16)?;
        answer(to, Pitched { address, pitch, width, height })?;
    }

    fn cudaFree(cu; address: u64) {
        if address != 0 {
            cu.cuMemFree(address)?;
        }
    }

    fn cudaMallocHost(cu; to: *mut u64, bytes: usize) {
        cu.cuMemHostAlloc(to, bytes, MAPPED)?;
    }

    fn cudaHostAlloc(cu; to: *mut u64, bytes: usize, flags: u32) {
        cu.cuMemHostAlloc(to, bytes, flags)?;
    }

    fn cudaFreeHost(cu; address: u64) {
        if address != 0 {
            cu.cuMemFreeHost(address)?;
        }
    }

    fn cudaHostRegister(cu; address: u64, bytes: usize, flags: u32) {
        cu.cuMemHostRegister(address, bytes, flags)?;
    }

    fn cudaHostUnregister(cu; address: u64) {
        cu.cuMemHostUnregister(address)?;
    }

    fn cudaHostGetDevicePointer(cu; to: *mut u64, address: u64, flags: u32) {
        cu.cuMemHostGetDevicePointer(to, address, flags)?;
    }

    fn cudaHostGetFlags(cu; to: *mut u32, address: u64) {
        cu.cuMemHostGetFlags(to, address)?;
    }

    fn cudaMemcpy | cudaMemcpy_ptds (cu; to: u64, from: u64, bytes: usize, kind: i32) {
        copy(cu, to, from, bytes, kind)?;
    }

    fn cudaMemcpyAsync | cudaMemcpyAsync_ptsz (cu; to: u64, from: u64, bytes: usize, kind: i32, stream: usize) {
        copy_async(cu, to, from, bytes, kind, stream)?;
    }

    fn cudaMemcpyPeer(cu; to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize) {
        cu.cuMemcpyPeer(to, context(cu, to_device)?, from, context(cu, from_device)?, bytes)?;
    }

    fn cudaMemcpyPeerAsync(cu; to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize, stream: usize) {
        cu.cuMemcpyPeerAsync(to, context(cu, to_device)?, from, context(cu, from_device)?, bytes, stream)?;
    }

    fn cudaMemcpyBatchAsync | cudaMemcpyBatchAsync_ptsz (
        cu; to: *const u64, from: *const u64, sizes: *const usize, count: usize, attributes: *const u8,
        indices: *const usize, attribute_count: usize, failed_or_stream: usize, stream: usize,
    ) {
        // CUDA 12 has an argument before the stream: the index of the failed copy.
        let stream = if is_12() { stream } else { failed_or_stream };
        cu.cuMemcpyBatchAsync(to, from, sizes, count, attributes, indices, attribute_count, stream)?;
    }

    fn cudaMemcpyWithAttributesAsync | cudaMemcpyWithAttributesAsync_ptsz (
        cu; to: u64, from: u64, bytes: usize, attributes: *const u8, stream: usize,
    ) {
        cu.cuMemcpyWithAttributesAsync(to, from, bytes, attributes, stream)?;
    }

    fn cudaMemRangeGetAttribute(cu; to: *mut u8, bytes: usize, attribute: i32, address: u64, count: usize) {
        cu.cuMemRangeGetAttribute(to, bytes, attribute, address, count)?;
    }

    fn cudaMemset | cudaMemset_ptds (cu; to: u64, value: i32, bytes: usize) {
        if bytes > 0 {
            cu.cuMemsetD8(to, value as u8, bytes)?;
        }
    }

    fn cudaMemsetAsync | cudaMemsetAsync_ptsz (cu; to: u64, value: i32, bytes: usize, stream: usize) {
        if bytes > 0 {
            cu.cuMemsetD8Async(to, value as u8, bytes, stream)?;
        }
    }

    fn cudaMemset2D | cudaMemset2D_ptds (cu; to: u64, pitch: usize, value: i32, width: usize, height: usize) {
        cu.cuMemsetD2D8(to, pitch, value as u8, width, height)?;
    }

    fn cudaMemset2DAsync | cudaMemset2DAsync_ptsz (
        cu; to: u64, pitch: usize, value: i32, width: usize, height: usize, stream: usize,
    ) {
        cu.cuMemsetD2D8Async(to, pitch, value as u8, width, height, stream)?;
    }

    fn cudaMemPrefetchAsync | cudaMemPrefetchAsync_ptsz (
        cu; address: u64, bytes: usize, location: u64, flags_or_stream: usize, stream: usize,
    ) {
        if is_12() {
            // CUDA 12: (address, bytes, device, stream)
            cu.cuMemPrefetchAsync(address, bytes, on_device(location as i32), 0, flags_or_stream)?;
        } else {
            cu.cuMemPrefetchAsync(address, bytes, location, flags_or_stream as u32, stream)?;
        }
    }

    fn cudaMemPrefetchAsync_v2 | cudaMemPrefetchAsync_v2_ptsz (
        cu; address: u64, bytes: usize, location: u64, flags: u32, stream: usize,
    ) {
        cu.cuMemPrefetchAsync(address, bytes, location, flags, stream)?;
    }

    fn cudaMemAdvise(cu; address: u64, bytes: usize, advice: i32, location: u64) {
        cu.cuMemAdvise(address, bytes, advice, if is_12() { on_device(location as i32) } else { location })?;
    }

    fn cudaMemAdvise_v2(cu; address: u64, bytes: usize, advice: i32, location: u64) {
        cu.cuMemAdvise(address, bytes, advice, location)?;
    }

    fn cudaPointerGetAttributes(cu; to: *mut u8, address: u64) {
        pointer_attributes(cu, to, address)?;
    }

    fn cudaIpcGetMemHandle(cu; handle: *mut IpcHandle, address: u64) {
        cu.cuIpcGetMemHandle(handle, address)?;
    }

    fn cudaIpcOpenMemHandle(cu; to: *mut u64, handle: IpcHandle, flags: u32) {
        cu.cuIpcOpenMemHandle(to, handle, flags)?;
    }

    fn cudaIpcCloseMemHandle(cu; address: u64) {
        cu.cuIpcCloseMemHandle(address)?;
    }

    fn cudaMallocAsync | cudaMallocAsync_ptsz (cu; to: *mut u64, bytes: usize, stream: usize) {
        answer(to, 0)?;
        if bytes > 0 {
            cu.cuMemAllocAsync(to, bytes, stream)?;
        }
    }

    fn cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz (
        cu; to: *mut u64, bytes: usize, pool: usize, stream: usize,
    ) {
        cu.cuMemAllocFromPoolAsync(to, bytes, pool, stream)?;
    }

    fn cudaFreeAsync | cudaFreeAsync_ptsz (cu; address: u64, stream: usize) {
        if address != 0 {
            cu.cuMemFreeAsync(address, stream)?;
        }
    }
}

api_without_context! {
    fn cudaMemPoolCreate(cu; pool: *mut usize, properties: *const u8) {
        cu.cuMemPoolCreate(pool, properties)?;
    }

    fn cudaMemPoolDestroy(cu; pool: usize) {
        cu.cuMemPoolDestroy(pool)?;
    }

    fn cudaMemPoolTrimTo(cu; pool: usize, keep: usize) {
        cu.cuMemPoolTrimTo(pool, keep)?;
    }

    fn cudaMemPoolSetAttribute(cu; pool: usize, attribute: i32, value: *const u64) {
        cu.cuMemPoolSetAttribute(pool, attribute, value)?;
    }

    fn cudaMemPoolGetAttribute(cu; pool: usize, attribute: i32, value: *mut u64) {
        cu.cuMemPoolGetAttribute(pool, attribute, value)?;
    }

    fn cudaMemPoolSetAccess(cu; pool: usize, access: *const u8, count: usize) {
        cu.cuMemPoolSetAccess(pool, access, count)?;
    }

    fn cudaMemPoolGetAccess(cu; flags: *mut i32, pool: usize, location: *const u64) {
        cu.cuMemPoolGetAccess(flags, pool, location)?;
    }

    fn cudaMemPoolExportToShareableHandle(cu; to: *mut u8, pool: usize, kind: i32, flags: u32) {
        cu.cuMemPoolExportToShareableHandle(to, pool, kind, flags.into())?;
    }

    fn cudaMemGetDefaultMemPool(cu; pool: *mut usize, location: *const u64, kind: i32) {
        cu.cuMemGetDefaultMemPool(pool, location, kind)?;
    }

    fn cudaMemGetMemPool(cu; pool: *mut usize, location: *const u64, kind: i32) {
        cu.cuMemGetMemPool(pool, location, kind)?;
    }

    fn cudaDeviceGetDefaultMemPool(cu; pool: *mut usize, device: i32) {
        cu.cuDeviceGetDefaultMemPool(pool, device)?;
    }

    fn cudaDeviceGetMemPool(cu; pool: *mut usize, device: i32) {
        cu.cuDeviceGetMemPool(pool, device)?;
    }

    fn cudaDeviceSetMemPool(cu; device: i32, pool: usize) {
        cu.cuDeviceSetMemPool(device, pool)?;
    }
}

/// Returns the `CUmemLocation` of a device ordinal, or of the host for `cudaCpuDeviceId` (-1).
fn on_device(device: i32) -> u64 {
    const DEVICE: u64 = 1;
    const HOST: u64 = 2;
    if device < 0 { HOST } else { DEVICE | (device as u64) << 32 }
}

/// Writes a `cudaPointerAttributes`: type, device, device address, host address; CUDA 13 added 64 reserved bytes.
///
/// # Safety
/// `to` has room for one.
unsafe fn pointer_attributes(cu: &Driver, to: *mut u8, address: u64) -> Answer {
    const UNREGISTERED: i32 = 0;
    const HOST: i32 = 1;
    const DEVICE: i32 = 2;
    const MANAGED: i32 = 3;
    if to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let (mut kind, mut managed, mut device, mut on_device, mut on_host) = (0i32, 0u8, 0i32, 0u64, 0u64);
    // CUpointer_attribute: memory type, is managed, device ordinal, device pointer, host pointer
    let which = [2, 8, 9, 3, 4];
    let answers: [*mut u8; 5] = [
        (&raw mut kind).cast(),
        &raw mut managed,
        (&raw mut device).cast(),
        (&raw mut on_device).cast(),
        (&raw mut on_host).cast(),
    ];
    // SAFETY: each answer has room for the type of its attribute; the caller vouches for `to`.
    unsafe {
        cu.cuPointerGetAttributes(which.len() as u32, which.as_ptr(), answers.as_ptr(), address)?;
        let kind = match kind {
            _ if managed != 0 => MANAGED,
            1 => HOST,
            2 => DEVICE,
            _ => UNREGISTERED,
        };
        if kind == UNREGISTERED {
            (device, on_host) = (-2, address);
        }
        to.write_bytes(0, if is_12() { 24 } else { 88 });
        to.cast::<i32>().write(kind);
        to.add(4).cast::<i32>().write(device);
        to.add(8).cast::<u64>().write(on_device);
        to.add(16).cast::<u64>().write(on_host);
    }
    Ok(())
}

/// Returns the primary context of the thread's device, for graph nodes that name one.
pub fn own_context(cu: &Driver) -> Result<usize, Error> {
    context(cu, current())
}
