//! Checks the recording of GPU time by `memlab run --time`: CUPTI, and permission to use it.

use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};

use cupti_sys::bindings::{CUpti_ActivityKind, CUpti_CallbackDomain, CUpti_CallbackId, CUptiResult};
use cupti_sys::{CallError, Cupti};

use super::check::Check;

const NAME: &str = "GPU time";

/// Bit of CAP_SYS_ADMIN.
///
/// The driver treats its holder as an administrator.
const ADMINISTRATOR: u32 = 21;

/// Reason why CUPTI records nothing.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// The machine has no GPU to try it on.
    NoDevice,
    /// CUPTI is missing; with the linker's reasons.
    Missing(String),
    /// The driver refuses this user.
    Rights(PathBuf),
    /// Another error of CUPTI.
    Other(PathBuf, String),
}

/// Lets CUPTI record kernels for a moment.
///
/// Uses the first of these files that loads, else the dynamic linker's.
///
/// # Errors
///
/// If CUPTI is missing or refuses.
pub fn attempt(files: &[PathBuf]) -> Result<PathBuf, Refusal> {
    let of_python = files.iter().find_map(|file| Cupti::load_from(file).ok());
    let cupti = match of_python.map_or_else(Cupti::load, Ok) {
        Ok(cupti) => cupti,
        Err(error) => return Err(Refusal::Missing(error.to_string())),
    };
    let kind = CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    let file = cupti.name().to_owned();
    // SAFETY: the callback does nothing, and stays.
    let tried = unsafe { cupti.subscribe(Some(nothing)) }.and_then(|subscription| {
        let enabled = cupti.enable(kind).and_then(|()| cupti.disable(kind));
        enabled.and(cupti.unsubscribe(subscription))
    });
    match tried {
        Ok(()) => Ok(file),
        Err(CallError::Failed { result: CUptiResult::CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, .. }) => {
            Err(Refusal::Rights(file))
        }
        Err(error) => Err(Refusal::Other(file, error.to_string())),
    }
}

unsafe extern "C" fn nothing(_: *mut c_void, _: CUpti_CallbackDomain, _: CUpti_CallbackId, _: *const c_void) {}

/// Converts the attempt into a check; `root`: the folder of `/proc`.
pub fn check(attempt: &Result<PathBuf, Refusal>, root: &Path) -> Check {
    const CONSEQUENCE: &str = "`memlab run --time` records no GPU time";
    const REMEDY: &str = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run as an administrator (in a \
                         container: `--cap-add SYS_ADMIN`)";
    match attempt {
        Ok(file) if is_restricted(root) => Check::warning(
            NAME,
            format!(
                "{}; the driver restricts profiling to administrators, and may refuse `memlab run --time`",
                file.display()
            ),
            format!("if the report says so: {REMEDY}"),
        ),
        Ok(file) => Check::ok(NAME, file.display().to_string()),
        Err(Refusal::NoDevice) => {
            Check::warning(NAME, format!("there is no GPU to try it on: {CONSEQUENCE}"), "see the CUDA driver above")
        }
        Err(Refusal::Missing(why)) => Check::warning(
            NAME,
            format!("{CONSEQUENCE}: {why}"),
            "install the CUPTI of the CUDA that PyTorch was built for",
        ),
        Err(Refusal::Rights(file)) => {
            Check::warning(NAME, format!("{}: this user may not use it: {CONSEQUENCE}", file.display()), REMEDY)
        }
        Err(Refusal::Other(file, why)) => Check::warning(
            NAME,
            format!("{}: {why}: {CONSEQUENCE}", file.display()),
            "end other profilers, and use a CUPTI no newer than the driver",
        ),
    }
}

/// Returns true if only administrators may use the GPU's counters and this user is not one.
fn is_restricted(root: &Path) -> bool {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let value_of = |text: &str, name: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
    };
    let restricted =
        value_of(&read("proc/driver/nvidia/params"), "RmProfilingAdminOnly").is_some_and(|value| value != "0");
    let rights = value_of(&read("proc/self/status"), "CapEff").and_then(|value| u64::from_str_radix(&value, 16).ok());
    restricted && rights.is_none_or(|rights| rights >> ADMINISTRATOR & 1 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::CheckState;

    #[test]
    fn the_drivers_restriction_is_for_those_who_are_no_administrators() {
        // GIVEN a driver that restricts profiling, and users with and without the capability
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let state = |restriction: &str, rights: &str| {
            write("proc/driver/nvidia/params", &format!("ModifyDeviceFiles: 1\nRmProfilingAdminOnly: {restriction}\n"));
            write("proc/self/status", &format!("Name:\tmemlab\nCapEff:\t{rights}\n"));
            check(&Ok("/usr/lib/libcupti.so.13".into()), root.path()).state
        };
        // THEN only users without the capability are warned, and only if the driver restricts profiling
        assert_eq!(state("1", "0000000000000000"), CheckState::Warning);
        assert_eq!(state("1", "000001ffffffffff"), CheckState::Ok);
        assert_eq!(state("0", "0000000000000000"), CheckState::Ok);
    }

    #[test]
    fn a_refusal_has_a_next_step() {
        let advice = |refusal| check(&Err(refusal), Path::new("/no/such/root")).advice.unwrap();
        assert!(advice(Refusal::Rights("libcupti.so.13".into())).contains("NVreg_RestrictProfilingToAdminUsers=0"));
        assert!(advice(Refusal::Missing("not found".to_owned())).contains("CUPTI"));
        assert!(advice(Refusal::NoDevice).contains("driver"));
        assert!(advice(Refusal::Other("libcupti.so.13".into(), "busy".to_owned())).contains("other profilers"));
    }
}
