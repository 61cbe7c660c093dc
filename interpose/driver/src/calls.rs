//! Calls from memlab to the driver's functions, bypassing its hooks.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use super::types::{Access, Location, Properties};
use interpose_base::symbols::Real;

/// `CUDA_SUCCESS`, also the runtime's.
pub const CUDA_SUCCESS: c_int = 0;
pub const CUDA_ERROR_OUT_OF_MEMORY: c_int = 2;
/// Result of a hook that cannot find the real function: the driver is not initialised then.
pub const CUDA_ERROR_NOT_INITIALIZED: c_int = 3;

/// Result code of the driver other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code(pub c_int);

impl Code {
    pub const INVALID_VALUE: Self = Self(1);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_INITIALIZED: Self = Self(3);
    pub const NOT_SUPPORTED: Self = Self(801);

    /// The result code that a hook returns.
    pub fn of(answer: Result<(), Self>) -> c_int {
        answer.map_or_else(|code| code.0, |()| 0)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the driver writes a pointer to a static string, or null.
        unsafe {
            if let Some(get) = GET_ERROR_NAME.get()
                && get(self.0, &mut name) == 0
                && !name.is_null()
            {
                return write!(f, "{}", CStr::from_ptr(name).to_string_lossy());
            }
        }
        write!(f, "CUDA error {}", self.0)
    }
}

/// `CUdevice_attribute`
const VMM: c_int = 102;
const GPU_DIRECT_RDMA_WITH_VMM: c_int = 110;
const HOST_NUMA_ID: c_int = 134;
const HOST_NUMA_VMM: c_int = 141;
const HOST_VMM: c_int = 145;

type Context = *mut c_void;
pub type Stream = *mut c_void;
pub type Event = *mut c_void;
pub type Pool = *mut c_void;

macro_rules! functions {
    ($($static:ident = $symbol:literal ($($type:ty),*);)*) => {$(
        static $static: Real<unsafe extern "C" fn($($type),*) -> c_int> = Real::in_library(c"libcuda.so.1", $symbol);
    )*};
}

functions! {
    GET_ERROR_NAME = c"cuGetErrorName" (c_int, *mut *const c_char);
    DEVICE_COUNT = c"cuDeviceGetCount" (*mut c_int);
    DEVICE_ATTRIBUTE = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    PRIMARY_STATE = c"cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int);
    PRIMARY_RETAIN = c"cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    PRIMARY_RELEASE = c"cuDevicePrimaryCtxRelease_v2" (c_int);
    CTX_GET_DEVICE = c"cuCtxGetDevice" (*mut c_int);
    DEVICE_NAME = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
    DEVICE_MEMORY = c"cuDeviceTotalMem_v2" (*mut usize, c_int);
    DEVICE_BUS_ID = c"cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    MEMORY_INFO = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    ADDRESS_RANGE = c"cuMemGetAddressRange_v2" (*mut u64, *mut usize, u64);
    CTX_SET_CURRENT = c"cuCtxSetCurrent" (Context);
    CTX_GET_CURRENT = c"cuCtxGetCurrent" (*mut Context);
    CTX_SYNCHRONIZE = c"cuCtxSynchronize" ();
    CAPTURE_MODE = c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
    IS_CAPTURING = c"cuStreamIsCapturing" (Stream, *mut c_int);
    GRANULARITY = c"cuMemGetAllocationGranularity" (*mut usize, *const Properties, c_int);
    RESERVE = c"cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
    ADDRESS_FREE = c"cuMemAddressFree" (u64, usize);
    CREATE = c"cuMemCreate" (*mut u64, usize, *const Properties, u64);
    RELEASE = c"cuMemRelease" (u64);
    MAP = c"cuMemMap" (u64, usize, usize, u64, u64);
    UNMAP = c"cuMemUnmap" (u64, usize);
    SET_ACCESS = c"cuMemSetAccess" (u64, usize, *const Access, usize);
    HOST_REGISTER = c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    HOST_UNREGISTER = c"cuMemHostUnregister" (*mut c_void);
    STREAM_CREATE = c"cuStreamCreate" (*mut Stream, c_uint);
    STREAM_DESTROY = c"cuStreamDestroy_v2" (Stream);
    STREAM_SYNCHRONIZE = c"cuStreamSynchronize" (Stream);
    EVENT_CREATE = c"cuEventCreate" (*mut Event, c_uint);
    EVENT_DESTROY = c"cuEventDestroy_v2" (Event);
    EVENT_RECORD = c"cuEventRecord" (Event, Stream);
    EVENT_SYNCHRONIZE = c"cuEventSynchronize" (Event);
    COPY_TO_HOST = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Stream);
    COPY_TO_DEVICE = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Stream);
    COPY_ON_DEVICE = c"cuMemcpyDtoDAsync_v2" (u64, u64, usize, Stream);
    HOST_ALLOC = c"cuMemHostAlloc" (*mut u64, usize, c_uint);
    HOST_FREE = c"cuMemFreeHost" (u64);
    FREE_ASYNC = c"cuMemFreeAsync" (u64, Stream);
    DEFAULT_POOL = c"cuDeviceGetDefaultMemPool" (*mut Pool, c_int);
    CURRENT_POOL = c"cuDeviceGetMemPool" (*mut Pool, c_int);
    POOL_ATTRIBUTE = c"cuMemPoolGetAttribute" (Pool, c_int, *mut c_void);
    TRIM_POOL = c"cuMemPoolTrimTo" (Pool, usize);
    GRAPH_ATTRIBUTE = c"cuDeviceGetGraphMemAttribute" (c_int, c_int, *mut c_void);
}

