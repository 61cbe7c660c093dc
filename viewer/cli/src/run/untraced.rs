//! Reasons why a program left no trace, or a truncated one.

use std::ffi::OsString;
use std::path::Path;

use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};

use super::launch::ExitOutcome;
use super::traces::TraceFinder;
use memlab_base::preload::why_untraced;
use memlab_base::shared_library::SharedLibrary;
use memlab_base::text::typed_path;
use memlab_follow::offload::cuda_driver::LIBRARY;
use memlab_units::format::size;

/// Free space that a trace needs to begin or continue.
const MIN_FREE_BYTES: u64 = 1 << 16;

/// Describes the end of a program that left no trace, with the reason and advice.
pub fn without_trace(finder: &mut TraceFinder, command: &[OsString], ended: ExitOutcome) -> String {
    let program = command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
    let end = ended.describe();
    match why_no_trace(finder, command) {
        Some(why) => format!("{program}: {end}; {why}"),
        None => format!(
            "no trace was written: this machine has no CUDA driver, so {program} allocated no CUDA memory ({end}). To \
             use a simulated GPU: `memlab simulate -- memlab run -- …`. `memlab doctor` shows what is missing."
        ),
    }
}

/// Explains why an ended program left no trace. `None`: this machine has no CUDA driver.
fn why_no_trace(finder: &mut TraceFinder, command: &[OsString]) -> Option<String> {
    if let Some(why) = command.first().and_then(|program| why_untraced(program)) {
        return Some(format!("{why}; no trace was written"));
    }
    let folder = finder.folder().to_owned();
    Some(match (finder.lost(), obstacle(&folder, 0)) {
        (Some(_), Some(obstacle)) => format!("no trace was written: {obstacle}"),
        (Some(trace), None) => format!("its trace {} was deleted", typed_path(&trace)),
        (None, _) if !folder.is_dir() => format!("the folder of its trace, {}, was deleted", typed_path(&folder)),
        (None, Some(obstacle)) => format!("no CUDA memory was allocated, or no trace was written: {obstacle}"),
        (None, None) if SharedLibrary::open(LIBRARY).is_err() => return None,
        (None, None) => "no CUDA memory was allocated; no trace was written".to_owned(),
    })
}

/// Explains why a trace in `folder` has no end although its process had an exit code.
pub fn why_cut(folder: &Path, written: u64) -> String {
    let why = obstacle(folder, written).unwrap_or_else(|| {
        "the program replaced itself (exec), or memlab stopped writing, as reported above".to_owned()
    });
    format!("the trace was cut: {why}")
}

/// Describes the obstacle that stops a trace with `written` bytes in `folder` from growing, and gives advice.
fn obstacle(folder: &Path, written: u64) -> Option<String> {
    let is_full = statvfs(folder).is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < MIN_FREE_BYTES);
    if is_full {
        let folder = typed_path(folder);
        return Some(format!("the disk of {folder} is full: free some space, or choose another folder with -o"));
    }
    let largest =
        getrlimit(Resource::Fsize).current.filter(|largest| *largest < written.saturating_add(MIN_FREE_BYTES))?;
    let largest = size(largest);
    Some(format!("files can have at most {largest} here: raise the limit with `ulimit -f`"))
}
