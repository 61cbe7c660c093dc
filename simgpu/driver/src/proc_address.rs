//! `cuGetProcAddress`: finds the function of a CUDA version by plain name and flags.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use crate::api::{answer, answer_if_asked, api, entries};
use crate::code::{Answer, Code};

/// One line per plain name: the name, then for each ABI version the CUDA version that introduced it and its ABI name,
/// oldest first.
///
/// Sources: cudaTypedefs.h (`PFN_name_v<version>`) and the renaming macros in cuda.h.
static VERSIONS: &str = include_str!("versions.list");

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

// CUdriverProcAddressQueryResult
const SUCCESS: i32 = 0;
const NOT_FOUND: i32 = 1;
const VERSION_NOT_SUFFICIENT: i32 = 2;

type Versions = HashMap<&'static str, Vec<(i32, &'static str)>>;

fn versions() -> &'static Versions {
    static TABLE: OnceLock<Versions> = OnceLock::new();
    TABLE.get_or_init(|| {
        let line = |line: &'static str| {
            let mut words = line.split_ascii_whitespace();
            let name = words.next()?;
            let pair = |word: &'static str| {
                let (version, abi) = word.split_once(':')?;
                Some((version.parse().ok()?, abi))
            };
            Some((name, words.filter_map(pair).collect()))
        };
        VERSIONS.lines().filter_map(line).collect()
    })
}

/// Returns the exported function with this ABI name.
fn exported(name: &str) -> Option<*const c_void> {
    static TABLE: OnceLock<HashMap<&str, usize>> = OnceLock::new();
    let table = TABLE.get_or_init(|| entries().iter().map(|entry| (entry.name, entry.function as usize)).collect());
    table.get(name).map(|address| *address as *const c_void)
}

/// Returns the function for a plain name in a CUDA version, or the reason that none exists.
pub fn resolve(name: &str, version: i32, per_thread: bool) -> Result<*const c_void, i32> {
    let known = versions().get(name).ok_or(NOT_FOUND)?;
    let usable = known.iter().rev().filter(|(since, _)| *since <= version);
    let mut usable = usable.map(|(_, abi)| *abi).filter(|abi| exported(abi).is_some());
    let Some(abi) = usable.next() else {
        let later = known.iter().any(|(since, abi)| *since > version && exported(abi).is_some());
        return Err(if later { VERSION_NOT_SUFFICIENT } else { NOT_FOUND });
    };
    let variants = if per_thread { ["_ptsz", "_ptds"].as_slice() } else { &[] };
    let variant = variants.iter().find_map(|suffix| exported(&format!("{abi}{suffix}")));
    variant.or_else(|| exported(abi)).ok_or(NOT_FOUND)
}

/// # Safety
/// `name` is a NUL-terminated string or null; the other pointers are null or have room for their answers.
unsafe fn get(name: *const c_char, to: *mut *const c_void, version: i32, per_thread: bool, status: *mut i32) -> Answer {
    if name.is_null() || to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe {
        let result = CStr::from_ptr(name).to_str().map_err(|_| NOT_FOUND);
        match result.and_then(|name| resolve(name, version, per_thread)) {
            Ok(function) => {
                answer_if_asked(status, SUCCESS);
                answer(to, function)
            }
            Err(reason) => {
                answer_if_asked(status, reason);
                answer(to, std::ptr::null())?;
                Err(Code::NOT_FOUND)
            }
        }
    }
}

api! {
    fn cuGetProcAddress(name: *const c_char, to: *mut *const c_void, version: i32, flags: u64) {
        get(name, to, version, flags & PER_THREAD != 0, std::ptr::null_mut())?;
    }

    fn cuGetProcAddress_v2(
        name: *const c_char, to: *mut *const c_void, version: i32, flags: u64, status: *mut i32,
    ) {
        get(name, to, version, flags & PER_THREAD != 0, status)?;
    }

    fn cuGetProcAddress_v2_ptsz(
        name: *const c_char, to: *mut *const c_void, version: i32, flags: u64, status: *mut i32,
    ) {
        get(name, to, version, flags & 1 == 0, status)?; // per thread unless the legacy stream is requested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_export_is_in_the_list() {
        // GIVEN all exports except the per-thread variants, which flags select
        let plain = entries().iter().map(|entry| entry.name).filter(|name| !name.contains("_pt"));
        // WHEN they are looked up in the list, THEN each is found, and the list names only exported functions.
        let listed: Vec<&str> = versions().values().flatten().map(|(_, abi)| *abi).collect();
        let mut missing: Vec<&str> = plain.filter(|name| !listed.contains(name)).collect();
        missing.sort_unstable(); // The linker does not define the order.
        assert_eq!(missing, ["cuProfilerStart", "cuProfilerStop"], "not in versions.list");
        assert!(listed.iter().all(|abi| exported(abi).is_some()));
    }

    #[test]
    fn a_name_resolves_to_the_newest_function_of_the_requested_version() {
        let same =
            |name, version, abi| assert_eq!(resolve(name, version, false).ok(), exported(abi), "{name} {version}");
        // GIVEN a function with a second version since CUDA 3.2
        // WHEN a current runtime asks for it, THEN it gets the second version.
        same("cuMemAlloc", 12_080, "cuMemAlloc_v2");
        // GIVEN functions whose signature changed later
        // WHEN runtimes of different versions ask, THEN each gets the matching one.
        same("cuStreamGetCaptureInfo", 11_040, "cuStreamGetCaptureInfo_v2");
        same("cuStreamGetCaptureInfo", 12_030, "cuStreamGetCaptureInfo_v3");
        same("cuMemAdvise", 11_000, "cuMemAdvise");
        same("cuMemcpyBatchAsync", 12_080, "cuMemcpyBatchAsync");
        same("cuMemcpyBatchAsync", 13_000, "cuMemcpyBatchAsync_v2");
        // WHEN the per-thread stream is requested, THEN the variant is returned if one exists.
        assert_eq!(resolve("cuMemcpyHtoDAsync", 12_000, true).ok(), exported("cuMemcpyHtoDAsync_v2_ptsz"));
        assert_eq!(resolve("cuMemcpy", 12_000, true).ok(), exported("cuMemcpy_ptds"));
        assert_eq!(resolve("cuMemAlloc", 12_000, true).ok(), exported("cuMemAlloc_v2"));
        // WHEN no version has it, or only a newer one, THEN the reason is returned.
        assert_eq!(resolve("cuMakeCoffee", 13_000, false), Err(NOT_FOUND));
        assert_eq!(resolve("cuMemCreate", 8_000, false), Err(VERSION_NOT_SUFFICIENT));
    }
}
