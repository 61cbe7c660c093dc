//! The libraries' calls of the driver.
//!
//! As in the real libraries, a statically linked runtime looks functions up through `cuGetProcAddress`. Only
//! interposers of the driver see them.

use std::ffi::{CStr, c_char, c_void};

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut i32) -> i32;

/// Returns a function of the driver by its plain name.
pub fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the names are NUL-terminated, and the type is that of cuGetProcAddress_v2 in cuda.h.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return None;
        }
        let get = libc::dlsym(library, c"cuGetProcAddress_v2".as_ptr());
        if get.is_null() {
            return None;
        }
        let get = std::mem::transmute::<*mut c_void, GetProcAddress>(get);
        let (mut function, mut status) = (std::ptr::null_mut(), 0);
        let found = get(name.as_ptr(), &mut function, 12_080, 0, &mut status) == 0;
        (found && !function.is_null()).then_some(function)
    }
}

/// Returns an attribute of a device, by its `CUdevice_attribute`.
pub fn device_attribute(device: i32, attribute: i32) -> Option<i32> {
    type Get = unsafe extern "C" fn(*mut i32, i32, i32) -> i32;
    let mut value = 0;
    // SAFETY: the type is that of cuDeviceGetAttribute in cuda.h.
    let status = unsafe {
        let get = std::mem::transmute::<*mut c_void, Get>(function(c"cuDeviceGetAttribute")?);
        get(&mut value, attribute, device)
    };
    (status == 0).then_some(value)
}

/// Returns the name of a device.
pub fn device_name(device: i32) -> Option<String> {
    type Get = unsafe extern "C" fn(*mut c_char, i32, i32) -> i32;
    let mut name = [0u8; 256];
    // SAFETY: the type is that of cuDeviceGetName in cuda.h, and the length that of the array.
    let status = unsafe {
        let get = std::mem::transmute::<*mut c_void, Get>(function(c"cuDeviceGetName")?);
        get(name.as_mut_ptr().cast(), name.len() as i32, device)
    };
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    (status == 0).then(|| name.to_string_lossy().into_owned())
}

/// Returns the bytes of a device's memory.
pub fn device_memory(device: i32) -> Option<usize> {
    type Get = unsafe extern "C" fn(*mut usize, i32) -> i32;
    let mut bytes = 0;
    // SAFETY: the type is that of cuDeviceTotalMem_v2 in cuda.h.
    let status = unsafe {
        let get = std::mem::transmute::<*mut c_void, Get>(function(c"cuDeviceTotalMem")?);
        get(&mut bytes, device)
    };
    (status == 0).then_some(bytes)
}
