//! Checks the driver, the GPUs, the simulated card, and the recording of GPU time.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use memlab_units::format::size;

use super::check::Check;
use super::profiling;
use memlab_base::clock::patience;
use memlab_base::shared_library::SharedLibrary;
use memlab_base::simulation;
use memlab_follow::offload::cuda_driver::LIBRARY;

/// A driver that does not answer within this time hangs.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(30);

const DRIVER: &str = "CUDA driver";

/// Beginning of the finding on a machine without NVIDIA's driver.
pub const NO_DRIVER: &str = "no NVIDIA driver was found";

/// Answers of this machine's driver.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// File of the driver's library, or the dynamic linker's error.
    library: Result<PathBuf, String>,
    /// Newest CUDA that the driver supports: major and minor number.
    pub cuda: Option<(u32, u32)>,
    /// The GPUs, or the reason why none is found.
    devices: Result<Vec<Device>, String>,
    /// Version and file of NVML, or the reason why it does not answer.
    nvml: Result<(String, PathBuf), String>,
    /// File of CUPTI, or the reason why it records nothing.
    cupti: Result<PathBuf, profiling::Refusal>,
}

#[derive(Clone, Debug)]
struct Device {
    name: String,
    bytes: u64,
}

type SetNumber = unsafe extern "C" fn(*mut c_int) -> c_int;

impl Gpu {
    /// Queries the driver, and if a GPU exists, CUPTI from one of these files.
    pub fn probe(cupti: Vec<PathBuf>) -> Self {
        let (result, received) = mpsc::channel();
        thread::spawn(move || {
            let _ = result.send(Self::query(cupti));
        });
        let limit = patience(DRIVER_TIMEOUT);
        received.recv_timeout(limit).unwrap_or_else(|_| {
            let silent = || format!("no answer within {} seconds", limit.as_secs());
            Self {
                library: Ok(PathBuf::from(LIBRARY.to_string_lossy().as_ref())),
                cuda: None,
                devices: Err(silent()),
                nvml: Err(silent()),
                cupti: Err(profiling::Refusal::NoDevice),
            }
        })
    }

    fn query(cupti: Vec<PathBuf>) -> Self {
        let nvml = nvml();
        let library = match SharedLibrary::open(LIBRARY) {
            Ok(library) => library,
            Err(why) => {
                let none = Err(why.clone());
                return Self {
                    library: Err(why),
                    cuda: None,
                    devices: none,
                    nvml,
                    cupti: Err(profiling::Refusal::NoDevice),
                };
            }
        };
        // SAFETY: cuda.h declares both so, and the number outlives the call.
        let (devices, cuda) = unsafe {
            let mut number = 0;
            let get = library.function::<SetNumber>(c"cuDriverGetVersion");
            let known = get.is_some_and(|get| get(&mut number) == 0);
            (devices(&library), known.then_some((number as u32 / 1000, number as u32 % 1000 / 10)))
        };
        let file = library.file_of(c"cuInit").unwrap_or_default();
        let cupti = match &devices {
            // The simulated card preloads its own CUPTI. NVIDIA's CUPTI crashes on another driver.
            Ok(_) if simulation::is_simulated(&file) => profiling::attempt(&[]),
            Ok(_) => profiling::attempt(&cupti),
            Err(_) => Err(profiling::Refusal::NoDevice),
        };
        Self { library: Ok(file), cuda, devices, nvml, cupti }
    }

    /// Memory of the largest GPU.
    pub fn largest(&self) -> Option<u64> {
        self.devices.iter().flatten().map(|device| device.bytes).max()
    }

