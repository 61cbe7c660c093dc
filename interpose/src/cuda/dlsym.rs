//! Hook on `dlsym`.
//!
//! The CUDA runtime reaches the driver through `dlopen` and `dlsym`, and so do libraries with a static runtime (NCCL,
//! cuBLAS). For a driver function that memlab hooks, `dlsym` returns the hook.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use super::hook_lookup;
use crate::packages;
use interpose_base::config::enabled;
use interpose_base::got_patch;
use interpose_base::loaded_objects::{base_of, program_base};
use interpose_base::symbols::{REAL_DLSYM, real_dlsym};

/// The hook on `dlsym`.
///
/// A name that memlab does not hook is passed on by a jump, not a call, so that the real function sees the caller's return
/// address: the meaning of RTLD_NEXT and RTLD_DEFAULT depends on the caller. Must not allocate, lock or start threads: it is
/// called while the loader initialises libraries.
///
/// # Safety
///
/// As for the real `dlsym`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "mov rdx, [rsp]", // The caller.
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {substitute}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "cmp rax, {absent}",
        "je 3f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        "3:",
        "xor eax, eax",
        "ret",
        substitute = sym substitute,
        real = sym REAL_DLSYM,
        absent = const ABSENT,
    )
}

/// Result if only memlab has the function: the program gets null.
const ABSENT: usize = 1;

/// Returns memlab's function for `symbol`, null to let the real `dlsym` answer, or [`ABSENT`].
///
/// # Safety
///
/// The arguments of a `dlsym`, and its return address.
unsafe extern "C" fn substitute(handle: *mut c_void, symbol: *const c_char, caller: *const c_void) -> *mut c_void {
    let real = real_dlsym(); // Also sets the jump's target.
    got_patch::patch_new_objects();
    // SAFETY: a NUL-terminated string.
    if !symbol.is_null() && unsafe { CStr::from_ptr(symbol) } == packages::ENTRY {
        packages::loaded();
    }
    // SAFETY: a NUL-terminated string; the second byte is read only if the first is not the NUL.
    let driver_name = unsafe { !symbol.is_null() && *symbol == b'c' as c_char && *symbol.add(1) == b'u' as c_char };
    if !driver_name || !enabled() {
        return ptr::null_mut();
    }
    // memlab comes next in lookup order only for the program itself.
    if handle == libc::RTLD_NEXT && base_of(caller.addr()) != program_base() {
        return ptr::null_mut();
    }
    // SAFETY: a NUL-terminated string, as `dlsym` wants it.
    let name = unsafe { CStr::from_ptr(symbol) };
    let hook = hook_lookup::by_abi_name(name.to_bytes());
    let Some(own) = hook_lookup::exported(name.to_bytes()) else { return ptr::null_mut() };
    // SAFETY: the caller's own arguments; for RTLD_NEXT the caller is the program, and the objects after memlab are
    // also after the program.
    let mut found = unsafe { real(handle, symbol) };
    if ptr::eq(found, own) {
        // Found in the global scope, where memlab comes first.
        // SAFETY: the caller's own name; RTLD_NEXT from here means the objects after libmemlab.
        found = unsafe { real(libc::RTLD_NEXT, symbol) };
        if found.is_null() {
            return ptr::without_provenance_mut(ABSENT); // The process contains no CUDA.
        }
    }
    if found.is_null() && handle == libc::RTLD_NEXT {
        return ptr::without_provenance_mut(ABSENT); // The jump would find memlab's function.
    }
    match hook {
        Some(hook) if !found.is_null() => {
            (hook.set_real)(found);
            hook.address.cast_mut()
        }
        _ => ptr::null_mut(), // The jump repeats the lookup, which sets the caller's dlerror.
    }
}
