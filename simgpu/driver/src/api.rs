//! The `api!` macro that defines the driver's entry points, the code around every call, and the list of all entry
//! points for `cuGetProcAddress`.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Answer, Code};
use crate::fail;
use crate::observed::{OBSERVER, notify_nodes};

/// One exported function, as collected by the linker in the section `simgpu_api`.
#[repr(C)]
pub struct Entry {
    pub name: &'static str,
    pub function: *const c_void,
}

// SAFETY: an entry is a name and the address of a function; both are constant.
unsafe impl Sync for Entry {}

/// Exports driver functions under their ABI names.
///
/// A second name after `|` (the per-thread default stream variant, or an older name with the same signature) shares the
/// body. The body returns `Result<(), Code>`.
macro_rules! api {
    ($(fn $name:ident $(| $also:ident)* ($($args:tt)*) $body:block)*) => {$(
        $crate::api::export_all!([$name $($also)*] ($($args)*) $body);
    )*};
}

/// Exports one function under all its names.
macro_rules! export_all {
    ([$name:ident $($also:ident)*] $args:tt $body:block) => {
        $crate::api::export!($name $args $body);
        $( $crate::api::export_also!($also $name $args); )*
    };
}

/// Exports one function.
macro_rules! export {
    ($name:ident ($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            $crate::api::call(stringify!($name), || {
                // SAFETY: the caller vouches for its pointers, as the CUDA documentation asks of it.
                #[allow(unused_unsafe, unreachable_code)]
                unsafe { $body; Ok(()) }
            })
        }
        $crate::api::list!($name);
    };
}

/// Exports a second name of a function.
macro_rules! export_also {
    ($also:ident $name:ident ($($arg:ident: $type:ty),* $(,)?)) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        unsafe extern "C" fn $also($($arg: $type),*) -> i32 {
            // SAFETY: the caller's promises are passed on unchanged.
            unsafe { $name($($arg),*) }
        }
        $crate::api::list!($also);
    };
}

/// Adds an exported function to the list.
macro_rules! list {
    ($name:ident) => {
        const _: () = {
            #[used]
            #[unsafe(link_section = "simgpu_api")]
            static ENTRY: $crate::api::Entry =
                $crate::api::Entry { name: stringify!($name), function: $name as *const std::ffi::c_void };
        };
    };
}

pub(crate) use {api, export, export_all, export_also, list};

/// Runs the body of an entry point, after injected failures. Panics do not unwind into the caller.
pub fn call(name: &'static str, body: impl FnOnce() -> Answer) -> i32 {
    let observed = OBSERVER.enter(name);
    let answer = catch_unwind(AssertUnwindSafe(|| {
        fail::injected(name)?;
        body()
    }));
    let status = match answer {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    };
    if let Some(observed) = observed {
        notify_nodes();
        observed.leave(status);
    }
    status
}

/// Writes an answer through a pointer that must not be null.
///
/// # Safety
/// `to` is null or points to writable memory for a `T`.
pub unsafe fn answer<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest; C callers may hand in unaligned memory.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes an answer through a pointer that may be null.
///
/// # Safety
/// `to` is null or points to writable memory for a `T`.
pub unsafe fn answer_if_asked<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { to.write_unaligned(value) };
    }
}

/// Returns all entry points.
pub fn entries() -> &'static [Entry] {
    #[allow(improper_ctypes)] // only the addresses matter
    unsafe extern "C" {
        static __start_simgpu_api: Entry;
        static __stop_simgpu_api: Entry;
    }
    // SAFETY: the linker defines both symbols around the section, which holds nothing but `Entry` values.
    unsafe {
        let (start, stop) = (&raw const __start_simgpu_api, &raw const __stop_simgpu_api);
        std::slice::from_raw_parts(start, stop.offset_from(start) as usize)
    }
}
