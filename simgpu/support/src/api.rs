//! Macros of the entry points, and the statuses that they return.

/// Exports functions that succeed without doing anything.
///
/// In the C calling convention a function without parameters can be called with any arguments.
#[macro_export]
macro_rules! nothing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name() -> i32 {
            0
        }
    )*};
}

/// Exports functions whose body returns a status; 0 is success in all these libraries.
#[macro_export]
macro_rules! api {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
            let body = || {
                // SAFETY: the caller vouches for its pointers, as the libraries' documentation asks of it.
                #[allow(unused_unsafe)]
                unsafe { $body }
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or($crate::api::INTERNAL_ERROR)
        }
    )*};
}

pub use {api, nothing};

/// Success in all of these libraries.
pub const SUCCESS: i32 = 0;

/// `CUBLAS_STATUS_INVALID_VALUE`.
pub const CUBLAS_INVALID_VALUE: i32 = 7;

/// `CUDNN_STATUS_BAD_PARAM` of cuDNN 9.
pub const CUDNN_BAD_PARAM: i32 = 2000;

/// `CUDNN_STATUS_NOT_SUPPORTED` of cuDNN 8.
pub const CUDNN_8_NOT_SUPPORTED: i32 = 9;

/// A status that means failure in every library.
pub const INTERNAL_ERROR: i32 = 14;

/// Writes an answer if the pointer is not null.
///
/// # Safety
/// `to` is null or points to writable memory for a `T`.
pub unsafe fn answer<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { to.write_unaligned(value) };
    }
}
