//! The CUDA driver: safe wrappers around the functions that loading needs, resolved at run time.
//!
//! Every function that returns a [`Result`] fails with [`Error::Failed`], whose text names the driver's function and its
//! result. All but [`Device::open`], [`Device::push`] and [`Device::make_current`] need the device's context to be current
//! on the calling thread.

#![allow(clippy::missing_errors_doc, reason = "the module says it once for all functions")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};
use std::{mem, ptr};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUstream};

use crate::error::{Error, Result, size};

/// Result code of the driver.
///
/// Not an enum, because newer drivers may return other values.
type Code = c_int;

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $name:literal ($($type:ty),*);)*) => {
        /// The driver's functions.
        struct Functions {
            $($(#[$doc])* $field: unsafe extern "C" fn($($type),*) -> Code,)*
        }

        impl Functions {
            fn load() -> std::result::Result<Self, String> {
                let library = open_library()?;
                Ok(Self { $($field: {
                    let address = find(library, $name)?;
                    // SAFETY: the type is that of this function in cuda.h.
                    unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Code>(address) }
                },)* })
            }
        }

        /// Names of the functions, for errors.
        #[allow(non_upper_case_globals, dead_code)]
        mod names {
            $(pub const $field: &std::ffi::CStr = $name;)*
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    error_name = c"cuGetErrorName" (Code, *mut *const c_char);
    device_count = c"cuDeviceGetCount" (*mut c_int);
    retain = c"cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
    release = c"cuDevicePrimaryCtxRelease_v2" (CUdevice);
    current = c"cuCtxGetCurrent" (*mut CUcontext);
    push = c"cuCtxPushCurrent_v2" (CUcontext);
    pop = c"cuCtxPopCurrent_v2" (*mut CUcontext);
    priorities = c"cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
    create_stream = c"cuStreamCreateWithPriority" (*mut CUstream, c_uint, c_int);
    destroy_stream = c"cuStreamDestroy_v2" (CUstream);
    synchronize = c"cuStreamSynchronize" (CUstream);
    wait = c"cuStreamWaitEvent" (CUstream, CUevent, c_uint);
    capture_of = c"cuStreamGetCaptureInfo_v2"
        (CUstream, *mut c_int, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize);
    capture_mode = c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
    create_event = c"cuEventCreate" (*mut CUevent, c_uint);
    destroy_event = c"cuEventDestroy_v2" (CUevent);
    record = c"cuEventRecord" (CUevent, CUstream);
    wait_on_host = c"cuEventSynchronize" (CUevent);
    elapsed = c"cuEventElapsedTime" (*mut f32, CUevent, CUevent);
    allocate = c"cuMemAlloc_v2" (*mut CUdeviceptr, usize);
    free = c"cuMemFree_v2" (CUdeviceptr);
    pin = c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unpin = c"cuMemHostUnregister" (*mut c_void);
    copy_to_device = c"cuMemcpyHtoDAsync_v2" (CUdeviceptr, *const c_void, usize, CUstream);
    copy_to_host = c"cuMemcpyDtoH_v2" (*mut c_void, CUdeviceptr, usize);
    copy_to_host_later = c"cuMemcpyDtoHAsync_v2" (*mut c_void, CUdeviceptr, usize, CUstream);
}

fn open_library() -> std::result::Result<*mut c_void, String> {
    // SAFETY: a NUL-terminated name; the initialisers that run are those of the CUDA driver.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err("there is no CUDA driver here (libcuda.so.1 was not found)".into());
    }
    Ok(library)
}

fn find(library: *mut c_void, name: &CStr) -> std::result::Result<*mut c_void, String> {
    // SAFETY: `library` is open and never closed, and `name` is NUL-terminated.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("the CUDA driver has no {}: install a newer driver", name.to_string_lossy()));
    }
    Ok(address)
}

fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
    let load = || {
        let functions = Functions::load()?;
        // SAFETY: cuInit has no preconditions and may be called repeatedly.
        match unsafe { (functions.init)(0) } {
            0 => Ok(functions),
            code => Err(text(&functions, names::init, code)),
        }
    };
    FUNCTIONS.get_or_init(load).as_ref().map_err(|why| Error::Failed(why.clone()))
}

