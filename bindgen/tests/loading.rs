//! Loads CUPTI, and libraries that lack functions.
//!
//! An empty library under the driver's name replaces the driver, in a separate process, because other tests must not
//! find it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::common::{folder, library};
use cupti_sys::bindings::{CUpti_ActivityKind, CUptiResult};
use cupti_sys::{CallError, Cupti};

#[test]
fn a_missing_library_is_reported_with_the_remedy() {
    // WHEN no CUPTI exists at the given path
    let Err(error) = Cupti::load_from(Path::new("/nowhere/libcupti.so.13")) else { panic!("found one") };
    // THEN the error has the path, the linker's reason and the remedy
    let text = error.to_string();
    assert!(text.contains("/nowhere/libcupti.so.13: cannot open shared object file"), "{text}");
    assert!(text.contains("nvidia-cuda-cupti") && text.contains("LD_LIBRARY_PATH"), "{text}");
}

#[test]
fn functions_that_a_library_lacks_are_none() {
    let mut command = Command::new(std::env::current_exe().expect("knows its path"));
    let scenario = "loading::scenario_functions_that_a_library_lacks";
    let done = command.args(["--ignored", "--exact", "--nocapture", scenario]).output().expect("runs");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && text.contains("1 passed"), "{done:?}");
}

#[test]
#[ignore = "run by `functions_that_a_library_lacks_are_none`"]
fn scenario_functions_that_a_library_lacks() {
    // GIVEN a driver, and a CUPTI that has two functions
    let folder = folder("loading");
    let driver = CString::new(library(&folder, "libcuda.so.1", "").as_os_str().as_bytes()).expect("is a path");
    // SAFETY: an empty library.
    assert!(!unsafe { libc::dlopen(driver.as_ptr(), libc::RTLD_NOW) }.is_null());
    let path = library(
        &folder,
        "libcupti.so.7",
        "int cuptiGetVersion(unsigned *version) { *version = 42; return 0; }\n\
         int cuptiActivityEnable(unsigned kind) { return kind == 49 ? 15 : 0; }\n",
    );
    let cupti = Cupti::load_from(&path).expect("loads");
    // THEN these two work
    assert_eq!(cupti.name(), path);
    assert_eq!(cupti.version().expect("answers"), 42);
    assert!(cupti.enable(CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY_POOL).is_ok());
    let Err(CallError::Failed { function, result, text }) =
        cupti.enable(CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMORY2)
    else {
        panic!("should have failed")
    };
    assert_eq!((function, result), ("cuptiActivityEnable", CUptiResult::CUPTI_ERROR_NOT_INITIALIZED));
    // AND calls of other functions return an error
    assert_eq!(text, "error 15");
    assert!(cupti.cuptiSubscribe.is_none());
    assert_eq!(cupti.missing().len(), 14);
    let error = cupti.dropped().expect_err("has no such function");
    assert_eq!(error.to_string(), "this CUPTI has no cuptiActivityGetNumDroppedRecords");
}