    /// Checks the driver, its GPUs, and NVML.
    pub fn checks(&self, root: &Path) -> Vec<Check> {
        let file = match &self.library {
            Ok(file) => file,
            Err(why) => return vec![no_driver(why, root)],
        };
        let release = fs::read_to_string(root.join("sys/module/nvidia/version")).unwrap_or_default();
        let cuda =
            self.cuda.map_or_else(|| "of unknown age".to_owned(), |(major, minor)| format!("CUDA {major}.{minor}"));
        let release = if simulation::is_simulated(file) { "simulated" } else { release.trim() };
        let described: Vec<&str> = [release, &cuda].into_iter().filter(|part| !part.is_empty()).collect();
        let described = format!("{}: {}", file.display(), described.join(", "));
        let mut checks = Vec::new();
        match &self.devices {
            Ok(devices) => {
                checks.push(Check::ok(DRIVER, described));
                let devices = devices.iter().enumerate();
                let devices: Vec<String> = devices
                    .map(|(index, Device { name, bytes })| format!("cuda:{index} {name}, {}", size(*bytes)))
                    .collect();
                checks.push(Check::ok("GPUs", devices.join("; ")));
            }
            Err(why) => checks.push(Check::cannot(
                DRIVER,
                format!("{described}; no GPU to use: {why}"),
                "check `nvidia-smi` and CUDA_VISIBLE_DEVICES; in a container, give it the GPU (`docker run --gpus all`); \
                 `memlab simulate` needs none",
            )),
        }
        checks.push(match &self.nvml {
            Ok((version, file)) => Check::ok("NVML", format!("{}: driver {version}", file.display())),
            Err(why) => Check::warning(
                "NVML",
                format!("{why}: memory in use by the CUDA context and by other processes is unknown"),
                "in a container, give it the driver's tools: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            ),
        });
        checks
    }

    /// Checks `memlab run --time`.
    pub fn time(&self, root: &Path) -> Check {
        profiling::check(&self.cupti, root)
    }
}

fn no_driver(why: &str, root: &Path) -> Check {
    let is_in_kernel = root.join("proc/driver/nvidia/version").exists();
    let (found, advice) = if is_in_kernel {
        (
            "the kernel has NVIDIA's driver, but its library was not found",
            "in a container, give it the GPU (`docker run --gpus all`, NVIDIA_DRIVER_CAPABILITIES=compute,utility); \
             elsewhere, install the driver's libraries or name their folder in LD_LIBRARY_PATH",
        )
    } else {
        (NO_DRIVER, "run memlab where the GPU is, or without one: `memlab simulate -- memlab run -- …`")
    };
    Check::cannot(DRIVER, format!("{found} ({why})"), advice)
}

/// Checks the libraries of `memlab simulate`.
pub fn simulated() -> Check {
    match simulation::library_folder() {
        Ok(folder) => Check::ok("simulated GPU", folder.display().to_string()),
        Err(error) => Check::warning(
            "simulated GPU",
            format!("{error:#}"),
            "install memlab again: `memlab simulate` and `memlab plan` need them",
        ),
    }
}

/// Returns the GPUs, in CUDA's order.
///
/// # Safety
///
/// The library must be CUDA's driver.
unsafe fn devices(library: &SharedLibrary) -> Result<Vec<Device>, String> {
    type Initialise = unsafe extern "C" fn(c_uint) -> c_int;
    type GetDevice = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    type GetBytes = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
    type GetText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    // SAFETY: these are the types that cuda.h declares them with; what they write to outlives the calls.
    unsafe {
        let functions = (|| {
            Some((
                library.function::<Initialise>(c"cuInit")?,
                library.function::<SetNumber>(c"cuDeviceGetCount")?,
                library.function::<GetDevice>(c"cuDeviceGet")?,
                library.function::<GetName>(c"cuDeviceGetName")?,
                library.function::<GetBytes>(c"cuDeviceTotalMem_v2")?,
            ))
        })();
        let Some((initialise, get_count, get_device, get_name, get_bytes)) = functions else {
            return Err("its library lacks functions".to_owned());
        };
        let check = |code: c_int| {
            if code == 0 {
                return Ok(());
            }
            let mut text = std::ptr::null();
            let known = library.function::<GetText>(c"cuGetErrorString").is_some_and(|get| get(code, &mut text) == 0);
            Err(if known && !text.is_null() {
                format!("{} (error {code})", CStr::from_ptr(text).to_string_lossy())
            } else {
                format!("error {code}")
            })
        };
        check(initialise(0))?;
        let mut count = 0;
        check(get_count(&mut count))?;
        let mut devices = Vec::new();
        for index in 0..count {
            let (mut device, mut name, mut bytes) = (0, [0; 256], 0);
            check(get_device(&mut device, index))?;
            check(get_name(name.as_mut_ptr(), name.len() as c_int, device))?;
            check(get_bytes(&mut bytes, device))?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            devices.push(Device { name, bytes: bytes as u64 });
        }
        if devices.is_empty() { Err("the driver lists none".to_owned()) } else { Ok(devices) }
    }
}

/// Returns the driver's version, as NVML reports it, and NVML's file.
fn nvml() -> Result<(String, PathBuf), String> {
    type Act = unsafe extern "C" fn() -> c_int;
    type GetVersion = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
    let library = SharedLibrary::open(c"libnvidia-ml.so.1")?;
    let mut version = [0; 96];
    // SAFETY: these are the types that nvml.h declares them with; the text outlives the call, which ends it with a NUL.
    unsafe {
        let initialise = library.function::<Act>(c"nvmlInit_v2").ok_or("NVML is too old")?;
        let get = library.function::<GetVersion>(c"nvmlSystemGetDriverVersion").ok_or("NVML is too old")?;
        for code in [initialise(), get(version.as_mut_ptr(), version.len() as c_uint)] {
            if code != 0 {
                return Err(format!("NVML does not answer (error {code})"));
            }
        }
        let version = CStr::from_ptr(version.as_ptr()).to_string_lossy().into_owned();
        Ok((version, library.file_of(c"nvmlInit_v2").unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::CheckState;

    fn gpu(devices: Result<Vec<Device>, String>) -> Gpu {
        Gpu {
            library: Ok("/usr/lib/libcuda.so.1".into()),
            cuda: Some((13, 0)),
            devices,
            nvml: Ok(("580.126.09".to_owned(), "/usr/lib/libnvidia-ml.so.1".into())),
            cupti: Err(profiling::Refusal::NoDevice),
        }
    }

    #[test]
    fn a_missing_driver_library_differs_from_a_missing_driver() {
        // GIVEN a machine without a driver
        let root = tempfile::tempdir().unwrap();
        let check = no_driver("cannot open shared object file", root.path());
        assert!(
            check.state == CheckState::Cannot && check.found.starts_with("no NVIDIA driver was found"),
            "{check:?}"
        );
        // WHEN the kernel has a driver THEN the machine is a container without the library
        fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        fs::write(root.path().join("proc/driver/nvidia/version"), "NVRM version: 580\n").unwrap();
        let check = no_driver("cannot open shared object file", root.path());
        assert!(check.found.starts_with("the kernel has NVIDIA's driver") && check.advice.unwrap().contains("--gpus"));
    }

    #[test]
    fn devices_or_their_absence_are_reported() {
        // GIVEN a driver of a known release, with a GPU and without one
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/module/nvidia")).unwrap();
        fs::write(root.path().join("sys/module/nvidia/version"), "580.126.09\n").unwrap();
        let h100 = Device { name: "NVIDIA H100".to_owned(), bytes: 80 << 30 };
        // THEN the driver's version and its GPU are reported
        let checks = gpu(Ok(vec![h100])).checks(root.path());
        assert_eq!(checks[0], Check::ok(DRIVER, "/usr/lib/libcuda.so.1: 580.126.09, CUDA 13.0"));
        assert_eq!(checks[1], Check::ok("GPUs", "cuda:0 NVIDIA H100, 80.0 GiB"));
        let checks = gpu(Err("no CUDA-capable device is detected (error 100)".to_owned())).checks(root.path());
        assert_eq!(checks[0].state, CheckState::Cannot);
        assert!(checks[0].found.ends_with("no GPU to use: no CUDA-capable device is detected (error 100)"));
    }
}
