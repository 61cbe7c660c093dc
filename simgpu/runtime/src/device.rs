//! Devices.

use std::ffi::c_char;

use crate::api::{answer, api, api_without_context};
use crate::code::{Answer, Error};
use crate::current::{context, current, forget, set};
use crate::driver_calls::{Driver, is_12, version};

fn count(cu: &Driver) -> Result<i32, Error> {
    let mut count = 0;
    // SAFETY: the answer goes to a local.
    unsafe { cu.cuDeviceGetCount(&mut count) }?;
    Ok(count)
}

/// Writes a C struct field by field, with C's alignment.
struct Fields {
    bytes: Vec<u8>,
}

impl Fields {
    fn int(&mut self, value: i32) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend(value.to_ne_bytes());
    }

    fn size(&mut self, value: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.bytes.extend(value.to_ne_bytes());
    }
}

/// Bytes of `cudaDeviceProp` in CUDA 12; CUDA 13 removed fields (driver_types.h of both).
const PROPERTIES_12: usize = 1032;
const PROPERTIES_13: usize = 1008;

/// Bytes of CUDA 11's `cudaDeviceProp`, a prefix of CUDA 12's.
const PROPERTIES_11: usize = 712;

fn properties(cu: &Driver, device: i32, twelve: bool) -> Result<Vec<u8>, Error> {
    let (mut name, mut uuid, mut memory) = ([0; 256], [0; 16], 0);
    // SAFETY: the answers go to locals of the sizes given.
    unsafe {
        cu.cuDeviceGetName(name.as_mut_ptr(), 256, device)?;
        cu.cuDeviceGetUuid(&mut uuid, device)?;
        cu.cuDeviceTotalMem(&mut memory, device)?;
    }
    let attribute = |number: i32| {
        let mut value = 0;
        // SAFETY: the answer goes to a local.
        unsafe { cu.cuDeviceGetAttribute(&mut value, number, device) }.map_or(0, |()| value)
    };
    let mut to = Fields { bytes: name.map(|c: c_char| c as u8).to_vec() };
    to.bytes.extend(uuid);
    to.bytes.extend([0; 8]); // luid
    to.int(0); // luidDeviceNodeMask
    // The numbers are those of CUdevice_attribute; the order is that of the struct's fields.
    let int = |to: &mut Fields, numbers: &[i32]| numbers.iter().for_each(|number| to.int(attribute(*number)));
    to.size(memory);
    to.size(attribute(8) as usize); // sharedMemPerBlock
    int(&mut to, &[12, 10]); // regsPerBlock, warpSize
    to.size(attribute(11) as usize); // memPitch
    int(&mut to, &[1, 2, 3, 4, 5, 6, 7]); // maxThreadsPerBlock, maxThreadsDim, maxGridSize
    if twelve {
        int(&mut to, &[13]); // clockRate
    }
    to.size(attribute(9) as usize); // totalConstMem
    int(&mut to, &[75, 76]); // major, minor
    to.size(attribute(14) as usize); // textureAlignment
    to.size(attribute(51) as usize); // texturePitchAlignment
    if twelve {
        int(&mut to, &[15]); // deviceOverlap
    }
    int(&mut to, &[16]); // multiProcessorCount
    if twelve {
        int(&mut to, &[17]); // kernelExecTimeoutEnabled
    }
    int(&mut to, &[18, 19]); // integrated, canMapHostMemory
    if twelve {
        int(&mut to, &[20]); // computeMode
    }
    int(&mut to, &[21, 77]); // maxTexture1D, maxTexture1DMipmap
    if twelve {
        int(&mut to, &[69]); // maxTexture1DLinear
    }
    int(&mut to, &[22, 23, 73, 74, 70, 71, 72, 45, 46]); // maxTexture2D, …Mipmap, …Linear, …Gather
    int(&mut to, &[24, 25, 26, 47, 48, 49, 52, 42, 43]); // maxTexture3D, …Alt, maxTextureCubemap, maxTexture1DLayered
    int(&mut to, &[27, 28, 29, 53, 54]); // maxTexture2DLayered, maxTextureCubemapLayered
    int(&mut to, &[55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68]); // surfaces
    to.size(attribute(30) as usize); // surfaceAlignment
    // concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount, unifiedAddressing
    int(&mut to, &[31, 32, 33, 34, 50, 35, 40, 41]);
    if twelve {
        int(&mut to, &[36]); // memoryClockRate
    }
    // memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported,
    // globalL1CacheSupported, localL1CacheSupported
    int(&mut to, &[37, 38, 108, 39, 78, 79, 80]);
    to.size(attribute(81) as usize); // sharedMemPerMultiprocessor
    int(&mut to, &[82, 83, 84, 85, 86]); // regsPerMultiprocessor, managedMemory, isMultiGpuBoard, …GroupID, host atomics
    if twelve {
        int(&mut to, &[87]); // singleToDoublePrecisionPerfRatio
    }
    int(&mut to, &[88, 89, 90, 91, 95]); // pageable, concurrentManaged, preemption, registered host pointers, cooperative
    if twelve {
        int(&mut to, &[96]); // cooperativeMultiDeviceLaunch
    }
    to.size(attribute(97) as usize); // sharedMemPerBlockOptin
    int(&mut to, &[100, 101, 106, 109]); // host page tables, direct managed, maxBlocksPerMultiProcessor, access window
    to.size(attribute(111) as usize); // reservedSharedMemPerBlock
    int(&mut to, &[99, 112, 113, 114, 115, 116, 117, 118, 119, 121, 125, 120, 129]);
    let size = if twelve { PROPERTIES_12 } else { PROPERTIES_13 };
    to.bytes.resize(size, 0);
    Ok(to.bytes)
}

