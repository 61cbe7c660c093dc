//! Kernels of the libraries.
//!
//! They do nothing, but are launched through the driver as the real ones are: captures contain nodes for them, and
//! profilers see them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use simgpu_observer::SIMULATED_CODE;
pub use simgpu_observer::{Arithmetic, Unit};

use crate::device_memory::initialize_device;
use crate::driver::function;

/// Threads per block.
pub const BLOCK: u32 = 256;

/// Rows and columns of the part of a matrix that a block computes.
const TILE: u64 = 128;

/// Returns the name of the kernel of a routine.
#[macro_export]
macro_rules! kernel_name {
    ($routine:ident) => {{
        const NAME: &std::ffi::CStr =
            match std::ffi::CStr::from_bytes_with_nul(concat!("simgpu_", stringify!($routine), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
        NAME
    }};
}

pub use kernel_name;

/// Returns the number of blocks that compute a matrix.
pub fn tiles(rows: u64, columns: u64) -> u32 {
    let blocks = rows.div_ceil(TILE).saturating_mul(columns.div_ceil(TILE));
    u32::try_from(blocks).unwrap_or(u32::MAX).max(1)
}

type LoadModule = unsafe extern "C" fn(*mut usize, *const u8) -> i32;
type GetFunction = unsafe extern "C" fn(*mut usize, usize, *const c_char) -> i32;
type Launch =
    unsafe extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, usize, *mut *mut c_void, *mut *mut c_void) -> i32;

/// Driver functions for launches.
struct Driver {
    load_module: LoadModule,
    get_function: GetFunction,
    launch: Launch,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let load = || {
        let (load, get, launch) =
            (function(c"cuModuleLoadData")?, function(c"cuModuleGetFunction")?, function(c"cuLaunchKernel")?);
        // SAFETY: the types are those of cuda.h.
        unsafe {
            Some(Driver {
                load_module: std::mem::transmute::<*mut c_void, LoadModule>(load),
                get_function: std::mem::transmute::<*mut c_void, GetFunction>(get),
                launch: std::mem::transmute::<*mut c_void, Launch>(launch),
            })
        }
    };
    DRIVER.get_or_init(load).as_ref()
}

impl Driver {
    /// Returns the kernel of a name, from a separate module.
    fn kernel(&self, name: &'static CStr) -> Option<usize> {
        static KERNELS: Mutex<Option<HashMap<&'static CStr, usize>>> = Mutex::new(None);
        let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
        let kernels = kernels.get_or_insert_default();
        if let Some(kernel) = kernels.get(name) {
            return Some(*kernel);
        }
        let (mut module, mut kernel) = (0, 0);
        // SAFETY: the simulated driver reads no code; the name is NUL-terminated, the others are locals.
        let made = unsafe {
            (self.load_module)(&mut module, SIMULATED_CODE.as_ptr().cast()) == 0
                && (self.get_function)(&mut kernel, module, name.as_ptr()) == 0
        };
        made.then(|| *kernels.entry(name).or_insert(kernel))
    }
}

/// Launches a kernel that would compute this; returns false on failure.
pub fn launch(name: &'static CStr, blocks: u32, stream: usize, arithmetic: Arithmetic) -> bool {
    let Some(driver) = driver() else { return false };
    let Some(kernel) = driver.kernel(name) else { return false };
    let mut parameters = [(&raw const arithmetic).cast_mut().cast::<c_void>()];
    // SAFETY: the kernel is one of the driver's, and has this parameter.
    let mut launch = || unsafe {
        (driver.launch)(kernel, blocks, 1, 1, BLOCK, 1, 1, 0, stream, parameters.as_mut_ptr(), ptr::null_mut()) == 0
    };
    launch() || {
        // The thread may not have a context yet.
        initialize_device();
        launch()
    }
}
