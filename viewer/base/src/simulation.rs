//! Simulated GPUs: the environment of a command that runs on them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};

use crate::clock::now_unix_ns;

/// Folder beside this executable, with the libraries under the names by which programs open them.
const FOLDER: &str = "simgpu";

/// Library names in the folder, and the names that `cargo build` gives them.
const LIBRARIES: [(&str, &str); 7] = [
    ("libcuda.so.1", "libsimgpu_cuda.so"),
    ("libcuda.so", "libsimgpu_cuda.so"),
    ("libnvidia-ml.so.1", "libsimgpu_nvml.so"),
    (RUNTIME_LIBRARY, RUNTIME_LIBRARY),
    (COMPUTE_LIBRARIES, COMPUTE_LIBRARIES),
    (NCCL_LIBRARY, NCCL_LIBRARY),
    (CUPTI_LIBRARY, "libsimgpu_cupti.so"),
];
const RUNTIME_LIBRARY: &str = "libsimgpu_cudart.so";
const COMPUTE_LIBRARIES: &str = "libsimgpu_libraries.so";
const NCCL_LIBRARY: &str = "libsimgpu_nccl.so";
const CUPTI_LIBRARY: &str = "libcupti.so.13";
const PRELOADED_LIBRARIES: [&str; 4] = [RUNTIME_LIBRARY, COMPUTE_LIBRARIES, NCCL_LIBRARY, CUPTI_LIBRARY];

/// Seconds that a simulated process waits for autograd's threads at its end; PyTorch's default is longer.
const SHUTDOWN_WAIT: (&str, &str) = ("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "3");

/// Simulated GPUs for a command.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// Model of the cards, in the syntax of [`simgpu_cards::find`].
    ///
    /// With neither card nor memory, `SIMGPU_CARD` and `SIMGPU_MEMORY` apply, if set.
    pub card: Option<String>,
    /// Memory of each card, if not the model's own.
    pub memory: Option<u64>,
    /// Number of cards.
    pub devices: u8,
}

impl Simulation {
    /// Runs `command` on its own GPUs, which it shares with all programs that it starts.
    ///
    /// # Errors
    ///
    /// If the simulated libraries are missing or cannot be preloaded.
    pub fn apply(&self, command: &mut Command) -> anyhow::Result<()> {
        let folder = library_folder()?;
        // Each piece of physical memory that the program creates is an open file.
        let most = getrlimit(Resource::Nofile).maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
        let preloaded = PRELOADED_LIBRARIES.map(|name| folder.join(name).into_os_string());
        // Appended, so that libraries preloaded already, such as memlab's own, stay first.
        command.env("LD_PRELOAD", joined(env::var_os("LD_PRELOAD").into_iter().chain(preloaded)));
        let before = env::var_os("LD_LIBRARY_PATH");
        command.env("LD_LIBRARY_PATH", joined([folder.into_os_string()].into_iter().chain(before)));
        command.env("SIMGPU_CARDS", card_file()).env("SIMGPU_DEVICES", self.devices.to_string());
        if self.card.is_some() || self.memory.is_some() {
            command.env_remove("SIMGPU_CARD").env_remove("SIMGPU_MEMORY");
        }
        command.envs(self.card.iter().map(|card| ("SIMGPU_CARD", card.clone())));
        command.envs(self.memory.iter().map(|bytes| ("SIMGPU_MEMORY", format!("{bytes}B"))));
        if env::var_os(SHUTDOWN_WAIT.0).is_none() {
            command.env(SHUTDOWN_WAIT.0, SHUTDOWN_WAIT.1);
        }
        Ok(())
    }
}

/// True if [`Simulation::apply`] preloads a library of this file name.
pub fn is_preloaded_by_simulation(name: &str) -> bool {
    PRELOADED_LIBRARIES.contains(&name)
}

/// True if a file is a simulated GPU's library.
pub fn is_simulated(file: &Path) -> bool {
    let real = file.canonicalize().unwrap_or_default();
    let is_built = LIBRARIES.iter().any(|(_, built)| real.file_name() == Some(OsStr::new(built)));
    is_built || real.parent().and_then(Path::file_name) == Some(OsStr::new(FOLDER))
}

/// Folder with the libraries, of a package or of links to Cargo's output.
///
/// It lies beside this executable, or `SIMGPU_LIBS` names it.
///
/// # Errors
///
/// If the libraries are missing, or cannot be preloaded from there.
pub fn library_folder() -> anyhow::Result<PathBuf> {
    let home = match env::var_os("SIMGPU_LIBS").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => env::current_exe()?.canonicalize()?.parent().map(Path::to_owned).unwrap_or_default(),
    };
    let missing = || {
        anyhow::anyhow!(
            "the simulated GPU's libraries are not in {}: build them with `cargo build --release --workspace`, or name \
             their folder with SIMGPU_LIBS",
            home.display()
        )
    };
    let home = home.canonicalize().map_err(|_| missing())?;
    let folder = home.join(FOLDER);
    if LIBRARIES.iter().all(|(_, built)| home.join(built).exists()) {
        std::fs::create_dir_all(&folder)?;
        LIBRARIES.iter().try_for_each(|(name, built)| link(&folder.join(name), &Path::new("..").join(built)))?;
    } else if !LIBRARIES.iter().all(|(name, _)| folder.join(name).exists()) {
        return Err(missing());
    }
    // The loader treats both as separators, and cannot quote them.
    if folder.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        anyhow::bail!(
            "{}: LD_PRELOAD cannot hold a path with a space or a colon: move memlab to another folder",
            folder.display()
        );
    }
    Ok(folder)
}

/// Makes a link unless one exists. Another process may do the same.
fn link(path: &Path, target: &Path) -> io::Result<()> {
    match symlink(target, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Joins paths with colons, as in LD_PRELOAD; empty ones are left out.
pub fn joined(paths: impl Iterator<Item = OsString>) -> OsString {
    let paths: Vec<OsString> = paths.filter(|path| !path.is_empty()).collect();
    paths.join(OsStr::new(":"))
}

/// Name of the file that all processes of a command share. The first that uses a GPU creates it, the last removes it.
fn card_file() -> PathBuf {
    let shared = Path::new("/dev/shm");
    let folder = if access(shared, Access::WRITE_OK).is_ok() { shared.to_owned() } else { env::temp_dir() };
    folder.join(format!("simgpu-cards-{}-{}-{}", getuid().as_raw(), std::process::id(), now_unix_ns()))
}
