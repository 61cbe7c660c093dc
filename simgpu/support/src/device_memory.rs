//! The libraries' own device memory.

use std::ffi::c_void;

use crate::driver::function;

/// Allocates device memory in the current context; returns `None` if none is left.
///
/// Without a context, the runtime makes that of its device current, as the runtime in the real libraries does.
pub fn allocate(bytes: usize) -> Option<u64> {
    allocate_in_context(bytes).or_else(|| {
        initialize_device();
        allocate_in_context(bytes)
    })
}

/// Initializes the device with `cudaFree` of null, CUDA's idiom for it.
pub fn initialize_device() {
    // SAFETY: the name is NUL-terminated; the type is that of cudaFree in cuda_runtime_api.h.
    unsafe {
        let free = libc::dlsym(libc::RTLD_DEFAULT, c"cudaFree".as_ptr());
        if !free.is_null() {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> i32>(free)(std::ptr::null_mut());
        }
    }
}

fn allocate_in_context(bytes: usize) -> Option<u64> {
    let mut address = 0;
    // SAFETY: the type is that of cuMemAlloc_v2 in cuda.h.
    let status = unsafe {
        let allocate =
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, usize) -> i32>(function(c"cuMemAlloc")?);
        allocate(&mut address, bytes)
    };
    (status == 0).then_some(address)
}

/// Frees memory from [`allocate`].
pub fn free(address: u64) {
    if let Some(free) = function(c"cuMemFree") {
        // SAFETY: the type is that of cuMemFree_v2 in cuda.h. A destroyed context has freed the memory already: the
        // error is ignored.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64) -> i32>(free)(address) };
    }
}

/// Copies device memory on a stream; returns false on failure.
pub fn copy(to: u64, from: u64, bytes: usize, stream: usize) -> bool {
    type Copy = unsafe extern "C" fn(u64, u64, usize, usize) -> i32;
    function(c"cuMemcpyDtoDAsync").is_some_and(|copy| {
        // SAFETY: the type is that of cuMemcpyDtoDAsync_v2 in cuda.h, which checks the ranges.
        unsafe { std::mem::transmute::<*mut c_void, Copy>(copy)(to, from, bytes, stream) == 0 }
    })
}
