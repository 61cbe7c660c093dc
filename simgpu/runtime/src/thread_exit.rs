//! Replaces `pthread_exit`, with which CPython before 3.14 ends a thread that requests the GIL during interpreter
//! shutdown.
//!
//! PyTorch does not support that. After backward has returned, an autograd thread may still have to destroy its state.
//! It requests the GIL for the Python objects in it, is unwound in a destructor, and C++ calls `std::terminate`. A
//! program that ends right after backward then sometimes aborts with SIGABRT, more often on a busy machine. CPython
//! 3.14 blocks such threads until the process ends, and so does this function.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_exit(value: *mut c_void) -> ! {
    // Jumps to the real function, which unwinds from the caller's frame.
    std::arch::naked_asm!(
        "push rdi",
        "mov rdi, [rsp + 8]",
        "call {decide}",
        "pop rdi",
        "jmp rax",
        decide = sym real_unless_interpreter_ends,
    )
}

/// Returns the real function. Does not return if the caller is an interpreter that shuts down.
extern "C" fn real_unless_interpreter_ends(caller: *const c_void) -> *mut c_void {
    static REAL: OnceLock<usize> = OnceLock::new();
    if [c"_Py_IsFinalizing", c"Py_IsFinalizing"].into_iter().any(|name| ends(name, caller)) {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: finds the next function of this name, that of libc.
    let find = || unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_exit".as_ptr()) }.expose_provenance();
    std::ptr::with_exposed_provenance_mut(*REAL.get_or_init(find))
}

/// Returns true if the caller is the interpreter that has this function (its name depends on the version), and it shuts
/// down.
fn ends(name: &CStr, caller: *const c_void) -> bool {
    // SAFETY: looks up a function by name, and the libraries of two addresses; `int f(void)` in every version.
    unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        let library = |address: *const c_void| {
            let mut found: libc::Dl_info = std::mem::zeroed();
            (libc::dladdr(address, &mut found) != 0).then_some(found.dli_fbase)
        };
        !function.is_null()
            && library(function) == library(caller)
            && std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(function)() != 0
    }
}