/// # Safety
/// `to` has room for `properties`.
unsafe fn write_properties(to: *mut u8, properties: &[u8]) -> Answer {
    if to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller vouches for room.
    unsafe { std::ptr::copy_nonoverlapping(properties.as_ptr(), to, properties.len()) };
    Ok(())
}

api_without_context! {
    fn cudaGetDeviceCount(cu; to: *mut i32) {
        answer(to, count(cu)?)?;
    }

    fn cudaGetDevice(_cu; to: *mut i32) {
        answer(to, current())?;
    }

    fn cudaSetDevice(cu; device: i32) {
        if !(0..count(cu)?).contains(&device) {
            return Err(Error::INVALID_DEVICE);
        }
        set(cu, device)?;
    }

    fn cudaInitDevice(cu; device: i32, _device_flags: u32, _flags: u32) {
        context(cu, device)?;
    }

    fn cudaSetValidDevices(_cu; _devices: *const i32, _count: i32) {}

    fn cudaChooseDevice(_cu; to: *mut i32, _properties: *const u8) {
        answer(to, 0)?;
    }

    fn cudaDriverGetVersion(cu; to: *mut i32) {
        cu.cuDriverGetVersion(to)?;
    }

    fn cudaRuntimeGetVersion(_cu; to: *mut i32) {
        answer(to, version())?;
    }

    fn cudaGetDeviceProperties(cu; to: *mut u8, device: i32) {
        let properties = properties(cu, device, is_12())?;
        // In CUDA 12, only callers compiled with CUDA 11 use this name.
        write_properties(to, if is_12() { &properties[..PROPERTIES_11] } else { &properties })?;
    }

    fn cudaGetDeviceProperties_v2(cu; to: *mut u8, device: i32) {
        write_properties(to, &properties(cu, device, true)?)?;
    }

    fn cudaDeviceGetAttribute(cu; to: *mut i32, attribute: i32, device: i32) {
        cu.cuDeviceGetAttribute(to, attribute, device)?;
    }

    fn cudaDeviceGetPCIBusId(cu; to: *mut c_char, len: i32, device: i32) {
        cu.cuDeviceGetPCIBusId(to, len, device)?;
    }

    fn cudaDeviceGetByPCIBusId(cu; to: *mut i32, id: *const c_char) {
        cu.cuDeviceGetByPCIBusId(to, id)?;
    }

    fn cudaDeviceCanAccessPeer(cu; to: *mut i32, device: i32, peer: i32) {
        cu.cuDeviceCanAccessPeer(to, device, peer)?;
    }

    fn cudaDeviceGetP2PAttribute(cu; to: *mut i32, attribute: i32, from: i32, to_device: i32) {
        cu.cuDeviceGetP2PAttribute(to, attribute, from, to_device)?;
    }

    fn cudaSetDeviceFlags(cu; flags: u32) {
        cu.cuDevicePrimaryCtxSetFlags(current(), flags)?;
    }

    fn cudaGetDeviceFlags(cu; to: *mut u32) {
        let mut active = 0;
        cu.cuDevicePrimaryCtxGetState(current(), to, &mut active)?;
    }

    fn cudaDeviceReset(cu) {
        let device = current();
        cu.cuDevicePrimaryCtxReset(device)?;
        cu.cuCtxSetCurrent(0)?;
        forget(device);
        crate::kernel::forget_libraries();
    }

    fn cudaThreadExit(_cu) {}

    fn cudaProfilerStart(_cu) {}

    fn cudaProfilerStop(_cu) {}
}

api! {
    fn cudaDeviceSynchronize(cu) {
        cu.cuCtxSynchronize()?;
    }

    fn cudaThreadSynchronize(cu) {
        cu.cuCtxSynchronize()?;
    }

    fn cudaDeviceSetLimit(cu; limit: u32, value: usize) {
        cu.cuCtxSetLimit(limit, value)?;
    }

    fn cudaDeviceGetLimit(cu; to: *mut usize, limit: u32) {
        cu.cuCtxGetLimit(to, limit)?;
    }

    fn cudaDeviceGetCacheConfig(_cu; to: *mut i32) {
        answer(to, 0)?;
    }

    fn cudaDeviceSetCacheConfig(_cu; _config: i32) {}

    fn cudaDeviceGetSharedMemConfig(_cu; to: *mut i32) {
        answer(to, 0)?;
    }

    fn cudaDeviceSetSharedMemConfig(_cu; _config: i32) {}

    fn cudaDeviceGetStreamPriorityRange(cu; least: *mut i32, greatest: *mut i32) {
        cu.cuCtxGetStreamPriorityRange(least, greatest)?;
    }

    fn cudaCtxResetPersistingL2Cache(_cu) {}

    fn cudaDeviceFlushGPUDirectRDMAWrites(_cu; _target: i32, _scope: i32) {}

    fn cudaDeviceEnablePeerAccess(cu; peer: i32, flags: u32) {
        cu.cuCtxEnablePeerAccess(context(cu, peer)?, flags)?;
    }

    fn cudaDeviceDisablePeerAccess(cu; peer: i32) {
        cu.cuCtxDisablePeerAccess(context(cu, peer)?)?;
    }
}
