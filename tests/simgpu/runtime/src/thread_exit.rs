//! `pthread_exit`, by which CPython before 3.14 ends a thread that asks for the GIL while the interpreter shuts down.
//!
//! PyTorch does not stand that: when backward has returned, a thread of autograd's may still be about to let go of its state,
//! takes the GIL for the Python objects in it, and is unwound in a destructor, where C++ calls `std::terminate`. A program
//! that ends right after backward so dies with SIGABRT now and then, the more often the busier the machine. CPython 3.14 lets
//! such threads wait for the end of the process instead, and so does this.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_exit(value: *mut c_void) -> ! {
    // Jumps to the real one, which unwinds from the caller's frame.
    std::arch::naked_asm!(
        "push rdi",
        "mov rdi, [rsp + 8]",
        "call {decide}",
        "pop rdi",
        "jmp rax",
        decide = sym real_unless_interpreter_ends,
    )
}

/// The real function; does not return where the caller is an interpreter that shuts down.
extern "C" fn real_unless_interpreter_ends(caller: *const c_void) -> *mut c_void {
    static REAL: OnceLock<usize> = OnceLock::new();
    if [c"_Py_IsFinalizing", c"Py_IsFinalizing"].into_iter().any(|name| ends(name, caller)) {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: asks for the next function of this name, the C library's.
    let find = || unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_exit".as_ptr()) }.expose_provenance();
    std::ptr::with_exposed_provenance_mut(*REAL.get_or_init(find))
}

/// Whether the interpreter that has this function (its name depends on the version) is the caller, and shuts down.
fn ends(name: &CStr, caller: *const c_void) -> bool {
    // SAFETY: asks for a function by its name, and for the libraries that two addresses lie in; `int f(void)` in every version.
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
