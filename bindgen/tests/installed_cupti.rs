//! The CUPTI wheel of PyTorch, if `make test` has installed it.

use std::path::{Path, PathBuf};

use cupti_sys::bindings::{CUPTI_API_VERSION, CUptiResult};
use cupti_sys::{CallError, Cupti, SONAMES};

fn cupti_of_the_wheel() -> Option<PathBuf> {
    let inside = |folder: PathBuf| -> Vec<PathBuf> {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/lib");
    let packages = inside(venv).into_iter().flat_map(|python| inside(python.join("site-packages/nvidia")));
    packages.flat_map(|package| SONAMES.map(|name| package.join("lib").join(name))).find(|path| path.exists())
}

#[test]
fn the_installed_cupti_has_every_function_and_requires_a_driver() {
    let Some(path) = cupti_of_the_wheel() else {
        eprintln!("skipped: there is no CUPTI in .venv");
        return;
    };
    let cupti = Cupti::load_from(&path).expect("loads, also without a driver");
    assert_eq!(cupti.missing(), [""; 0]);
    match cupti.version() {
        // With a driver: CUDA 12, which numbers versions differently, or a CUDA that the declarations cover.
        Ok(version) => {
            assert!(version < 100 || version / 10_000 <= CUPTI_API_VERSION / 10_000, "{version}");
            let text = cupti.result_text(CUptiResult::CUPTI_ERROR_NOT_INITIALIZED);
            assert_eq!(text, "CUPTI_ERROR_NOT_INITIALIZED");
        }
        // Without a driver CUPTI is not called: it would overflow the stack.
        Err(error) => {
            assert!(matches!(error, CallError::NoDriver), "{error}");
            assert_eq!(cupti.result_text(CUptiResult::CUPTI_ERROR_NOT_INITIALIZED), "error 15");
        }
    }
}