/// Calls a driver function; if it is missing, returns the error of an uninitialised driver.
macro_rules! call {
    ($static:ident($($arg:expr),*)) => {
        match $static.get() {
            // SAFETY: the signature is that of cuda.h; the driver checks the arguments and writes only to variables of
            // the caller's frame.
            Some(function) => match unsafe { function($($arg),*) } {
                0 => Ok(()),
                code => Err(Code(code)),
            },
            None => Err(Code::NOT_INITIALIZED),
        }
    };
}

/// Returns a device's attribute; 0 if the driver does not know it.
fn attribute(attribute: c_int, device: i32) -> c_int {
    let mut value = 0;
    call!(DEVICE_ATTRIBUTE(&mut value, attribute, device)).map_or(0, |()| value)
}

impl Properties {
    /// Properties of memory as `cuMemAlloc` allocates it.
    pub fn on_device(device: i32) -> Self {
        let rdma = attribute(GPU_DIRECT_RDMA_WITH_VMM, device) == 1;
        Self {
            kind: Self::PINNED,
            handle_types: 0,
            location: Location::device(device),
            win32: 0,
            flags: [0, u8::from(rdma), 0, 0, 0, 0, 0, 0],
        }
    }

    /// Host memory near `device`, which the device reaches once it is mapped; `None` without driver support.
    pub fn on_host(device: i32) -> Option<Self> {
        let location = if attribute(HOST_NUMA_VMM, device) == 1 {
            Location { kind: Location::HOST_NUMA, id: attribute(HOST_NUMA_ID, device).max(0) }
        } else if attribute(HOST_VMM, device) == 1 {
            Location { kind: Location::HOST, id: 0 }
        } else {
            return None;
        };
        Some(Self { kind: Self::PINNED, handle_types: 0, location, win32: 0, flags: [0; 8] })
    }
}

/// Returns true if the device supports virtual memory management.
pub fn can_map(device: i32) -> bool {
    attribute(VMM, device) == 1
}

pub fn device_count() -> i32 {
    let mut count = 0;
    call!(DEVICE_COUNT(&mut count)).map_or(0, |()| count)
}

/// Message for the user when a context cannot be used.
pub fn context_error(code: Code) -> String {
    format!("the program's CUDA context cannot be used ({code})")
}

pub fn set_context(context: u64) -> Result<(), Code> {
    call!(CTX_SET_CURRENT(context as Context))
}

/// Makes a context current on this thread until dropped.
pub struct Current(Context);

impl Current {
    pub fn switch(context: u64) -> Result<Self, Code> {
        let mut before = ptr::null_mut();
        call!(CTX_GET_CURRENT(&mut before))?;
        set_context(context)?;
        Ok(Self(before))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let _ = call!(CTX_SET_CURRENT(self.0));
    }
}

