//! Opens the CUPTI that a program has and calls the functions that it exports.

use std::error::Error;
use std::ffi::{CStr, CString, OsString, c_void};
use std::fmt;
use std::mem::transmute;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use crate::bindings::{
    self, CUcontext, CUgraphNode, CUpti_Activity, CUpti_ActivityKind, CUpti_BuffersCallbackCompleteFunc,
    CUpti_BuffersCallbackRequestFunc, CUpti_CallbackDomain, CUpti_CallbackFunc, CUpti_CallbackId,
    CUpti_SubscriberHandle, CUpti_TimestampCallbackFunc, CUptiResult,
};

/// Names under which the dynamic linker finds CUPTI, newest first: those of CUDA 13 and 12.
pub const SONAMES: [&str; 2] = ["libcupti.so.13", "libcupti.so.12"];

/// Upper bound of CUPTI's callback ids in a domain (CUDA 13.4 has about 900).
const CALLBACKS: u32 = 2048;

/// Declares the table of functions; their names and parameters are checked against the generated declarations.
macro_rules! table {
    ($($function:ident($($parameter:ty),*);)*) => {
        /// A loaded CUPTI: its functions by their C names, `None` if this library does not export one.
        ///
        /// The library is never unloaded: it can call back at any time, from its own threads. Without NVIDIA's driver,
        /// its functions must not be called: in CUDA 13.2, the first call of any function then recurses until the stack
        /// overflows. The methods check for the driver; callers through a pointer must do so themselves.
        #[expect(non_snake_case, reason = "the names are CUPTI's")]
        pub struct Cupti {
            name: OsString,
            $(pub $function: Option<unsafe extern "C" fn($($parameter),*) -> CUptiResult>,)*
        }

        impl Cupti {
            /// Reads the function table of the library behind `handle`.
            ///
            /// # Safety
            ///
            /// `handle` must come from `dlopen` of a CUPTI and must never be closed.
            unsafe fn of(handle: *mut c_void, name: OsString) -> Self {
                Self {
                    name,
                    $($function: {
                        const NAME: &CStr = {
                            match CStr::from_bytes_with_nul(concat!(stringify!($function), "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => unreachable!(),
                            }
                        };
                        // SAFETY: the caller vouches for the handle; a symbol of this name has this signature, and null
                        // is `None`.
                        unsafe {
                            transmute::<*mut c_void, Option<unsafe extern "C" fn($($parameter),*) -> CUptiResult>>(
                                libc::dlsym(handle, NAME.as_ptr()),
                            )
                        }
                    },)*
                }
            }

            /// Returns the functions of the table that this library does not export.
            pub fn missing(&self) -> Vec<&'static str> {
                [$((stringify!($function), self.$function.is_none())),*]
                    .into_iter()
                    .filter_map(|(name, missing)| missing.then_some(name))
                    .collect()
            }
        }

        // Compiles only while the parameters above match the header.
        $(const _: unsafe extern "C" fn($($parameter),*) -> CUptiResult = bindings::$function;)*
    };
}

table! {
    cuptiGetVersion(*mut u32);
    cuptiGetResultString(CUptiResult, *mut *const std::ffi::c_char);
    cuptiGetGraphNodeId(CUgraphNode, *mut u64);
    cuptiGetCallbackName(CUpti_CallbackDomain, u32, *mut *const std::ffi::c_char);
    cuptiSubscribe(*mut CUpti_SubscriberHandle, CUpti_CallbackFunc, *mut c_void);
    cuptiUnsubscribe(CUpti_SubscriberHandle);
    cuptiEnableCallback(u32, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId);
    cuptiEnableDomain(u32, CUpti_SubscriberHandle, CUpti_CallbackDomain);
    cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc);
    cuptiActivityEnable(CUpti_ActivityKind);
    cuptiActivityDisable(CUpti_ActivityKind);
    cuptiActivityFlushAll(u32);
    cuptiActivityGetNextRecord(*mut u8, usize, *mut *mut CUpti_Activity);
    cuptiActivityGetNumDroppedRecords(CUcontext, u32, *mut usize);
    cuptiFinalize();
}

/// A subscription to CUPTI. Only one can exist.
#[derive(Debug)]
pub struct Subscription(CUpti_SubscriberHandle);

// SAFETY: CUPTI takes its handles on any thread.
unsafe impl Send for Subscription {}

