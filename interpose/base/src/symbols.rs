//! Finds the real functions behind memlab's hooks.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::loaded_objects::base_of;
use crate::stderr::print_message;

/// The real function behind a hook, looked up once.
///
/// `F` is its `fn` pointer type.
pub struct Real<F> {
    address: AtomicPtr<c_void>,
    /// The library to look in; empty for the next object in lookup order.
    library: &'static CStr,
    symbol: &'static CStr,
    /// True if a library that is preloaded after memlab may also hook the function.
    may_be_hooked: bool,
    misses: AtomicU8,
    kind: PhantomData<F>,
}

/// Maximum number of misses, after which the lookup is given up: each miss is slow.
const MAX_MISSES: u8 = 32;

// SAFETY: the fields are atomics and static strings.
unsafe impl<F> Sync for Real<F> {}

impl<F: Copy> Real<F> {
    /// A function of the library with this soname, which is loaded by the time the hook is called.
    pub const fn in_library(library: &'static CStr, symbol: &'static CStr) -> Self {
        let (address, misses) = (AtomicPtr::new(ptr::null_mut()), AtomicU8::new(0));
        Self { address, library, symbol, may_be_hooked: false, misses, kind: PhantomData }
    }

    /// Like [`in_library`](Self::in_library), but prefers a hook in a library that is preloaded after memlab.
    pub const fn hooked_or_in_library(library: &'static CStr, symbol: &'static CStr) -> Self {
        Self { may_be_hooked: true, ..Self::in_library(library, symbol) }
    }

    /// A function of the next object in lookup order after libmemlab.
    pub const fn next(symbol: &'static CStr) -> Self {
        Self::in_library(c"", symbol)
    }

    /// The real function; `None` if the library is not loaded or has no such function.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            address = self.find();
        }
        // SAFETY: `F` is a function pointer type of pointer size (asserted), and the address is that function's.
        (!address.is_null()).then(|| unsafe {
            const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
            std::mem::transmute_copy(&address)
        })
    }

    /// The name of the function.
    pub fn symbol(&self) -> &'static CStr {
        self.symbol
    }

    /// Uses `address` as the real function, unless it is already known.
    pub fn set_if_unknown(&self, address: *mut c_void) {
        let _ = self.address.compare_exchange(ptr::null_mut(), address, Ordering::AcqRel, Ordering::Relaxed);
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        if self.misses.load(Ordering::Relaxed) >= MAX_MISSES {
            return ptr::null_mut();
        }
        let found = if self.library.is_empty() {
            // SAFETY: a NUL-terminated name; RTLD_NEXT from here searches the objects after libmemlab.
            let next = unsafe { real_dlsym()(libc::RTLD_NEXT, self.symbol.as_ptr()) };
            // If memlab was loaded into a running program, nothing follows it; the global scope has the function.
            if next.is_null() { in_global_scope(self.symbol) } else { next }
        } else {
            // SAFETY: as above.
            let hook = self.may_be_hooked.then(|| unsafe { real_dlsym()(libc::RTLD_NEXT, self.symbol.as_ptr()) });
            let found = hook.filter(|hook| !hook.is_null());
            let found = found.unwrap_or_else(|| in_loaded_library(self.library, self.symbol));
            // Some builds link the function into a library of another name.
            if found.is_null() { in_global_scope(self.symbol) } else { found }
        };
        if found.is_null() {
            self.misses.fetch_add(1, Ordering::Relaxed);
        } else {
            self.set_if_unknown(found);
        }
        found
    }
}

/// Finds `symbol` in the library of this soname, if that is loaded; otherwise returns null.
///
/// PyTorch loads its libraries RTLD_LOCAL, where RTLD_NEXT does not search.
pub fn in_loaded_library(soname: &CStr, symbol: &CStr) -> *mut c_void {
    // SAFETY: RTLD_NOLOAD loads nothing; the reference it adds is dropped at once, and the library stays loaded, since
    // its code called the hook.
    unsafe {
        let handle = libc::dlopen(soname.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return ptr::null_mut();
        }
        let found = real_dlsym()(handle, symbol.as_ptr());
        libc::dlclose(handle);
        found
    }
}

/// Finds `symbol` as the program itself resolves it, unless the result is memlab's own.
fn in_global_scope(symbol: &CStr) -> *mut c_void {
    // SAFETY: a null path gives a handle on the global scope, which needs no closing; names are NUL-terminated.
    unsafe {
        let program = libc::dlopen(ptr::null(), libc::RTLD_LAZY);
        let found = if program.is_null() { ptr::null_mut() } else { real_dlsym()(program, symbol.as_ptr()) };
        let ours = !found.is_null() && base_of(found.addr()) == base_of(real_dlsym as *const () as usize);
        if ours { ptr::null_mut() } else { found }
    }
}

/// Finds `symbol` anywhere in the global scope.
pub fn in_process(symbol: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name and a handle that always exists.
    unsafe { real_dlsym()(libc::RTLD_DEFAULT, symbol.as_ptr()) }
}

/// Ends the program when a hook was called but no loaded library has the real function.
///
/// Continuing would give the program wrong results.
pub fn abort_without(symbol: &str) -> ! {
    print_message(&format!(
        "{symbol} was called, but no loaded library defines it: unset LD_PRELOAD and report this, please"
    ));
    std::process::abort()
}

pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// glibc's `dlsym`, set by [`real_dlsym`].
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Returns glibc's `dlsym`.
///
/// Looks it up by version: an unversioned lookup would find libmemlab's.
pub fn real_dlsym() -> Dlsym {
    let mut real = REAL_DLSYM.load(Ordering::Acquire);
    if real.is_null() {
        for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
            // SAFETY: strings are NUL-terminated; RTLD_NEXT from libmemlab leads to libc or libdl.
            real = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            if !real.is_null() {
                break;
            }
        }
        REAL_DLSYM.store(real, Ordering::Release);
    }
    // SAFETY: glibc always has one of these; a null here would mean no dynamic linker.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real) }
}