pub fn synchronize() -> Result<(), Code> {
    call!(CTX_SYNCHRONIZE())
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: c_int = 2;

/// Sets the calls that captures on other threads forbid to this thread, and returns the previous mode.
///
/// Returns 0, the strictest, if the driver does not return it.
fn exchange_capture_mode(mut mode: c_int) -> c_int {
    call!(CAPTURE_MODE(&mut mode)).map_or(0, |()| mode)
}

/// Lets this thread make calls that a capture on another thread would forbid.
pub fn relax_captures() {
    exchange_capture_mode(RELAXED);
}

/// Relaxes captures until dropped.
pub struct RelaxedCaptures(c_int);

impl RelaxedCaptures {
    pub fn begin() -> Self {
        Self(exchange_capture_mode(RELAXED))
    }

    /// Returns true if the program had relaxed the mode before, as PyTorch does around allocations while it captures.
    pub fn were_relaxed(&self) -> bool {
        self.0 == RELAXED
    }
}

impl Drop for RelaxedCaptures {
    fn drop(&mut self) {
        exchange_capture_mode(self.0);
    }
}

/// Returns true while a stream is being captured, validly or not; false if the driver does not know the stream.
pub fn is_capturing(stream: u64) -> bool {
    let mut status = 0;
    call!(IS_CAPTURING(stream as Stream, &mut status)).is_ok_and(|()| status != 0)
}

/// Granularity of physical memory allocations.
pub fn granularity(properties: &Properties) -> Result<u64, Code> {
    const MINIMUM: c_int = 0;
    let mut bytes = 0;
    call!(GRANULARITY(&mut bytes, properties, MINIMUM))?;
    Ok(bytes as u64)
}

pub fn reserve(bytes: u64, alignment: u64) -> Result<u64, Code> {
    let mut address = 0;
    call!(RESERVE(&mut address, bytes as usize, alignment as usize, 0, 0))?;
    Ok(address)
}

pub fn free_address(address: u64, bytes: u64) {
    let _ = call!(ADDRESS_FREE(address, bytes as usize));
}

pub fn create(bytes: u64, properties: &Properties) -> Result<u64, Code> {
    let mut handle = 0;
    call!(CREATE(&mut handle, bytes as usize, properties, 0))?;
    Ok(handle)
}

pub fn release(handle: u64) {
    let _ = call!(RELEASE(handle));
}

pub fn map(address: u64, bytes: u64, handle: u64) -> Result<(), Code> {
    call!(MAP(address, bytes as usize, 0, handle, 0))
}

pub fn unmap(address: u64, bytes: u64) -> Result<(), Code> {
    call!(UNMAP(address, bytes as usize))
}

pub fn set_access(address: u64, bytes: u64, access: &[Access]) -> Result<(), Code> {
    if access.is_empty() {
        return Ok(());
    }
    call!(SET_ACCESS(address, bytes as usize, access.as_ptr(), access.len()))
}

/// Pins host memory for all contexts.
pub fn pin(address: *mut u8, bytes: usize) -> Result<(), Code> {
    const PORTABLE: c_uint = 1;
    call!(HOST_REGISTER(address.cast(), bytes, PORTABLE))
}

pub fn unpin(address: *mut u8) {
    let _ = call!(HOST_UNREGISTER(address.cast()));
}

/// Creates a stream that does not synchronise with others.
pub fn create_stream() -> Result<Stream, Code> {
    const NON_BLOCKING: c_uint = 1;
    let mut stream = ptr::null_mut();
    call!(STREAM_CREATE(&mut stream, NON_BLOCKING))?;
    Ok(stream)
}

pub fn destroy_stream(stream: Stream) {
    let _ = call!(STREAM_DESTROY(stream));
}

pub fn synchronize_stream(stream: Stream) -> Result<(), Code> {
    call!(STREAM_SYNCHRONIZE(stream))
}

pub fn create_event() -> Result<Event, Code> {
    const BLOCKING_SYNC_DISABLE_TIMING: c_uint = 1 | 2;
    let mut event = ptr::null_mut();
    call!(EVENT_CREATE(&mut event, BLOCKING_SYNC_DISABLE_TIMING))?;
    Ok(event)
}

pub fn destroy_event(event: Event) {
    let _ = call!(EVENT_DESTROY(event));
}

pub fn record(event: Event, stream: Stream) -> Result<(), Code> {
    call!(EVENT_RECORD(event, stream))
}

pub fn wait_for(event: Event) -> Result<(), Code> {
    call!(EVENT_SYNCHRONIZE(event))
}

pub fn copy_to_host(host: *mut u8, address: u64, bytes: u64, stream: Stream) -> Result<(), Code> {
    call!(COPY_TO_HOST(host.cast(), address, bytes as usize, stream))
}

pub fn copy_to_device(address: u64, host: *const u8, bytes: u64, stream: Stream) -> Result<(), Code> {
    call!(COPY_TO_DEVICE(address, host.cast(), bytes as usize, stream))
}

pub fn copy_on_device(to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Code> {
    call!(COPY_ON_DEVICE(to, from, bytes as usize, stream))
}

/// The device of the current context.
pub fn current_device() -> Result<i32, Code> {
    let mut device = 0;
    call!(CTX_GET_DEVICE(&mut device))?;
    Ok(device)
}

/// The current context; 0 if none is current.
pub fn current_context() -> u64 {
    let mut context = ptr::null_mut();
    call!(CTX_GET_CURRENT(&mut context)).map_or(0, |()| context as u64)
}

/// Returns true if the device's primary context is in use.
pub fn primary_is_active(device: i32) -> Result<bool, Code> {
    let (mut flags, mut active) = (0, 0);
    call!(PRIMARY_STATE(device, &mut flags, &mut active))?;
    Ok(active != 0)
}

/// Retains the device's primary context.
pub fn retain_primary(device: i32) -> Result<u64, Code> {
    let mut context = ptr::null_mut();
    call!(PRIMARY_RETAIN(&mut context, device))?;
    Ok(context as u64)
}

/// Undoes a [`retain_primary`].
pub fn release_primary(device: i32) {
    let _ = call!(PRIMARY_RELEASE(device));
}

/// Base and bytes of the allocation that contains `address`.
pub fn address_range(address: u64) -> Result<(u64, u64), Code> {
    let (mut base, mut bytes) = (0, 0);
    call!(ADDRESS_RANGE(&mut base, &mut bytes, address))?;
    Ok((base, bytes as u64))
}

/// Free and total bytes of the current device.
pub fn memory_info() -> Result<(u64, u64), Code> {
    let (mut free, mut total) = (0, 0);
    call!(MEMORY_INFO(&mut free, &mut total))?;
    Ok((free as u64, total as u64))
}

/// Bytes of a device.
pub fn device_memory(device: i32) -> Result<u64, Code> {
    let mut total = 0;
    call!(DEVICE_MEMORY(&mut total, device))?;
    Ok(total as u64)
}

pub fn device_name(device: i32) -> Result<String, Code> {
    let mut text: [c_char; 128] = [0; 128];
    call!(DEVICE_NAME(text.as_mut_ptr(), text.len() as c_int - 1, device))?;
    Ok(text_of(&text))
}

/// The PCI address of a device.
pub fn device_bus_id(device: i32) -> Result<String, Code> {
    let mut text: [c_char; 128] = [0; 128];
    call!(DEVICE_BUS_ID(text.as_mut_ptr(), text.len() as c_int - 1, device))?;
    Ok(text_of(&text))
}

/// Text written by the driver, up to the first NUL.
fn text_of(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Pinned host memory that all contexts and devices reach.
pub fn allocate_pinned(bytes: usize) -> Result<u64, Code> {
    const PORTABLE_AND_MAPPED: c_uint = 1 | 2;
    let mut address = 0;
    call!(HOST_ALLOC(&mut address, bytes, PORTABLE_AND_MAPPED))?;
    Ok(address)
}

/// Frees memory from [`allocate_pinned`].
pub fn free_pinned(address: u64) {
    let _ = call!(HOST_FREE(address));
}

/// Frees stream-ordered memory, in the order of `stream`.
pub fn free_async(address: u64, stream: Stream) {
    let _ = call!(FREE_ASYNC(address, stream));
}

/// The device's default pool.
pub fn default_pool(device: i32) -> Result<Pool, Code> {
    let mut pool = ptr::null_mut();
    call!(DEFAULT_POOL(&mut pool, device))?;
    Ok(pool)
}

/// The pool from which a device's stream-ordered allocations currently come.
pub fn current_pool(device: i32) -> Result<Pool, Code> {
    let mut pool = ptr::null_mut();
    call!(CURRENT_POOL(&mut pool, device))?;
    Ok(pool)
}

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
pub const POOL_RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`
pub const POOL_USED: c_int = 7;

/// One of the two attributes above, which are 64-bit numbers.
pub fn pool_attribute(pool: Pool, which: c_int) -> Result<u64, Code> {
    let mut value = 0u64;
    call!(POOL_ATTRIBUTE(pool, which, (&raw mut value).cast()))?;
    Ok(value)
}

/// Makes a pool release its unused memory.
pub fn trim_pool(pool: Pool) {
    let _ = call!(TRIM_POOL(pool, 0));
}

/// Bytes that a device's graphs have reserved.
pub fn reserved_by_graphs(device: i32) -> Result<u64, Code> {
    const RESERVED: c_int = 2; // CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
    let mut bytes = 0u64;
    call!(GRAPH_ATTRIBUTE(device, RESERVED, (&raw mut bytes).cast()))?;
    Ok(bytes)
}