impl Cupti {
    /// Loads the CUPTI already in this process (PyTorch loads one), else the one that the dynamic linker finds.
    pub fn load() -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        for flags in [libc::RTLD_NOLOAD, 0] {
            for soname in SONAMES {
                match open(Path::new(soname), flags) {
                    Ok(cupti) => return Ok(cupti),
                    Err(reason) if flags == 0 => tried.push(reason),
                    Err(_) => {}
                }
            }
        }
        Err(LoadError { tried })
    }

    /// Loads the CUPTI at this path.
    pub fn load_from(path: &Path) -> Result<Self, LoadError> {
        open(path, 0).map_err(|reason| LoadError { tried: vec![reason] })
    }

    /// Returns the name by which it was opened: a soname or a path.
    pub fn name(&self) -> &Path {
        Path::new(&self.name)
    }

    /// Returns the library's API version: 130401 is CUDA 13.4, a number below 100 is CUDA 12 or older.
    pub fn version(&self) -> Result<u32, CallError> {
        let mut version = 0;
        // SAFETY: writes one word.
        self.call("cuptiGetVersion", self.cuptiGetVersion, |function| unsafe { function(&mut version) })?;
        Ok(version)
    }

    /// Returns CUPTI's name of a result, such as `CUPTI_ERROR_NOT_INITIALIZED`, or its number if CUPTI has no name for
    /// it.
    pub fn result_text(&self, result: CUptiResult) -> String {
        let mut text = ptr::null();
        if !has_driver() {
            return format!("error {}", result.0);
        }
        // SAFETY: there is a driver; writes one pointer, to a static string of CUPTI.
        let known = self.cuptiGetResultString.map(|function| unsafe { function(result, &mut text) });
        if known != Some(CUptiResult::CUPTI_SUCCESS) || text.is_null() {
            return format!("error {}", result.0);
        }
        // SAFETY: not null, and NUL-terminated by CUPTI's word.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Subscribes `callback` to the start and the end of the CUDA calls selected by [`watch`](Self::watch).
    ///
    /// # Safety
    ///
    /// CUPTI calls it on the program's threads, within its calls of CUDA, until [`unsubscribe`](Self::unsubscribe).
    ///
    /// # Errors
    ///
    /// Among others `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`: another subscriber exists.
    pub unsafe fn subscribe(&self, callback: CUpti_CallbackFunc) -> Result<Subscription, CallError> {
        let mut handle = ptr::null_mut();
        self.call("cuptiSubscribe", self.cuptiSubscribe, |function| {
            // SAFETY: the caller vouches for the callback; writes one pointer.
            unsafe { function(&mut handle, callback, ptr::null_mut()) }
        })?;
        Ok(Subscription(handle))
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, subscription: Subscription) -> Result<(), CallError> {
        // SAFETY: a handle from CUPTI that is no longer used.
        self.call("cuptiUnsubscribe", self.cuptiUnsubscribe, |function| unsafe { function(subscription.0) })
    }

    /// Returns the callbacks of a domain whose names are `wanted`.
    pub fn callbacks(
        &self,
        domain: CUpti_CallbackDomain,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> impl Iterator<Item = CUpti_CallbackId> {
        (1..CALLBACKS).filter(move |id| {
            let mut name = ptr::null();
            let found = self.call("cuptiGetCallbackName", self.cuptiGetCallbackName, |function| {
                // SAFETY: writes one pointer, to a static string of CUPTI; unknown ids are refused.
                unsafe { function(domain, *id, &mut name) }
            });
            // SAFETY: not null, and NUL-terminated by CUPTI's word.
            found.is_ok() && !name.is_null() && wanted(unsafe { CStr::from_ptr(name) }.to_bytes())
        })
    }

    /// Enables or disables one callback of a domain for the subscriber.
    pub fn watch(
        &self,
        subscription: &Subscription,
        domain: CUpti_CallbackDomain,
        id: CUpti_CallbackId,
        is_on: bool,
    ) -> Result<(), CallError> {
        self.call("cuptiEnableCallback", self.cuptiEnableCallback, |function| {
            // SAFETY: takes numbers, and a handle from CUPTI.
            unsafe { function(is_on.into(), subscription.0, domain, id) }
        })
    }

    /// Returns the number of a graph node in records.
    ///
    /// # Safety
    ///
    /// The node exists.
    pub unsafe fn graph_node(&self, node: CUgraphNode) -> Result<u64, CallError> {
        let mut id = 0;
        // SAFETY: the caller vouches for the node; writes one word.
        self.call("cuptiGetGraphNodeId", self.cuptiGetGraphNodeId, |function| unsafe { function(node, &mut id) })?;
        Ok(id)
    }

    /// Registers the callbacks that provide buffers for records and receive full ones.
    ///
    /// Call it before the first `enable`.
    ///
    /// # Safety
    ///
    /// CUPTI calls them from its own threads, also at process exit. `request` must provide memory aligned to 8 bytes
    /// that stays valid until `complete` receives it.
    pub unsafe fn register_buffers(
        &self,
        request: CUpti_BuffersCallbackRequestFunc,
        complete: CUpti_BuffersCallbackCompleteFunc,
    ) -> Result<(), CallError> {
        self.call("cuptiActivityRegisterCallbacks", self.cuptiActivityRegisterCallbacks, |function| {
            // SAFETY: the caller vouches for the callbacks.
            unsafe { function(request, complete) }
        })
    }

    /// Registers a clock of the program for the times of records.
    ///
    /// # Safety
    ///
    /// CUPTI calls it from any thread, until another clock is registered.
    pub unsafe fn register_clock(&self, clock: CUpti_TimestampCallbackFunc) -> Result<(), CallError> {
        let name = "cuptiActivityRegisterTimestampCallback";
        // SAFETY: the caller vouches for the callback.
        self.call(name, self.cuptiActivityRegisterTimestampCallback, |function| unsafe { function(clock) })
    }

    /// Starts recording records of this kind.
    pub fn enable(&self, kind: CUpti_ActivityKind) -> Result<(), CallError> {
        // SAFETY: takes a number, and returns an error for an unknown one.
        self.call("cuptiActivityEnable", self.cuptiActivityEnable, |function| unsafe { function(kind) })
    }

    /// Stops recording records of this kind.
    pub fn disable(&self, kind: CUpti_ActivityKind) -> Result<(), CallError> {
        // SAFETY: takes a number, and returns an error for an unknown one.
        self.call("cuptiActivityDisable", self.cuptiActivityDisable, |function| unsafe { function(kind) })
    }

    /// Makes CUPTI deliver its buffers; with `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED` also those with unfinished records.
    ///
    /// Returns after the callback has received all of them. Must not be called from that callback.
    pub fn flush(&self, flag: bindings::CUpti_ActivityFlag) -> Result<(), CallError> {
        // SAFETY: takes a number.
        self.call("cuptiActivityFlushAll", self.cuptiActivityFlushAll, |function| unsafe { function(flag.0) })
    }

    /// Iterates over the records in a buffer that CUPTI has filled, in its order. Each begins with its kind.
    ///
    /// # Safety
    ///
    /// `buffer` and `valid_bytes` must be those of the completion callback, and the buffer must outlive the records.
    pub unsafe fn records(&self, buffer: *mut u8, valid_bytes: usize) -> impl Iterator<Item = *const CUpti_Activity> {
        let next = self.cuptiActivityGetNextRecord;
        let mut record = ptr::null_mut();
        std::iter::from_fn(move || {
            // SAFETY: the caller vouches for the buffer, which comes from a working CUPTI; `record` is null or the
            // previous record.
            let result = unsafe { next?(buffer, valid_bytes, &mut record) };
            (result == CUptiResult::CUPTI_SUCCESS).then_some(record.cast_const())
        })
    }

    /// Returns the number of records that CUPTI dropped, in all contexts, since the last call.
    pub fn dropped(&self) -> Result<usize, CallError> {
        let mut dropped = 0;
        self.call("cuptiActivityGetNumDroppedRecords", self.cuptiActivityGetNumDroppedRecords, |function| {
            // SAFETY: no context and stream 0 mean the global queue; writes one word.
            unsafe { function(ptr::null_mut(), 0, &mut dropped) }
        })?;
        Ok(dropped)
    }

    /// Calls `function` if the library exports it, and turns its status into a `Result`.
    fn call<F>(
        &self,
        name: &'static str,
        function: Option<F>,
        call: impl FnOnce(F) -> CUptiResult,
    ) -> Result<(), CallError> {
        let function = function.ok_or(CallError::Missing { function: name })?;
        if !has_driver() {
            return Err(CallError::NoDriver);
        }
        match call(function) {
            CUptiResult::CUPTI_SUCCESS => Ok(()),
            result => Err(CallError::Failed { function: name, result, text: self.result_text(result) }),
        }
    }
}

/// Returns true if NVIDIA's driver is loaded or can be loaded as CUPTI would load it.
fn has_driver() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    // SAFETY: loads a system library by its soname and never unloads it.
    *FOUND.get_or_init(|| unsafe { !libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY).is_null() })
}

