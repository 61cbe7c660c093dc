//! Opening the CUPTI that a program has, and calling what it knows.

use std::error::Error;
use std::ffi::{CStr, CString, OsString, c_void};
use std::fmt;
use std::mem::transmute;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use crate::bindings::{
    self, CUcontext, CUpti_Activity, CUpti_ActivityKind, CUpti_BuffersCallbackCompleteFunc,
    CUpti_BuffersCallbackRequestFunc, CUpti_CallbackDomain, CUpti_CallbackFunc, CUpti_CallbackId,
    CUpti_SubscriberHandle, CUptiResult,
};

/// The names under which the dynamic linker finds CUPTI, newest first: those of CUDA 13 and 12.
pub const SONAMES: [&str; 2] = ["libcupti.so.13", "libcupti.so.12"];

/// Makes the table from the functions' names and parameters, which are checked against the generated declarations.
macro_rules! table {
    ($($function:ident($($parameter:ty),*);)*) => {
        /// A loaded CUPTI: its functions by their C names, `None` where this library does not have one.
        ///
        /// The library stays loaded for good: it may call back at any time, from threads of its own. Without NVIDIA's driver
        /// its functions must not be called: that of CUDA 13.2 then recurses until the stack is full, whichever is
        /// called first. The methods see to that; who calls through a pointer has to.
        #[expect(non_snake_case, reason = "the names are CUPTI's")]
        pub struct Cupti {
            name: OsString,
            $(pub $function: Option<unsafe extern "C" fn($($parameter),*) -> CUptiResult>,)*
        }

        impl Cupti {
            /// The table of the library that `handle` stands for.
            ///
            /// # Safety
            ///
            /// `handle` must come from `dlopen`, be of a CUPTI, and never be closed.
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
                        // SAFETY: the caller's word for the handle; a symbol of this name has this signature, and null
                        // becomes `None`.
                        unsafe {
                            transmute::<*mut c_void, Option<unsafe extern "C" fn($($parameter),*) -> CUptiResult>>(
                                libc::dlsym(handle, NAME.as_ptr()),
                            )
                        }
                    },)*
                }
            }

            /// The functions of the table that this library does not have.
            pub fn missing(&self) -> Vec<&'static str> {
                [$((stringify!($function), self.$function.is_none())),*]
                    .into_iter()
                    .filter_map(|(name, missing)| missing.then_some(name))
                    .collect()
            }
        }

        // Compiles only while the parameters above are those of the header.
        $(const _: unsafe extern "C" fn($($parameter),*) -> CUptiResult = bindings::$function;)*
    };
}

table! {
    cuptiGetVersion(*mut u32);
    cuptiGetResultString(CUptiResult, *mut *const std::ffi::c_char);
    cuptiSubscribe(*mut CUpti_SubscriberHandle, CUpti_CallbackFunc, *mut c_void);
    cuptiUnsubscribe(CUpti_SubscriberHandle);
    cuptiEnableCallback(u32, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId);
    cuptiEnableDomain(u32, CUpti_SubscriberHandle, CUpti_CallbackDomain);
    cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    cuptiActivityEnable(CUpti_ActivityKind);
    cuptiActivityDisable(CUpti_ActivityKind);
    cuptiActivityFlushAll(u32);
    cuptiActivityGetNextRecord(*mut u8, usize, *mut *mut CUpti_Activity);
    cuptiActivityGetNumDroppedRecords(CUcontext, u32, *mut usize);
    cuptiFinalize();
}

impl Cupti {
    /// The CUPTI already in this process (PyTorch brings one), else the one that the dynamic linker finds.
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

    /// The CUPTI in this file.
    pub fn load_from(path: &Path) -> Result<Self, LoadError> {
        open(path, 0).map_err(|reason| LoadError { tried: vec![reason] })
    }

    /// What it was opened as: a soname or a path.
    pub fn name(&self) -> &Path {
        Path::new(&self.name)
    }

    /// The library's API version: 130401 is of CUDA 13.4, a number below 100 is of CUDA 12 or older.
    pub fn version(&self) -> Result<u32, CallError> {
        let mut version = 0;
        // SAFETY: writes one word.
        self.call("cuptiGetVersion", self.cuptiGetVersion, |function| unsafe { function(&mut version) })?;
        Ok(version)
    }