#[cold]
fn text(functions: &Functions, call: &CStr, code: Code) -> String {
    let mut name: *const c_char = ptr::null();
    // SAFETY: the driver writes a pointer to a static string, or null.
    let name = unsafe {
        match (functions.error_name)(code, &mut name) {
            0 if !name.is_null() => CStr::from_ptr(name).to_string_lossy().into_owned(),
            _ => format!("CUDA error {code}"),
        }
    };
    format!("{} failed with {name}", call.to_string_lossy())
}

/// Calls a function of `$functions`.
///
/// An error contains the function's name.
macro_rules! call {
    ($functions:expr, $function:ident($($arg:expr),*)) => {{
        let functions: &Functions = $functions;
        // SAFETY: the types are those of cuda.h, the driver checks handles, and it writes only to locals of the caller.
        match unsafe { (functions.$function)($($arg),*) } {
            0 => Ok(()),
            code => Err(Error::Failed(text(functions, names::$function, code))),
        }
    }};
}

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`
const PORTABLE_DEVICEMAP: c_uint = 1 | 2;

/// Primary context of a device, shared with PyTorch.
pub struct Device {
    functions: &'static Functions,
    ordinal: CUdevice,
    context: CUcontext,
}

// SAFETY: the driver allows every thread to use a context handle.
unsafe impl Send for Device {}
// SAFETY: the driver synchronizes calls of several threads on one context.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device with this CUDA ordinal, and retains its primary context.
    pub fn open(ordinal: i32) -> Result<Arc<Self>> {
        let functions = functions()?;
        let mut count = 0;
        call!(functions, device_count(&mut count))?;
        if !(0..count).contains(&ordinal) {
            return Err(Error::Invalid(format!("there is no CUDA device {ordinal}: the driver has {count}")));
        }
        let mut context = ptr::null_mut();
        call!(functions, retain(&mut context, ordinal))
            .map_err(|error| error.while_doing(|| format!("opening CUDA device {ordinal}")))?;
        Ok(Arc::new(Self { functions, ordinal, context }))
    }

    /// Makes the context current on this thread, unless it already is.
    ///
    /// Returns true if [`pop`](Self::pop) has to undo that.
    pub fn push(&self) -> Result<bool> {
        let mut current = ptr::null_mut();
        call!(self.functions, current(&mut current))?;
        if current == self.context {
            return Ok(false);
        }
        call!(self.functions, push(self.context))?;
        Ok(true)
    }

    /// Undoes a [`push`](Self::push) that returned true.
    pub fn pop(&self) {
        let mut popped = ptr::null_mut();
        let _ = call!(self.functions, pop(&mut popped));
    }

    /// Makes the context current on this thread until the result is dropped.
    pub fn make_current(&self) -> Result<Current<'_>> {
        Ok(Current(self.push()?.then_some(self)))
    }

    /// Pins host memory for all contexts.
    pub fn pin(&self, address: u64, bytes: usize) -> Result<()> {
        call!(self.functions, pin(address as *mut c_void, bytes, PORTABLE_DEVICEMAP))
    }

    /// Pins read-only host memory for all contexts, which can only read it too.
    ///
    /// Fails if the driver does not support that.
    pub fn pin_read_only(&self, address: u64, bytes: usize) -> Result<()> {
        const READ_ONLY: c_uint = 8;
        call!(self.functions, pin(address as *mut c_void, bytes, PORTABLE_DEVICEMAP | READ_ONLY))
    }

    /// Makes pinned memory pageable again.
    pub fn unpin(&self, address: u64) {
        let _ = call!(self.functions, unpin(address as *mut c_void));
    }

    /// Creates a stream that does not synchronize with the default stream, with the highest priority.
    pub fn create_stream(&self) -> Result<u64> {
        const NON_BLOCKING: c_uint = 1;
        let (mut least, mut greatest) = (0, 0);
        call!(self.functions, priorities(&mut least, &mut greatest))?;
        let mut stream = ptr::null_mut();
        call!(self.functions, create_stream(&mut stream, NON_BLOCKING, greatest))?;
        Ok(stream as u64)
    }

    /// Destroys a stream.
    pub fn destroy_stream(&self, stream: u64) {
        let _ = call!(self.functions, destroy_stream(stream as CUstream));
    }

    /// Blocks the host until all work on a stream is done.
    pub fn synchronize(&self, stream: u64) -> Result<()> {
        call!(self.functions, synchronize(stream as CUstream))
    }

    /// Creates an event.
    ///
    /// `timed` is required for [`elapsed_ms`](Self::elapsed_ms).
    pub fn create_event(&self, timed: bool) -> Result<u64> {
        const DISABLE_TIMING: c_uint = 2;
        let mut event = ptr::null_mut();
        call!(self.functions, create_event(&mut event, if timed { 0 } else { DISABLE_TIMING }))?;
        Ok(event as u64)
    }

    /// Destroys an event.
    pub fn destroy_event(&self, event: u64) {
        let _ = call!(self.functions, destroy_event(event as CUevent));
    }

    /// Records an event after all work queued on a stream.
    pub fn record(&self, event: u64, stream: u64) -> Result<()> {
        call!(self.functions, record(event as CUevent, stream as CUstream))
    }

    /// Makes later work on the stream wait for the event.
    pub fn wait(&self, stream: u64, event: u64) -> Result<()> {
        call!(self.functions, wait(stream as CUstream, event as CUevent, 0))
    }

    /// Blocks the host until an event happens.
    pub fn wait_on_host(&self, event: u64) -> Result<()> {
        call!(self.functions, wait_on_host(event as CUevent))
    }

    /// Returns the milliseconds between two timed events.
    pub fn elapsed_ms(&self, from: u64, to: u64) -> Result<f32> {
        let mut milliseconds = 0.0;
        call!(self.functions, elapsed(&mut milliseconds, from as CUevent, to as CUevent))?;
        Ok(milliseconds)
    }

    /// Returns the status (`CUstreamCaptureStatus`) and number of the capture that a stream belongs to.
    pub fn capture_of(&self, stream: u64) -> Result<(c_int, u64)> {
        // The legacy stream cannot be captured, and the query fails while another stream is captured.
        if matches!(stream, 0 | 1) {
            return Ok((0, 0));
        }
        let (mut status, mut id) = (0, 0);
        let (graph, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        call!(self.functions, capture_of(stream as CUstream, &mut status, &mut id, graph, nodes, count))?;
        Ok((status, id))
    }

    /// Sets which calls a capture forbids on this thread.
    ///
    /// Returns the previous mode.
    pub fn exchange_capture_mode(&self, mut mode: c_int) -> Result<c_int> {
        call!(self.functions, capture_mode(&mut mode))?;
        Ok(mode)
    }

    /// `CU_STREAM_CAPTURE_MODE_RELAXED`
    pub const RELAXED: c_int = 2;

    /// Allocates device memory.
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        call!(self.functions, allocate(&mut address, bytes as usize))
            .map_err(|error| error.while_doing(|| format!("asking the device for {}", size(bytes))))?;
        Ok(address)
    }

    /// Frees device memory.
    pub fn free(&self, address: u64) {
        let _ = call!(self.functions, free(address));
    }

    /// Queues a copy from host memory.
    ///
    /// # Safety
    /// The host memory is readable until the copy is done.
    pub unsafe fn copy_to_device(&self, to: u64, from: u64, bytes: u64, stream: u64) -> Result<()> {
        call!(self.functions, copy_to_device(to, from as *const c_void, bytes as usize, stream as CUstream))
    }

    /// Queues a copy to host memory.
    ///
    /// # Safety
    /// No other code uses the host memory until the copy is done.
    pub unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: u64, stream: u64) -> Result<()> {
        call!(self.functions, copy_to_host_later(to as *mut c_void, from, bytes as usize, stream as CUstream))
    }

    /// Reads device memory.
    ///
    /// Blocks until the read is done.
    pub fn read(&self, from: u64, to: &mut [u8]) -> Result<()> {
        call!(self.functions, copy_to_host(to.as_mut_ptr().cast(), from, to.len()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = call!(self.functions, release(self.ordinal));
    }
}

/// Undoes [`Device::make_current`] when dropped.
pub struct Current<'a>(Option<&'a Device>);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(device) = self.0 {
            device.pop();
        }
    }
}
