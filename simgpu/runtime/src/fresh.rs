//! Clears blocks that PyTorch's allocator hands out again, so that kernel results there read as zeros.
//!
//! Kernels do nothing. Without the clearing, a result in reused memory would contain an earlier tensor's data.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// c10::reportMemoryUsageToProfiler(void*, long, unsigned long, unsigned long, c10::Device)
const SYMBOL: &CStr = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
/// `c10::DeviceType::CUDA`, in the lowest byte of a device.
const CUDA: u8 = 1;

type Report = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, u16);

/// Handles the report that PyTorch's allocator has handed a block out (`size` > 0) or taken it back.
///
/// # Safety
///
/// Must be called as PyTorch calls its own function.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
pub unsafe extern "C-unwind" fn report(block: *mut c_void, size: i64, allocated: usize, reserved: usize, device: u16) {
    if device.to_le_bytes()[0] == CUDA
        && size > 0
        && let Some(clear) = clear()
    {
        // SAFETY: the block is mapped memory of the simulated driver, and nobody has it yet.
        unsafe { clear(block, size as usize) };
    }
    if let Some(real) = pytorchs() {
        // SAFETY: PyTorch's own function with the arguments it was called with.
        unsafe { real(block, size, allocated, reserved, device) };
    }
}

fn pytorchs() -> Option<Report> {
    static FOUND: OnceLock<Option<Report>> = OnceLock::new();
    // SAFETY: RTLD_NOLOAD loads nothing, and the library stays loaded: its code calls this. The type is that of the symbol.
    *FOUND.get_or_init(|| unsafe {
        let library = libc::dlopen(c"libc10.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let found = if library.is_null() { library } else { libc::dlsym(library, SYMBOL.as_ptr().cast::<c_char>()) };
        (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, Report>(found))
    })
}

type Clear = unsafe extern "C" fn(*mut c_void, usize);

/// Returns the simulated driver's function, if the process uses that driver.
fn clear() -> Option<Clear> {
    static FOUND: OnceLock<Option<Clear>> = OnceLock::new();
    // SAFETY: RTLD_NOLOAD loads nothing: who has a block has loaded the driver, which stays. The type is the function's.
    *FOUND.get_or_init(|| unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let found = if driver.is_null() { driver } else { libc::dlsym(driver, c"simgpu_clear".as_ptr()) };
        (!found.is_null()).then(|| std::mem::transmute::<*mut c_void, Clear>(found))
    })
}
