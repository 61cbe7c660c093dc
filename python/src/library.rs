//! The functions of libmemlab.so (`interpose/include/memlab.h`), if the process has loaded it.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use memlab_protocol::c_api::{Position, Trained};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

type Read = unsafe extern "C" fn(*mut Position, *mut c_char, usize, *mut c_int) -> usize;
type Output = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> c_int;
type Status = unsafe extern "C" fn(*mut c_char, usize) -> usize;
type Offload = unsafe extern "C" fn(c_double, *mut c_char, usize) -> c_int;
type SearchHolders = unsafe extern "C" fn(*mut c_char, usize) -> u32;
type Restore = unsafe extern "C" fn(c_double, c_int, *mut c_char, usize) -> c_int;

/// Functions of the library.
pub struct Library {
    read: Read,
    position: unsafe extern "C" fn() -> u64,
    ask: unsafe extern "C" fn(),
    output: Output,
    status: Status,
    offload: Offload,
    restore: Restore,
    search_holders: SearchHolders,
    range_push: unsafe extern "C" fn(*const c_char),
    range_pop: unsafe extern "C" fn(),
    steps: unsafe extern "C" fn() -> u64,
    trained: unsafe extern "C" fn(*const Trained),
}

/// Null until the library is found.
///
/// The library is never unloaded.
static FOUND: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());

impl Library {
    /// Returns the library, once [`find`] has found it.
    #[inline]
    pub fn get() -> Option<&'static Self> {
        // SAFETY: null, or never freed.
        unsafe { FOUND.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the library.
    ///
    /// Searches for it if the process has loaded something since the last search.
    #[inline]
    pub fn get_if_loaded() -> Option<&'static Self> {
        Self::get().or_else(Self::look_again)
    }

    #[cold]
    fn look_again() -> Option<&'static Self> {
        static LOADS: AtomicU64 = AtomicU64::new(0);
        let loads = loads();
        if LOADS.swap(loads, Ordering::AcqRel) == loads { None } else { find() }
    }

    /// Starts a search for what holds the device memory; returns its number. The caller holds the GIL.
    pub fn search_holders(&self) -> PyResult<u32> {
        let mut error = [0_u8; 1024];
        // SAFETY: the function of memlab.h, with memory of the size that is passed; pyo3's functions hold the GIL.
        match unsafe { (self.search_holders)(error.as_mut_ptr().cast(), error.len()) } {
            0 => Err(PyRuntimeError::new_err(text(&error))),
            number => Ok(number),
        }
    }

    /// Enters a range.
    #[inline]
    pub fn range_push(&self, name: &CStr) {
        // SAFETY: the function of memlab.h, with a C string.
        unsafe { (self.range_push)(name.as_ptr()) }
    }

    /// Leaves the current range.
    #[inline]
    pub fn range_pop(&self) {
        // SAFETY: the function of memlab.h.
        unsafe { (self.range_pop)() }
    }

    /// Number of optimizer steps that have ended in the recording.
    pub fn steps(&self) -> u64 {
        // SAFETY: the function of memlab.h.
        unsafe { (self.steps)() }
    }

    /// Adds a training step to the recording.
    ///
    /// Its texts are null or C strings.
    ///
    /// # Safety
    ///
    /// The texts are null or end in a NUL.
    pub unsafe fn trained(&self, step: &Trained) {
        // SAFETY: the function of memlab.h; the caller promises the texts.
        unsafe { (self.trained)(step) }
    }

    /// Reads lines after `position` into `buffer`.
    ///
    /// Returns their bytes, and true if the recording restarted.
    ///
    /// A number larger than the buffer is the size that the next line needs.
    pub fn read(&self, position: &mut Position, buffer: &mut [u8]) -> (usize, bool) {
        let mut restarted = 0;
        // SAFETY: the function of memlab.h, with memory of the size that is passed.
        let bytes = unsafe { (self.read)(position, buffer.as_mut_ptr().cast(), buffer.len(), &mut restarted) };
        (bytes, restarted != 0)
    }

    /// Position after the last recorded line.
    #[inline]
    pub fn position(&self) -> u64 {
        // SAFETY: the function of memlab.h.
        unsafe { (self.position)() }
    }
}

/// Number of objects ever loaded into the process.
fn loads() -> u64 {
    /// Reads the counter from the first object's description, and stops there.
    unsafe extern "C" fn count(object: *mut libc::dl_phdr_info, _size: usize, loads: *mut c_void) -> c_int {
        // SAFETY: the linker passes a valid description, and `loads` is the variable below.
        unsafe { *loads.cast::<u64>() = (*object).dlpi_adds };
        1
    }
    let mut loads = 0_u64;
    // SAFETY: the callback gets `loads` back while it is alive.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut loads).cast()) };
    loads
}

