//! The macros that define the runtime's entry points, and the code around every call.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::Driver;

/// A `cudaError_t` other than success. Since CUDA 10.1 it has the number of the corresponding `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

impl Error {
    pub const INVALID_VALUE: Error = Error(1);
    pub const INVALID_SYMBOL: Error = Error(13);
    pub const INSUFFICIENT_DRIVER: Error = Error(35);
    pub const INVALID_DEVICE_FUNCTION: Error = Error(98);
    pub const INVALID_DEVICE: Error = Error(101);
    pub const SYMBOL_NOT_FOUND: Error = Error(500);
    pub const NOT_READY: Error = Error(600);
    pub const NOT_SUPPORTED: Error = Error(801);
    pub const UNKNOWN: Error = Error(999);
}

/// What the body of an entry point returns.
pub type Answer = Result<(), Error>;

thread_local! {
    /// What `cudaGetLastError` returns.
    static LAST: Cell<i32> = const { Cell::new(0) };
}

/// The thread's last error; reset if `forget`.
pub fn last_error(forget: bool) -> i32 {
    LAST.try_with(|last| if forget { last.replace(0) } else { last.get() }).unwrap_or(0)
}

/// Exports runtime functions. The first argument names the driver in the body. A second name after `|` is the variant for the
/// per-thread default stream and calls the driver's functions of that variant. The context is made current first; functions
/// that must not create one are in `api_without_context!`.
macro_rules! api {
    ($(fn $name:ident $(| $also:ident)* ($cu:ident $(; $($args:tt)*)?) $body:block)*) => {$(
        $crate::api::export_all!(bound [$name $($also)*] $cu ($($($args)*)?) $body);
    )*};
}

/// Like `api!`, for functions that do not make a context current.
macro_rules! api_without_context {
    ($(fn $name:ident $(| $also:ident)* ($cu:ident $(; $($args:tt)*)?) $body:block)*) => {$(
        $crate::api::export_all!(plain [$name $($also)*] $cu ($($($args)*)?) $body);
    )*};
}

/// Exports one function under all its names.
macro_rules! export_all {
    ($how:ident [$name:ident $($also:ident)*] $cu:ident $args:tt $body:block) => {
        $crate::api::export!($how legacy $name $cu $args $body);
        $( $crate::api::export!($how per_thread $also $cu $args $body); )*
    };
}

/// Exports one function.
macro_rules! export {
    ($how:ident $table:ident $name:ident $cu:ident ($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            $crate::api::$how($crate::driver::$table, |$cu| {
                // SAFETY: the caller vouches for its pointers, as the CUDA documentation asks of it.
                #[allow(unused_unsafe, unreachable_code)]
                unsafe { $body; Ok(()) }
            })
        }
    };
}

pub(crate) use {api, api_without_context, export, export_all};

/// Runs the body of an entry point: panics do not unwind into the caller, and the error is stored.
pub fn plain(table: fn() -> Result<&'static Driver, Error>, body: impl FnOnce(&'static Driver) -> Answer) -> i32 {
    let answer = catch_unwind(AssertUnwindSafe(|| body(table()?)));
    let code = match answer {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(_) => Error::UNKNOWN,
    };
    fail(code)
}

/// Stores an error and returns its number.
pub fn fail(error: Error) -> i32 {
    if error != Error::NOT_READY {
        LAST.try_with(|last| last.set(error.0)).ok();
    }
    error.0
}

/// Like [`plain`], with the thread's context made current first.
pub fn bound(table: fn() -> Result<&'static Driver, Error>, body: impl FnOnce(&'static Driver) -> Answer) -> i32 {
    plain(table, |driver| {
        crate::device::make_current(driver)?;
        body(driver)
    })
}

/// Writes an answer through a pointer that must not be null.
///
/// # Safety
/// `to` is null or points to writable memory for a `T`.
pub unsafe fn answer<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest; C callers may hand in unaligned memory.
    unsafe { to.write_unaligned(value) };
    Ok(())
}
