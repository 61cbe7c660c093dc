//! Warns at exit about a PyTorch without CUDA, which never looks for a GPU.

use std::ffi::CStr;

extern "C" fn at_exit() {
    if is_loaded(c"libtorch_cpu.so") && !is_loaded(c"libc10_cuda.so") {
        eprintln!(
            "simgpu: the program's PyTorch is built without CUDA, so it did not use the simulated GPU: run it with a CUDA \
             build of PyTorch (torch.version.cuda)"
        );
    }
}

/// Run by the dynamic linker when the process exits.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

fn is_loaded(library: &CStr) -> bool {
    // SAFETY: looks the name up among the loaded libraries, and loads nothing.
    unsafe { !libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null() }
}