/// Searches for the library in the process, preloaded or loaded by name.
fn find() -> Option<&'static Library> {
    if let Some(library) = Library::get() {
        return Some(library);
    }
    let handle = handle()?;
    let function = |name: &CStr| {
        // SAFETY: a handle of dlopen, or RTLD_DEFAULT, and a C string.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    // SAFETY: functions of memlab.h, whose types these are.
    let library = unsafe {
        Library {
            read: std::mem::transmute::<*mut c_void, Read>(function(c"memlab_read")?),
            position: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(function(c"memlab_position")?),
            ask: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(function(c"memlab_ask")?),
            output: std::mem::transmute::<*mut c_void, Output>(function(c"memlab_output")?),
            status: std::mem::transmute::<*mut c_void, Status>(function(c"memlab_status")?),
            offload: std::mem::transmute::<*mut c_void, Offload>(function(c"memlab_offload")?),
            restore: std::mem::transmute::<*mut c_void, Restore>(function(c"memlab_restore")?),
            search_holders: std::mem::transmute::<*mut c_void, SearchHolders>(function(c"memlab_search_holders")?),
            range_push: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(function(
                c"memlab_range_push",
            )?),
            range_pop: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(function(c"memlab_range_pop")?),
            steps: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(function(c"memlab_steps")?),
            trained: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const Trained)>(function(
                c"memlab_trained",
            )?),
        }
    };
    FOUND.store(Box::into_raw(Box::new(library)), Ordering::Release);
    Library::get()
}

/// Handle to look up the functions: the global scope, or the library itself if it was loaded for one caller only.
fn handle() -> Option<*mut c_void> {
    // SAFETY: C strings; RTLD_DEFAULT is a valid handle.
    unsafe {
        if !libc::dlsym(libc::RTLD_DEFAULT, c"memlab_read".as_ptr()).is_null() {
            return Some(libc::RTLD_DEFAULT);
        }
        let handle = libc::dlopen(c"libmemlab.so".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW);
        (!handle.is_null()).then_some(handle)
    }
}

/// Returns true if a CUDA driver is available to the program.
///
/// Does not initialise it.
#[pyfunction]
pub fn driver_found(py: Python) -> bool {
    py.detach(|| {
        // SAFETY: a C string; the driver's constructors do nothing that a program could see.
        let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) };
        !driver.is_null()
    })
}

/// Text of an error that the library wrote.
fn text(error: &[u8]) -> String {
    CStr::from_bytes_until_nul(error).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// Returns true if libmemlab.so is in this process and has the functions that this package needs.
#[pyfunction]
pub fn library_found() -> bool {
    find().is_some()
}

/// Loads libmemlab.so into the running process.
///
/// OSError contains the reason of a failure.
#[pyfunction]
pub fn load_library(py: Python, path: &str) -> PyResult<()> {
    let name = CString::new(path).map_err(|_| PyOSError::new_err("a path must not contain NUL"))?;
    py.detach(|| {
        // SAFETY: a C string; the library's constructor is made to run in a running program.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: dlopen failed, so there is a message, which is copied at once.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
            return Err(PyOSError::new_err(why));
        }
        Ok(())
    })?;
    match find() {
        Some(_) => Ok(()),
        None => Err(PyOSError::new_err(format!("{path} belongs to another version of memlab"))),
    }
}

/// Continues the recording in this file; None: in memory.
///
/// RuntimeError contains the reason of a failure.
#[pyfunction]
#[pyo3(signature = (path = None))]
pub fn set_output(py: Python, path: Option<&str>) -> PyResult<()> {
    let path = path.map(CString::new).transpose().map_err(|_| PyOSError::new_err("a path must not contain NUL"))?;
    let path = path.as_deref();
    request(py, |library, error, size| {
        let path = path.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the function of memlab.h, with memory of the size that is passed.
        unsafe { (library.output)(path, error, size) }
    })
}

/// Status of the recording as JSON, as the control socket reports it; None if nothing is recorded.
#[pyfunction]
pub fn recording_status() -> Option<String> {
    let library = Library::get()?;
    let mut json = vec![0_u8; 4096];
    loop {
        // SAFETY: the function of memlab.h, with memory of the size that is passed.
        let needed = unsafe { (library.status)(json.as_mut_ptr().cast(), json.len()) };
        if needed == 0 {
            return None;
        }
        if needed <= json.len() {
            return Some(text(&json));
        }
        json.resize(needed, 0);
    }
}

/// Makes the main thread record the memory of parameters, gradients, buffers and optimizer state, at its next bytecode.
#[pyfunction]
pub fn ask_for_tags() {
    if let Some(library) = Library::get() {
        // SAFETY: the function of memlab.h.
        unsafe { (library.ask)() }
    }
}

/// Moves all device memory to host memory.
///
/// RuntimeError contains the reason of a failure.
#[pyfunction]
pub fn offload(py: Python, timeout_s: f64) -> PyResult<()> {
    // SAFETY: the function of memlab.h, with memory of the size that is passed.
    request(py, |library, error, size| unsafe { (library.offload)(timeout_s, error, size) })
}

/// Moves the device memory back.
///
/// RuntimeError contains the reason of a failure.
#[pyfunction]
pub fn restore(py: Python, timeout_s: f64, free_host: bool) -> PyResult<()> {
    // SAFETY: the function of memlab.h, with memory of the size that is passed.
    request(py, |library, error, size| unsafe { (library.restore)(timeout_s, c_int::from(free_host), error, size) })
}

/// Calls a function of the library that writes the reason of a failure to a buffer.
///
/// Releases the GIL.
fn request(py: Python, call: impl FnOnce(&Library, *mut c_char, usize) -> c_int + Send) -> PyResult<()> {
    let library = Library::get().ok_or_else(|| PyRuntimeError::new_err("libmemlab.so is not loaded"))?;
    py.detach(|| {
        let mut error = [0; 1024];
        match call(library, error.as_mut_ptr().cast(), error.len()) {
            0 => Ok(()),
            _ => Err(PyRuntimeError::new_err(text(&error))),
        }
    })
}
