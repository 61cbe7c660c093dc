//! Macros that define the runtime's entry points, and the code around every call.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Answer, Error};
use crate::driver_calls::Driver;
use crate::observed::OBSERVER;

thread_local! {
    /// Error that `cudaGetLastError` returns.
    static LAST: Cell<i32> = const { Cell::new(0) };
}

/// Returns the thread's last error, and resets it if `forget`.
pub fn last_error(forget: bool) -> i32 {
    LAST.try_with(|last| if forget { last.replace(0) } else { last.get() }).unwrap_or(0)
}

/// Exports runtime functions. The first argument names the driver in the body.
///
/// A second name after `|` is the variant for the per-thread default stream and calls the driver's functions of that
/// variant. The context is made current first; `api_without_context!` is for functions that must not create one.
macro_rules! api {
    ($(fn $name:ident $(| $also:ident)* ($cu:ident $(; $($args:tt)*)?) $body:block)*) => {$(
        $crate::api::export_all!(bound [$name $($also)*] $cu ($($($args)*)?) $body);
    )*};
}

/// Exports functions like `api!`, but does not make a context current.
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
            $crate::api::$how(stringify!($name), $crate::driver_calls::$table, |$cu| {
                // SAFETY: the caller vouches for its pointers, as the CUDA documentation asks of it.
                #[allow(unused_unsafe, unreachable_code)]
                unsafe { $body; Ok(()) }
            })
        }
    };
}

pub(crate) use {api, api_without_context, export, export_all};

/// Function that returns the driver to an entry point.
type Table = fn() -> Result<&'static Driver, Error>;

/// Runs the body of an entry point and stores its error. Panics do not unwind into the caller.
pub fn plain(name: &'static str, table: Table, body: impl FnOnce(&'static Driver) -> Answer) -> i32 {
    let observed = OBSERVER.enter(name);
    let answer = catch_unwind(AssertUnwindSafe(|| body(table()?)));
    let status = match answer {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => fail(error),
        Err(_) => fail(Error::UNKNOWN),
    };
    if let Some(observed) = observed {
        observed.leave(status);
    }
    status
}

/// Stores an error and returns its number.
pub fn fail(error: Error) -> i32 {
    if error != Error::NOT_READY {
        LAST.try_with(|last| last.set(error.0)).ok();
    }
    error.0
}

/// Runs the body like [`plain`], after making the thread's context current.
pub fn bound(name: &'static str, table: Table, body: impl FnOnce(&'static Driver) -> Answer) -> i32 {
    plain(name, table, |driver| {
        crate::current::make_current(driver)?;
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
