//! Macros that define driver hooks.
//!
//! One row generates the exported function and its table entry.

use std::ffi::c_void;

/// Default-stream variant that a symbol implements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DefaultStream {
    /// One function serves both.
    Both,
    Legacy,
    /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
    PerThread,
}

/// A hooked function.
pub struct DriverHook {
    /// Name that is passed to `cuGetProcAddress`.
    pub requested_name: &'static str,
    /// First CUDA version (1000 × major + 10 × minor) in which the function has this ABI, as in the function type names of
    /// `cudaTypedefs.h`.
    ///
    /// An older request gets an older function, which memlab does not hook.
    pub since: i32,
    pub default_stream: DefaultStream,
    /// The driver's exported symbol, with `_v2` and `_ptsz`.
    pub abi_name: &'static str,
    /// memlab's function with that ABI.
    pub address: *const c_void,
    /// Stores the real function's address in the hook, unless it is already set.
    pub set_real: fn(*mut c_void),
}

// SAFETY: the address is that of a function, and functions can be called from any thread.
unsafe impl Sync for DriverHook {}

/// Defines hooks, one row each, and their table `HOOKS`:
///
/// ```text
/// KIND[COUNT] REQUESTED_NAME(ARGUMENTS) SINCE: SYMBOL / SYMBOL_FOR_PER_THREAD_STREAMS => { DETAILS };
/// ```
///
/// `KIND` is a macro that builds the function from symbol, arguments and details. `COUNT` is the number of integer arguments
/// if the function needs its caller's address, as for [`entry_point`]; else it is empty.
macro_rules! driver_hook_table {
    ($($kind:ident $count:tt $requested_name:ident $arguments:tt $since:literal: $symbol:ident $(/ $per_thread:ident)?
        => $details:tt;)*) => {
        $(
            $kind! { $symbol $count $arguments $details }
            $($kind! { $per_thread $count $arguments $details })?
        )*
        pub static HOOKS: &[$crate::cuda::hook::DriverHook] = &[$(
            $symbol::row(stringify!($requested_name), $since, $crate::cuda::hook::default_stream!($($per_thread)?)),
            $($per_thread::row(stringify!($requested_name), $since, $crate::cuda::hook::DefaultStream::PerThread),)?
        )*];
    };
}
pub(crate) use driver_hook_table;

/// Variant of a row's first symbol: legacy if the row has a second symbol.
macro_rules! default_stream {
    () => {
        $crate::cuda::hook::DefaultStream::Both
    };
    ($per_thread:ident) => {
        $crate::cuda::hook::DefaultStream::Legacy
    };
}
pub(crate) use default_stream;

/// Defines a hook by its details: `{ |real, caller| body }`, or `{ |real| body }` if the caller's address is not needed.
///
/// `real` calls the driver's function.
macro_rules! driver_hook {
    ($name:ident [$($count:tt)?] ($($arg:ident: $type:ty),*) { |$real:ident $(, $caller:ident)?| $body:expr }) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;

            static REAL: interpose_base::symbols::Real<unsafe extern "C" fn($($type),*) -> std::ffi::c_int> =
                interpose_base::symbols::Real::in_library(c"libcuda.so.1", $crate::cuda::hook::c_name!($name));

            $crate::cuda::hook::entry_point! { $name [$($count)?]
                ($($arg: $type),*) ($($caller)?) {
                    let Some(function) = REAL.get() else {
                        return interpose_driver::calls::CUDA_ERROR_NOT_INITIALIZED;
                    };
                    // SAFETY: the driver's own function, of this signature; it checks its arguments.
                    let $real = |$($arg: $type),*| unsafe { function($($arg),*) };
                    $body
                }
            }

            pub const fn row(
                requested_name: &'static str,
                since: i32,
                default_stream: $crate::cuda::hook::DefaultStream,
            ) -> $crate::cuda::hook::DriverHook {
                $crate::cuda::hook::DriverHook {
                    requested_name,
                    since,
                    default_stream,
                    abi_name: stringify!($name),
                    address: $name as *const std::ffi::c_void,
                    set_real: |real| REAL.set_if_unknown(real),
                }
            }
        }
    };
}
pub(crate) use driver_hook;

/// Defines an exported function.
///
/// With a count, it is an assembly entry: it adds its caller's return address as one more argument and jumps to the body,
/// which returns straight to the caller. (A Rust function cannot read its return address.) The count is the number of
/// integer arguments before the address, which decides the register (System V calling convention, x86-64).
macro_rules! entry_point {
    ($name:ident [] ($($arg:ident: $type:ty),*) () $body:block) => {
        /// # Safety
        ///
        /// As for the function that it stands for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int $body
    };
    ($name:ident [1] $($rest:tt)*) => { $crate::cuda::hook::entry_point! { @ "rsi" $name $($rest)* } };
    ($name:ident [2] $($rest:tt)*) => { $crate::cuda::hook::entry_point! { @ "rdx" $name $($rest)* } };
    ($name:ident [3] $($rest:tt)*) => { $crate::cuda::hook::entry_point! { @ "rcx" $name $($rest)* } };
    ($name:ident [4] $($rest:tt)*) => { $crate::cuda::hook::entry_point! { @ "r8" $name $($rest)* } };
    ($name:ident [5] $($rest:tt)*) => { $crate::cuda::hook::entry_point! { @ "r9" $name $($rest)* } };
    (@ $register:literal $name:ident ($($arg:ident: $type:ty),*) ($caller:ident) $body:block) => {
        /// # Safety
        ///
        /// Only the entry below may call it.
        unsafe extern "C" fn body($($arg: $type,)* $caller: usize) -> std::ffi::c_int $body

        /// # Safety
        ///
        /// As for the function that it stands for, with that function's arguments.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                concat!("mov ", $register, ", [rsp]"),
                "jmp {body}",
                body = sym body,
            )
        }
    };
}
pub(crate) use entry_point;

/// Converts an identifier to a `CStr` at compile time.
macro_rules! c_name {
    ($name:ident) => {
        match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    };
}
pub(crate) use c_name;
