//! Calls the driver as the real runtime does: opens libcuda.so.1, looks up `cuGetProcAddress_v2`, and queries it for
//! every function by plain name.
//!
//! A hook of `dlsym` or `cuGetProcAddress` therefore sees every call of this runtime.

use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use crate::code::{Answer, Error};

/// Returns the simulated runtime version: that of the libcudart that the program also loaded, else CUDA 13.
pub fn version() -> i32 {
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let loaded = |name: &std::ffi::CStr| {
            // SAFETY: the name is NUL-terminated; RTLD_NOLOAD only looks, and keeping the handle open is harmless.
            !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.is_null()
        };
        if loaded(c"libcudart.so.12") && !loaded(c"libcudart.so.13") { 12_080 } else { 13_020 }
    })
}

/// Returns true if callers were compiled for CUDA 12, where some functions have other arguments under the same name.
pub fn is_12() -> bool {
    version() < 13_000
}

/// `cudaIpcMemHandle_t` and `cudaIpcEventHandle_t`: 64 bytes, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle {
    bytes: [u64; 8],
}

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut i32) -> i32;

fn get_proc_address() -> Result<GetProcAddress, Error> {
    // SAFETY: both names are NUL-terminated.
    let function = unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return Err(Error::INSUFFICIENT_DRIVER);
        }
        libc::dlsym(library, c"cuGetProcAddress_v2".as_ptr())
    };
    if function.is_null() {
        return Err(Error::INSUFFICIENT_DRIVER);
    }
    // SAFETY: that is the type of cuGetProcAddress_v2 in cuda.h.
    Ok(unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(function) })
}

/// Returns the address of a driver function by plain name, or the reason that it is missing
/// (`CUdriverProcAddressQueryResult`).
pub fn entry_point(name: *const c_char, version: i32, flags: u64) -> Result<Result<*mut c_void, i32>, Error> {
    let get = get_proc_address()?;
    let (mut function, mut status) = (std::ptr::null_mut(), 1);
    // SAFETY: callers pass NUL-terminated names; the other pointers are to locals.
    let code = unsafe { get(name, &mut function, version, flags, &mut status) };
    Ok(if code == 0 && !function.is_null() { Ok(function) } else { Err(status) })
}

/// Declares the driver functions that the runtime uses: a table of addresses, and one method for each.
///
/// `@` names the version to request where the function of the runtime's own version has another signature.
macro_rules! driver_functions {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(@ $version:literal)?;)*) => {
        /// The driver's functions.
        #[allow(non_snake_case)]
        pub struct Driver {
            $($name: Option<unsafe extern "C" fn($($type),*) -> i32>,)*
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Driver {
            fn load(flags: u64) -> Result<Driver, Error> {
                Ok(Driver { $($name: {
                    #[allow(unused_mut, unused_assignments)]
                    let mut version = version();
                    $(version = $version;)?
                    let name = CString::new(stringify!($name)).map_err(|_| Error::UNKNOWN)?;
                    // SAFETY: the declared type is that of cuda.h for the version asked for.
                    entry_point(name.as_ptr(), version, flags)?.ok().map(|function| unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> i32>(function)
                    })
                },)* })
            }

            $(
                /// # Safety
                /// The requirements of the driver function of this name.
                pub unsafe fn $name(&self, $($arg: $type),*) -> Answer {
                    let function = self.$name.ok_or(Error::NOT_SUPPORTED)?;
                    // SAFETY: the caller's promises are passed on unchanged.
                    match unsafe { function($($arg),*) } {
                        0 => Ok(()),
                        code => Err(Error(code)),
                    }
                }
            )*
        }
    };
}

fn table(loaded: &'static OnceLock<Result<Driver, Error>>, flags: u64) -> Result<&'static Driver, Error> {
    let driver = loaded.get_or_init(|| {
        let driver = Driver::load(flags)?;
        // SAFETY: no pointers are passed.
        unsafe { driver.cuInit(0) }?;
        Ok(driver)
    });
    driver.as_ref().map_err(|error| *error)
}

/// Returns the driver, with functions that take stream 0 as the legacy default stream.
pub fn legacy() -> Result<&'static Driver, Error> {
    static LOADED: OnceLock<Result<Driver, Error>> = OnceLock::new();
    table(&LOADED, 0)
}

/// Returns the driver, with functions that take stream 0 as the thread's own
/// (`CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`).
pub fn per_thread() -> Result<&'static Driver, Error> {
    static LOADED: OnceLock<Result<Driver, Error>> = OnceLock::new();
    table(&LOADED, 2)
}