    /// CUPTI's name of a result, such as `CUPTI_ERROR_NOT_INITIALIZED`; its number where CUPTI has none.
    pub fn result_text(&self, result: CUptiResult) -> String {
        let mut text = ptr::null();
        if !has_driver() {
            return format!("error {}", result.0);
        }
        // SAFETY: there is a driver; writes one pointer, to a string constant of CUPTI's.
        let known = self.cuptiGetResultString.map(|function| unsafe { function(result, &mut text) });
        if known != Some(CUptiResult::CUPTI_SUCCESS) || text.is_null() {
            return format!("error {}", result.0);
        }
        // SAFETY: not null, and NUL-terminated by CUPTI's word.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Says who gives CUPTI buffers for records and who takes full ones. To be called before the first kind is enabled.
    ///
    /// # Safety
    ///
    /// The callbacks come from threads of CUPTI's own, also while the process ends. `request` must give memory aligned to
    /// 8 bytes that stays until `complete` gets it back.
    pub unsafe fn register_buffers(
        &self,
        request: CUpti_BuffersCallbackRequestFunc,
        complete: CUpti_BuffersCallbackCompleteFunc,
    ) -> Result<(), CallError> {
        self.call("cuptiActivityRegisterCallbacks", self.cuptiActivityRegisterCallbacks, |function| {
            // SAFETY: the caller's word for the callbacks.
            unsafe { function(request, complete) }
        })
    }

    /// Has CUPTI record what is of this kind from now on.
    pub fn enable(&self, kind: CUpti_ActivityKind) -> Result<(), CallError> {
        // SAFETY: takes a number, and answers one that it does not know with an error.
        self.call("cuptiActivityEnable", self.cuptiActivityEnable, |function| unsafe { function(kind) })
    }

    /// Has CUPTI record what is of this kind no more.
    pub fn disable(&self, kind: CUpti_ActivityKind) -> Result<(), CallError> {
        // SAFETY: takes a number, and answers one that it does not know with an error.
        self.call("cuptiActivityDisable", self.cuptiActivityDisable, |function| unsafe { function(kind) })
    }

    /// Has CUPTI hand over its buffers; with `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED` those with unfinished records too. Returns
    /// after the callback has had them all. Not to be called from that callback.
    pub fn flush(&self, flag: bindings::CUpti_ActivityFlag) -> Result<(), CallError> {
        // SAFETY: takes a number.
        self.call("cuptiActivityFlushAll", self.cuptiActivityFlushAll, |function| unsafe { function(flag.0) })
    }

    /// The records in a buffer that CUPTI has filled, in its order. Each begins with its kind, which says what it is.
    ///
    /// # Safety
    ///
    /// `buffer` and `valid_bytes` must be what the completion callback got, and the buffer must outlive the records.
    pub unsafe fn records(&self, buffer: *mut u8, valid_bytes: usize) -> impl Iterator<Item = *const CUpti_Activity> {
        let next = self.cuptiActivityGetNextRecord;
        let mut record = ptr::null_mut();
        std::iter::from_fn(move || {
            // SAFETY: the caller's word for the buffer, which came from a CUPTI at work; `record` is null or the record before, as CUPTI wants it.
            let result = unsafe { next?(buffer, valid_bytes, &mut record) };
            (result == CUptiResult::CUPTI_SUCCESS).then_some(record.cast_const())
        })
    }

    /// How many records CUPTI had to drop, of all contexts, since it was last asked.
    pub fn dropped(&self) -> Result<usize, CallError> {
        let mut dropped = 0;
        self.call("cuptiActivityGetNumDroppedRecords", self.cuptiActivityGetNumDroppedRecords, |function| {
            // SAFETY: no context and stream 0 mean the global queue; writes one word.
            unsafe { function(ptr::null_mut(), 0, &mut dropped) }
        })?;
        Ok(dropped)
    }

    /// Calls `function` if there is one, and makes its answer a `Result`.
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

/// Whether NVIDIA's driver is there, in this process or to be opened, as CUPTI would open it.
fn has_driver() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens a system library by its soname, for good.
    *FOUND.get_or_init(|| unsafe { !libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY).is_null() })
}

/// Opens a library; the linker's words where it cannot.
fn open(path: &Path, flags: i32) -> Result<Cupti, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{path:?} is not a path"))?;
    // SAFETY: the name is NUL-terminated; CUPTI's constructors are meant to run in any process. `dlerror` is of this
    // thread, and its text is copied at once. The handle is never closed.
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
    /// The dynamic linker's reason for each name tried.
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

/// A call of CUPTI that did not succeed.
#[derive(Debug)]
pub enum CallError {
    /// CUPTI was not called, because it can crash where there is no driver.
    NoDriver,
    /// The loaded CUPTI is too old, or too new, to have this function.
    Missing { function: &'static str },
    /// It has, and this is its answer.
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
