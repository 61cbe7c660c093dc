//! Hook on `cuGetProcAddress`, through which runtimes since CUDA 11.3 look up the driver's functions.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::hook::{DefaultStream, DriverHook, driver_hook, driver_hook_table};
use super::hook_table;
use interpose_base::config::enabled;
use interpose_driver::calls::CUDA_SUCCESS;
use interpose_driver::types::Out;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

driver_hook_table! {
    // CUDA 12's signature.
    driver_hook[] cuGetProcAddress(
        symbol: *const c_char, function: Out<*mut c_void>, version: c_int, flags: u64, status: *mut c_int
    ) 12000: cuGetProcAddress_v2 => { |real| {
        let result = real(symbol, function, version, flags, status);
        if result == CUDA_SUCCESS {
            // SAFETY: the driver has just read the name.
            substitute(unsafe { CStr::from_ptr(symbol) }, function, version, flags);
        }
        result
    } };
    // CUDA 11.3's signature.
    driver_hook[] cuGetProcAddress(symbol: *const c_char, function: Out<*mut c_void>, version: c_int, flags: u64) 11030:
    cuGetProcAddress => { |real| {
        let result = real(symbol, function, version, flags);
        if result == CUDA_SUCCESS {
            // SAFETY: the driver has just read the name.
            substitute(unsafe { CStr::from_ptr(symbol) }, function, version, flags);
        }
        result
    } };
}

/// Replaces the function that the driver has just returned with memlab's hook, if one exists.
fn substitute(symbol: &CStr, function: Out<*mut c_void>, version: c_int, flags: u64) {
    let Some(real) = function.get().filter(|real| !real.is_null() && enabled()) else { return };
    if let Some(hook) = by_request(symbol.to_bytes(), version, flags & PER_THREAD_DEFAULT_STREAM != 0)
        && !std::ptr::eq(real, hook.address)
    {
        (hook.set_real)(real);
        function.set(hook.address.cast_mut());
    }
}

/// The hooks on driver functions that this program needs.
pub fn in_force() -> impl Iterator<Item = &'static DriverHook> {
    HOOKS.iter().chain(hook_table::in_force())
}

/// All hooks on driver functions, active or not.
pub fn all() -> impl Iterator<Item = &'static DriverHook> {
    HOOKS.iter().chain(hook_table::all())
}

/// The hook for a `cuGetProcAddress` request.
fn by_request(name: &[u8], version: i32, per_thread_streams: bool) -> Option<&'static DriverHook> {
    let unwanted = if per_thread_streams { DefaultStream::Legacy } else { DefaultStream::PerThread };
    in_force()
        .filter(|hook| {
            hook.requested_name.as_bytes() == name && version >= hook.since && hook.default_stream != unwanted
        })
        .max_by_key(|hook| hook.since)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_function_has_one_hook_and_each_request_one_answer() {
        let mut symbols = HashSet::new();
        let mut requests = HashSet::new();
        for hook in all() {
            assert!(symbols.insert(hook.abi_name), "{}", hook.abi_name);
            assert!(
                requests.insert((hook.requested_name, hook.since, hook.default_stream == DefaultStream::PerThread)),
                "{}",
                hook.abi_name
            );
            let per_thread = hook.abi_name.ends_with("_ptsz") || hook.abi_name.ends_with("_ptds");
            assert_eq!(per_thread, hook.default_stream == DefaultStream::PerThread, "{}", hook.abi_name);
            assert!(hook.abi_name.starts_with(hook.requested_name), "{} for {}", hook.abi_name, hook.requested_name);
        }
    }

    #[test]
    fn the_requested_version_decides() {
        let name = |version, per_thread| by_request(b"cuMemAlloc", version, per_thread).map(|hook| hook.abi_name);
        assert_eq!(name(2000, false), None, "the 32-bit function of CUDA 2 is left alone");
        assert_eq!(name(13000, false), Some("cuMemAlloc_v2"));
        assert_eq!(name(13000, true), Some("cuMemAlloc_v2"), "which takes no stream");
        let name = |per_thread| by_request(b"cuMemFreeAsync", 12000, per_thread).map(|hook| hook.abi_name);
        assert_eq!((name(false), name(true)), (Some("cuMemFreeAsync"), Some("cuMemFreeAsync_ptsz")));
        assert_eq!(by_request(b"cuGetProcAddress", 11030, false).map(|h| h.abi_name), Some("cuGetProcAddress"));
        assert_eq!(by_request(b"cuGetProcAddress", 12000, false).map(|h| h.abi_name), Some("cuGetProcAddress_v2"));
    }
}
