//! `cuGetProcAddress`: how runtimes since CUDA 11.3 fetch the driver's functions.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::driver::{CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS};
use super::hooks::{self, Hook};
use crate::symbols::Real;

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
type GetProcAddressV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

static REAL: Real<GetProcAddress> = Real::in_library(c"libcuda.so.1", c"cuGetProcAddress");
static REAL_V2: Real<GetProcAddressV2> = Real::in_library(c"libcuda.so.1", c"cuGetProcAddress_v2");

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

pub static HOOKS: &[Hook] = &[
    Hook {
        abi_name: "cuGetProcAddress",
        address: cu_get_proc_address as *const c_void,
        learn: |real| REAL.learn(real),
    },
    Hook {
        abi_name: "cuGetProcAddress_v2",
        address: cu_get_proc_address_v2 as *const c_void,
        learn: |real| REAL_V2.learn(real),
    },
];

/// CUDA 11.3's form.
#[unsafe(export_name = "cuGetProcAddress")]
pub unsafe extern "C" fn cu_get_proc_address(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> c_int {
    let Some(real) = REAL.get() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the driver's own function with the caller's arguments, which it checks.
    unsafe {
        let result = real(symbol, function, version, flags);
        if result == CUDA_SUCCESS {
            substitute(symbol, function, version, flags);
        }
        result
    }
}

/// CUDA 12's form.
#[unsafe(export_name = "cuGetProcAddress_v2")]
pub unsafe extern "C" fn cu_get_proc_address_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> c_int {
    let Some(real) = REAL_V2.get() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: as above.
    unsafe {
        let result = real(symbol, function, version, flags, status);
        if result == CUDA_SUCCESS {
            substitute(symbol, function, version, flags);
        }
        result
    }
}

/// Replaces the function the driver has just answered with by memlab's, if it observes that one.
///
/// SAFETY: the arguments of a successful `cuGetProcAddress`.
unsafe fn substitute(symbol: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) {
    // SAFETY: the driver has just read the name and written the function.
    unsafe {
        if (*function).is_null() || !crate::enabled() {
            return;
        }
        let name = CStr::from_ptr(symbol).to_bytes();
        if let Some(hook) = hooks::by_request(name, version, flags & PER_THREAD_DEFAULT_STREAM != 0)
            && !std::ptr::eq(*function, hook.address)
        {
            hook.learn(*function);
            *function = hook.address.cast_mut();
        }
    }
}