driver_functions! {
    fn cuInit(flags: u32);
    fn cuDriverGetVersion(version: *mut i32);
    fn cuDeviceGetCount(count: *mut i32);
    fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32);
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: i32);
    fn cuDeviceTotalMem(bytes: *mut usize, device: i32);
    fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    fn cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32);
    fn cuDeviceGetByPCIBusId(device: *mut i32, id: *const c_char);
    fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32);
    fn cuDeviceGetP2PAttribute(value: *mut i32, attribute: i32, from: i32, to: i32);
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
    fn cuDevicePrimaryCtxReset(device: i32);
    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32);
    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32);
    fn cuCtxGetCurrent(context: *mut usize);
    fn cuCtxSetCurrent(context: usize);
    fn cuCtxSynchronize() @ 2000;
    fn cuCtxSetLimit(limit: u32, value: usize);
    fn cuCtxGetLimit(value: *mut usize, limit: u32);
    fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32);
    fn cuCtxEnablePeerAccess(peer: usize, flags: u32);
    fn cuCtxDisablePeerAccess(peer: usize);
    fn cuMemGetInfo(free: *mut usize, total: *mut usize);
    fn cuMemAlloc(to: *mut u64, bytes: usize);
    fn cuMemAllocPitch(to: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32);
    fn cuMemAllocManaged(to: *mut u64, bytes: usize, flags: u32);
    fn cuMemFree(address: u64);
    fn cuMemHostAlloc(to: *mut u64, bytes: usize, flags: u32);
    fn cuMemFreeHost(address: u64);
    fn cuMemHostRegister(address: u64, bytes: usize, flags: u32);
    fn cuMemHostUnregister(address: u64);
    fn cuMemHostGetDevicePointer(to: *mut u64, address: u64, flags: u32);
    fn cuMemHostGetFlags(flags: *mut u32, address: u64);
    fn cuMemAllocAsync(to: *mut u64, bytes: usize, stream: usize);
    fn cuMemAllocFromPoolAsync(to: *mut u64, bytes: usize, pool: usize, stream: usize);
    fn cuMemFreeAsync(address: u64, stream: usize);
    fn cuMemPoolCreate(pool: *mut usize, properties: *const u8);
    fn cuMemPoolDestroy(pool: usize);
    fn cuMemPoolTrimTo(pool: usize, keep: usize);
    fn cuMemPoolSetAttribute(pool: usize, attribute: i32, value: *const u64);
    fn cuMemPoolGetAttribute(pool: usize, attribute: i32, value: *mut u64);
    fn cuMemPoolSetAccess(pool: usize, access: *const u8, count: usize);
    fn cuMemPoolGetAccess(flags: *mut i32, pool: usize, location: *const u64);
    fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: i32);
    fn cuDeviceGetMemPool(pool: *mut usize, device: i32);
    fn cuDeviceSetMemPool(device: i32, pool: usize);
    fn cuMemcpy(to: u64, from: u64, bytes: usize);
    fn cuMemcpyHtoD(to: u64, from: u64, bytes: usize);
    fn cuMemcpyDtoH(to: u64, from: u64, bytes: usize);
    fn cuMemcpyDtoD(to: u64, from: u64, bytes: usize);
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize);
    fn cuMemcpyHtoDAsync(to: u64, from: u64, bytes: usize, stream: usize);
    fn cuMemcpyDtoHAsync(to: u64, from: u64, bytes: usize, stream: usize);
    fn cuMemcpyDtoDAsync(to: u64, from: u64, bytes: usize, stream: usize);
    fn cuMemcpyBatchAsync(
        to: *const u64, from: *const u64, sizes: *const usize, count: usize, attributes: *const u8,
        indices: *const usize, attribute_count: usize, stream: usize
    ) @ 13000;
    fn cuMemcpyWithAttributesAsync(to: u64, from: u64, bytes: usize, attributes: *const u8, stream: usize);
    fn cuMemGetDefaultMemPool(pool: *mut usize, location: *const u64, kind: i32);
    fn cuMemGetMemPool(pool: *mut usize, location: *const u64, kind: i32);
    fn cuMemPoolExportToShareableHandle(to: *mut u8, pool: usize, kind: i32, flags: u64);
    fn cuMemRangeGetAttribute(to: *mut u8, bytes: usize, attribute: i32, address: u64, count: usize);
    fn cuMemcpyPeer(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize);
    fn cuMemcpyPeerAsync(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, stream: usize);
    fn cuMemcpy3D(what: *const u8);
    fn cuMemcpy3DAsync(what: *const u8, stream: usize);
    fn cuMemsetD8(to: u64, value: u8, count: usize);
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize);
    fn cuMemsetD2D8(to: u64, pitch: usize, value: u8, width: usize, height: usize);
    fn cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: usize);
    fn cuMemPrefetchAsync(address: u64, bytes: usize, location: u64, flags: u32, stream: usize) @ 12020;
    fn cuMemAdvise(address: u64, bytes: usize, advice: i32, location: u64) @ 12020;
    fn cuPointerGetAttributes(count: u32, which: *const i32, to: *const *mut u8, address: u64);
    fn cuArray3DCreate(array: *mut usize, shape: *const u8);
    fn cuArray3DGetDescriptor(shape: *mut u8, array: usize);
    fn cuArrayDestroy(array: usize);
    fn cuMipmappedArrayCreate(array: *mut usize, shape: *const u8, levels: u32);
    fn cuMipmappedArrayGetLevel(array: *mut usize, mipmap: usize, level: u32);
    fn cuMipmappedArrayDestroy(mipmap: usize);
    fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64);
    fn cuIpcOpenMemHandle(to: *mut u64, handle: IpcHandle, flags: u32);
    fn cuIpcCloseMemHandle(address: u64);
    fn cuIpcGetEventHandle(handle: *mut IpcHandle, event: usize);
    fn cuIpcOpenEventHandle(event: *mut usize, handle: IpcHandle);
    fn cuStreamCreate(stream: *mut usize, flags: u32);
    fn cuStreamCreateWithPriority(stream: *mut usize, flags: u32, priority: i32);
    fn cuStreamDestroy(stream: usize);
    fn cuStreamGetPriority(stream: usize, priority: *mut i32);
    fn cuStreamGetFlags(stream: usize, flags: *mut u32);
    fn cuStreamGetId(stream: usize, id: *mut u64);
    fn cuStreamGetDevice(stream: usize, device: *mut i32) @ 12080;
    fn cuStreamQuery(stream: usize);
    fn cuStreamSynchronize(stream: usize);
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    fn cuStreamAddCallback(stream: usize, callback: usize, data: usize, flags: u32);
    fn cuLaunchHostFunc(stream: usize, function: usize, data: usize) @ 10000;
    fn cuStreamAttachMemAsync(stream: usize, address: u64, bytes: usize, flags: u32);
    fn cuStreamCopyAttributes(to: usize, from: usize);
    fn cuStreamGetAttribute(stream: usize, attribute: i32, value: *mut u8);
    fn cuStreamSetAttribute(stream: usize, attribute: i32, value: *const u8);
    fn cuStreamBeginCapture(stream: usize, mode: i32);
    fn cuStreamBeginCaptureToGraph(stream: usize, graph: usize, on: *const usize, edges: *const u8, n: usize, mode: i32);
    fn cuStreamEndCapture(stream: usize, graph: *mut usize);
    fn cuStreamIsCapturing(stream: usize, status: *mut i32);
    fn cuStreamGetCaptureInfo(
        stream: usize, status: *mut i32, id: *mut u64, graph: *mut usize, on: *mut usize, edges: *mut usize, n: *mut usize
    ) @ 12030;
    fn cuStreamUpdateCaptureDependencies(stream: usize, on: *const usize, edges: *const u8, n: usize, flags: u32) @ 12030;
    fn cuThreadExchangeStreamCaptureMode(mode: *mut i32);
    fn cuEventCreate(event: *mut usize, flags: u32);
    fn cuEventDestroy(event: usize);
    fn cuEventRecord(event: usize, stream: usize);
    fn cuEventRecordWithFlags(event: usize, stream: usize, flags: u32);
    fn cuEventQuery(event: usize);
    fn cuEventSynchronize(event: usize);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize);
    fn cuGraphCreate(graph: *mut usize, flags: u32);
    fn cuGraphDestroy(graph: usize);
    fn cuGraphClone(clone: *mut usize, graph: usize);
    fn cuGraphInstantiate(executable: *mut usize, graph: usize, flags: u64) @ 12000;
    fn cuGraphInstantiateWithParams(executable: *mut usize, graph: usize, params: *mut u8);
    fn cuGraphExecDestroy(executable: usize);
    fn cuGraphExecGetFlags(executable: usize, flags: *mut u64);
    fn cuGraphExecUpdate(executable: usize, graph: usize, result: *mut u8) @ 12000;
    fn cuGraphUpload(executable: usize, stream: usize);
    fn cuGraphLaunch(executable: usize, stream: usize);
    fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize);
    fn cuGraphGetRootNodes(graph: usize, nodes: *mut usize, count: *mut usize);
    fn cuGraphNodeGetContainingGraph(node: usize, graph: *mut usize);
    fn cuGraphNodeGetType(node: usize, kind: *mut i32);
    fn cuGraphNodeGetDependencies(node: usize, nodes: *mut usize, edges: *mut u8, count: *mut usize) @ 12030;
    fn cuGraphAddDependencies(graph: usize, from: *const usize, to: *const usize, edges: *const u8, n: usize) @ 12030;
    fn cuGraphAddNode(node: *mut usize, graph: usize, on: *const usize, edges: *const u8, n: usize, params: *mut u8) @ 12030;
    fn cuGraphAddKernelNode(node: *mut usize, graph: usize, on: *const usize, n: usize, params: *const u8);
    fn cuGraphAddEmptyNode(node: *mut usize, graph: usize, on: *const usize, n: usize);
    fn cuGraphAddHostNode(node: *mut usize, graph: usize, on: *const usize, n: usize, params: *const u8);
    fn cuGraphAddChildGraphNode(node: *mut usize, graph: usize, on: *const usize, n: usize, child: usize);
    fn cuGraphAddMemcpyNode(node: *mut usize, graph: usize, on: *const usize, n: usize, params: *const u8, context: usize);
    fn cuGraphAddMemsetNode(node: *mut usize, graph: usize, on: *const usize, n: usize, params: *const u8, context: usize);
    fn cuGraphAddMemAllocNode(node: *mut usize, graph: usize, on: *const usize, n: usize, params: *mut u8);
    fn cuGraphAddMemFreeNode(node: *mut usize, graph: usize, on: *const usize, n: usize, address: u64);
    fn cuGraphDestroyNode(node: usize);
    fn cuGraphDebugDotPrint(graph: usize, path: *const c_char, flags: u32);
    fn cuGraphConditionalHandleCreate(handle: *mut u64, graph: usize, context: usize, default: u32, flags: u32);
    fn cuDeviceGraphMemTrim(device: i32);
    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: *mut u64);
    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: i32, value: *const u64);
    fn cuUserObjectCreate(object: *mut usize, data: usize, destroy: usize, references: u32, flags: u32);
    fn cuUserObjectRetain(object: usize, count: u32);
    fn cuUserObjectRelease(object: usize, count: u32);
    fn cuGraphRetainUserObject(graph: usize, object: usize, count: u32, flags: u32);
    fn cuGraphReleaseUserObject(graph: usize, object: usize, count: u32);
    fn cuLibraryLoadData(
        library: *mut usize, code: *const u8, jit: *mut i32, jit_values: *mut usize, jit_count: u32, options: *mut i32,
        values: *mut usize, count: u32
    );
    fn cuLibraryLoadFromFile(
        library: *mut usize, path: *const c_char, jit: *mut i32, jit_values: *mut usize, jit_count: u32,
        options: *mut i32, values: *mut usize, count: u32
    );
    fn cuLibraryUnload(library: usize);
    fn cuLibraryGetKernel(kernel: *mut usize, library: usize, name: *const c_char);
    fn cuLibraryGetKernelCount(count: *mut u32, library: usize);
    fn cuLibraryEnumerateKernels(kernels: *mut usize, count: u32, library: usize);
    fn cuLibraryGetGlobal(to: *mut u64, bytes: *mut usize, library: usize, name: *const c_char);
    fn cuLibraryGetManaged(to: *mut u64, bytes: *mut usize, library: usize, name: *const c_char);
    fn cuLibraryGetUnifiedFunction(function: *mut usize, library: usize, name: *const c_char);
    fn cuKernelGetFunction(function: *mut usize, kernel: usize);
    fn cuKernelGetAttribute(value: *mut i32, attribute: i32, kernel: usize, device: i32);
    fn cuKernelSetAttribute(attribute: i32, value: i32, kernel: usize, device: i32);
    fn cuKernelGetName(name: *mut *const c_char, kernel: usize);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: usize, size: i32, shared: usize);
    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: usize, blocks: i32, size: i32);
    fn cuOccupancyMaxPotentialClusterSize(size: *mut i32, function: usize, config: *const u8);
    fn cuOccupancyMaxActiveClusters(clusters: *mut i32, function: usize, config: *const u8);
    fn cuLaunchKernel(
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: usize, params: *mut usize, extra: *mut usize
    );
    fn cuLaunchKernelEx(config: *const u8, function: usize, params: *mut usize, extra: *mut usize);
    fn cuLaunchCooperativeKernel(
        function: usize, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: usize, params: *mut usize
    );
}
