//! Libraries opened at run time, and their functions by name: memlab is not linked to them.

use std::ffi::{CStr, OsStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An open library. It is never closed, so that its functions stay valid.
pub struct SharedLibrary(*mut c_void);

impl SharedLibrary {
    /// Opens a library as the dynamic linker finds it.
    ///
    /// # Errors
    ///
    /// The linker's message.
    pub fn open(name: &CStr) -> Result<Self, String> {
        // SAFETY: the name ends in a NUL. `dlerror` is per thread, and its text is copied at once.
        unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if !library.is_null() {
                return Ok(Self(library));
            }
            let reason = libc::dlerror();
            Err(if reason.is_null() {
                format!("{}: not loaded", name.to_string_lossy())
            } else {
                CStr::from_ptr(reason).to_string_lossy().into_owned()
            })
        }
    }

    /// Looks up a function of the library by name, as type `F`.
    ///
    /// # Safety
    ///
    /// The library's function of that name must have type `F`, a function pointer.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address(name);
        // SAFETY: by this function's contract, the address is a function of type F, and both have the same size.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// File that contains a function of the library.
    pub fn file_of(&self, name: &CStr) -> Option<PathBuf> {
        let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the structure outlives the call, and its strings stay valid while the library is open.
        unsafe {
            if libc::dladdr(self.address(name), found.as_mut_ptr()) == 0 {
                return None;
            }
            let file = found.assume_init().dli_fname;
            (!file.is_null()).then(|| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(file).to_bytes())))
        }
    }

    fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is open, the name ends in a NUL.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}