/// Opens a library; the error is the linker's message.
fn open(path: &Path, flags: i32) -> Result<Cupti, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{path:?} is not a path"))?;
    // SAFETY: the name is NUL-terminated; CUPTI's constructors can run in any process. `dlerror` is per thread, and its
    // text is copied at once. The handle is never closed.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags);
        if !handle.is_null() {
            return Ok(Cupti::of(handle, path.into()));
        }
        let reason = libc::dlerror();
        Err(if reason.is_null() {
            format!("{}: not loaded", path.display())
        } else {
            CStr::from_ptr(reason).to_string_lossy().into_owned()
        })
    }
}

/// No CUPTI could be opened.
#[derive(Debug)]
pub struct LoadError {
    /// The dynamic linker's reason for each name.
    pub tried: Vec<String>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = self.tried.join("; ");
        write!(
            f,
            "CUPTI was not found ({reasons}). It comes with PyTorch's CUDA builds (package nvidia-cuda-cupti) and with the \
             CUDA toolkit: put the folder of libcupti.so on LD_LIBRARY_PATH"
        )
    }
}

impl Error for LoadError {}

/// A call of CUPTI that failed.
#[derive(Debug)]
pub enum CallError {
    /// CUPTI was not called, because it can crash without a driver.
    NoDriver,
    /// The loaded CUPTI does not export this function: it is too old or too new.
    Missing { function: &'static str },
    /// The function returned this error.
    Failed { function: &'static str, result: CUptiResult, text: String },
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => write!(f, "there is no NVIDIA driver (libcuda.so.1)"),
            Self::Missing { function } => write!(f, "this CUPTI has no {function}"),
            Self::Failed { function, text, .. } => write!(f, "{function}: {text}"),
        }
    }
}

impl Error for CallError {}
