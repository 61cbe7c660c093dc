//! Checks that the loaded PyTorch has the functions that memlab hooks.
//!
//! A hook on a renamed function is never called, so the figures would be wrong without a warning.

use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::hook::{TorchHook, Version};
use super::hooks::hooks;
use crate::recorder::Recorder;
use interpose_base::loaded_objects;
use interpose_base::symbols;

const LIBRARIES: [&CStr; 3] = [c"libc10.so", c"libtorch_cpu.so", c"libtorch_cuda.so"];

/// Number of objects that had been loaded at the last check.
static LOADS: AtomicU64 = AtomicU64::new(0);
/// One bit for each of [`LIBRARIES`] that has been checked in this recording.
static CHECKED: AtomicU64 = AtomicU64::new(0);

/// Warns of functions missing from PyTorch libraries that were loaded since the last call.
pub fn check(recorder: &Recorder) {
    let loads = loaded_objects::loads();
    if LOADS.swap(loads, Ordering::AcqRel) == loads {
        return;
    }
    for (index, library) in LIBRARIES.into_iter().enumerate() {
        let bit = 1 << index;
        if CHECKED.load(Ordering::Relaxed) & bit != 0 {
            continue;
        }
        let Some(path) = loaded_objects::path_of(library) else { continue };
        if CHECKED.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            let has = |hook: &TorchHook| !symbols::in_loaded_library(library, hook.symbol).is_null();
            let version = version_beside(Path::new(&path));
            for complaint in missing(version, hooks().filter(|hook| hook.library == library), has) {
                recorder.warn(&complaint);
            }
        }
    }
}

/// Called in a forked child, which has another trace.
pub fn reset_in_child() {
    LOADS.store(0, Ordering::Release);
    CHECKED.store(0, Ordering::Release);
}

/// Returns a sentence for each consequence of functions that PyTorch should have but does not.
fn missing(
    version: Option<Version>,
    hooks: impl Iterator<Item = TorchHook>,
    has: impl Fn(&TorchHook) -> bool,
) -> Vec<String> {
    let expected = hooks.filter(|hook| hook.versions.contain(version) && !has(hook));
    let which = version.map_or("this PyTorch".to_owned(), |(major, minor)| format!("PyTorch {major}.{minor}"));
    let mut names_by_consequence: Vec<(&str, Vec<&str>)> = Vec::new();
    for hook in expected {
        match names_by_consequence.iter_mut().find(|(lost, _)| *lost == hook.lost) {
            Some((_, names)) => names.push(hook.name),
            None => names_by_consequence.push((hook.lost, vec![hook.name])),
        }
    }
    names_by_consequence.iter().map(|(lost, names)| format!("{which} has no {}: {lost}", names.join(", "))).collect()
}

/// Reads the version from `torch/version.py`, for the library at `torch/lib/…`.
fn version_beside(library: &Path) -> Option<Version> {
    let source = std::fs::read_to_string(library.parent()?.parent()?.join("version.py")).ok()?;
    let line = source.lines().find_map(|line| line.strip_prefix("__version__"))?;
    let mut numbers = line.trim_start_matches([' ', '=', '\'', '"']).split(|byte: char| !byte.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::torch::workspace;

    #[test]
    fn only_functions_of_the_version_are_expected() {
        // GIVEN a PyTorch that has none of the functions that hand out workspaces
        let asked = |version| missing(version, workspace::hooks().into_iter(), |_| false);
        // THEN those of this version are reported as missing, with the consequence
        let names = |version| {
            let said = asked(version);
            assert_eq!(said.len(), 1, "one consequence, one sentence");
            said[0].matches("at::cuda::").count()
        };
        assert_eq!([(2, 1), (2, 8), (2, 11), (2, 15)].map(|version| names(Some(version))), [1, 1, 2, 3]);
        assert!(asked(Some((2, 4)))[0].starts_with("PyTorch 2.4 has no at::cuda::getCurrentCUDABlasHandle(): cuBLAS"));
        // AND for an unknown version, functions that not every version has are not expected
        assert!(asked(None).is_empty());
        let consequences: BTreeSet<&str> = hooks().filter(|h| h.versions.contain(None)).map(|h| h.lost).collect();
        assert_eq!(missing(None, hooks(), |_| false).len(), consequences.len());
        assert!(missing(Some((2, 15)), hooks(), |_| true).is_empty());
    }

    #[test]
    fn the_version_is_read_from_the_file_beside_the_library() -> std::io::Result<()> {
        let folder = std::env::temp_dir().join(format!("memlab-version-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("lib"))?;
        let version = |source: &str| {
            std::fs::write(folder.join("version.py"), source)?;
            std::io::Result::Ok(version_beside(&folder.join("lib/libtorch_cpu.so")))
        };
        assert_eq!(version("import x\n__version__ = '2.4.1+cu121'\ndebug = False\n")?, Some((2, 4)));
        assert_eq!(version("__version__ = \"2.15.0a0+git\"\n")?, Some((2, 15)));
        assert_eq!(version("__version__ = None\n")?, None);
        std::fs::remove_dir_all(&folder)
    }
}
