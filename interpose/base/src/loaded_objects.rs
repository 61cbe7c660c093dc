//! Libraries loaded by the dynamic linker.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// Number of objects loaded so far, including those unloaded since.
pub fn loads() -> u64 {
    /// Reads the counter from the first object's description and stops there.
    unsafe extern "C" fn count_loads(object: *mut libc::dl_phdr_info, _size: usize, loads: *mut c_void) -> c_int {
        // SAFETY: the linker passes a valid description, and `loads` is the variable below.
        unsafe { *loads.cast::<u64>() = (*object).dlpi_adds };
        1
    }
    let mut loads = 0u64;
    // SAFETY: the callback gets `loads` back while it is alive.
    unsafe { libc::dl_iterate_phdr(Some(count_loads), (&raw mut loads).cast()) };
    loads
}

/// Returns true if libmemlab precedes libc in load order: only if it was preloaded (or linked).
pub fn is_preloaded() -> bool {
    /// True if libmemlab precedes libc; `None` until either is found.
    struct LoadOrder(Option<bool>);
    unsafe extern "C" fn compare(object: *mut libc::dl_phdr_info, _size: usize, order: *mut c_void) -> c_int {
        // SAFETY: the linker passes a valid description, and `order` is the variable below.
        let (object, order) = unsafe { (&*object, &mut *order.cast::<LoadOrder>()) };
        if !object.dlpi_name.is_null() && order.0.is_none() {
            // SAFETY: a NUL-terminated name.
            let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
            if name.ends_with(b"/libc.so.6") {
                order.0 = Some(false);
            } else if object.dlpi_addr == base_of(is_preloaded as *const () as usize) as u64 {
                order.0 = Some(true);
            }
        }
        0
    }
    let mut order = LoadOrder(None);
    // SAFETY: the callback gets `order` back while it is alive.
    unsafe { libc::dl_iterate_phdr(Some(compare), (&raw mut order).cast()) };
    order.0.unwrap_or(false)
}

/// The load address of the object that contains `address`; null if no object does.
pub fn base_of(address: usize) -> *mut c_void {
    // SAFETY: zeros are a valid Dl_info; dladdr only fills it.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(address as *const c_void, &mut info);
        info.dli_fbase
    }
}

/// The load address of the program itself, as from [`base_of`].
pub fn program_base() -> *mut c_void {
    // SAFETY: a query without pointers; the kernel's value points into the program.
    base_of(unsafe { libc::getauxval(libc::AT_PHDR) } as usize)
}

/// The file name, without folders, of the library that contains `address`.
pub fn library_of(address: usize) -> Option<String> {
    let (path, _) = file_at(address)?;
    Some(path.rsplit('/').next().unwrap_or(&path).to_owned())
}

/// Returns the file that was loaded at `address`, and its load address.
pub fn file_at(address: usize) -> Option<(String, usize)> {
    // SAFETY: zeros are a valid Dl_info; dladdr only fills it, with a NUL-terminated name.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address as *const c_void, &mut info) == 0 as c_int || info.dli_fname.is_null() {
            return None;
        }
        Some((CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned(), info.dli_fbase as usize))
    }
}

/// Returns the file from which the library of this soname was loaded; `None` if it is not loaded.
pub fn path_of(soname: &CStr) -> Option<String> {
    // SAFETY: RTLD_NOLOAD loads nothing, and the reference it adds is dropped at once; a glibc handle is the library's
    // `link_map`, whose name is NUL-terminated.
    unsafe {
        let handle = libc::dlopen(soname.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return None;
        }
        let mut map: *const LinkMap = ptr::null();
        let known = libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0;
        let path = known.then(|| CStr::from_ptr((*map).name).to_string_lossy().into_owned());
        libc::dlclose(handle);
        path
    }
}

/// The beginning of glibc's `struct link_map`.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
}
