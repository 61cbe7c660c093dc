//! `cudaGetDriverEntryPoint`: the driver's functions by plain name, through `cuGetProcAddress`.

use std::ffi::{c_char, c_void};

use crate::api::{answer, api_without_context};
use crate::code::{Answer, Error};
use crate::driver_calls::{entry_point, version};

/// # Safety
/// `name` is a NUL-terminated string or null; the other pointers are null or have room for their answers.
unsafe fn get(name: *const c_char, to: *mut *mut c_void, version: i32, flags: u64, status: *mut i32) -> Answer {
    if name.is_null() || to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        match entry_point(name, version, flags)? {
            Ok(function) => {
                if !status.is_null() {
                    status.write(0);
                }
                answer(to, function)
            }
            // If the caller requests the reason, a missing function is not an error.
            Err(reason) => {
                answer(to, std::ptr::null_mut())?;
                if status.is_null() { Err(Error::SYMBOL_NOT_FOUND) } else { answer(status, reason) }
            }
        }
    }
}

/// `cudaEnablePerThreadDefaultStream`.
const PER_THREAD: u64 = 2;

api_without_context! {
    fn cudaGetDriverEntryPoint(_cu; name: *const c_char, to: *mut *mut c_void, flags: u64, status: *mut i32) {
        get(name, to, version(), flags, status)?;
    }

    fn cudaGetDriverEntryPoint_ptsz(_cu; name: *const c_char, to: *mut *mut c_void, flags: u64, status: *mut i32) {
        get(name, to, version(), if flags == 0 { PER_THREAD } else { flags }, status)?;
    }

    fn cudaGetDriverEntryPointByVersion(
        _cu; name: *const c_char, to: *mut *mut c_void, version: u32, flags: u64, status: *mut i32,
    ) {
        get(name, to, version as i32, flags, status)?;
    }

    fn cudaGetDriverEntryPointByVersion_ptsz(
        _cu; name: *const c_char, to: *mut *mut c_void, version: u32, flags: u64, status: *mut i32,
    ) {
        get(name, to, version as i32, if flags == 0 { PER_THREAD } else { flags }, status)?;
    }
}
