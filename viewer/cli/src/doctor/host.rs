//! Checks the C library, host memory, and the folders that memlab writes to.

use std::env;
use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use memlab_units::available_host_memory;
use memlab_units::format::size;
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};

use super::check::Check;
use crate::run::output::Output;
use memlab_follow::offload::control::{own_uid, socket_folder};

/// Longest path of a socket (`sun_path`), including its NUL.
const MAX_SOCKET_PATH_BYTES: usize = 108;
/// Longest name of a socket: that of the largest process id.
const SOCKET_NAME: &str = "/4194304.sock";

/// Returns the C library of memlab and of the programs that it records.
pub fn c_library() -> Check {
    // SAFETY: glibc returns a static string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    Check::ok("C library", format!("glibc {}", version.to_string_lossy()))
}

/// Checks the folder that `memlab run` would write to.
pub fn output() -> Check {
    let name = "output folder";
    let output = match Output::choose(None, env::var_os("MEMLAB_OUTPUT"), true) {
        Ok(output) => output,
        Err(error) => {
            return Check::cannot(name, error.to_string(), "choose a writable folder: `memlab run -o FOLDER/`");
        }
    };
    let folder = output.folder();
    match free(folder) {
        Some(0) => Check::cannot(
            name,
            format!("{} is on a full file system", folder.display()),
            "free some space, or choose another folder: `memlab run -o FOLDER/`",
        ),
        Some(bytes) => Check::ok(name, format!("{}, {} free", folder.display(), size(bytes))),
        None => Check::ok(name, folder.display().to_string()),
    }
}

/// Checks the folder in which traced processes listen.
pub fn sockets() -> Check {
    let folder = socket_folder();
    let shown = folder.display();
    let cannot = |why: String, advice: String| {
        let meaning = "`memlab ps`, `top`, `offload`, `restore` and `limit` reach no process";
        Check::warning("control sockets", format!("{why}: {meaning}"), advice)
    };
    if folder.as_os_str().len() + SOCKET_NAME.len() >= MAX_SOCKET_PATH_BYTES {
        return cannot(
            format!("{shown} is too long for a socket's name"),
            "set XDG_RUNTIME_DIR to a shorter path".to_owned(),
        );
    }
    match fs::symlink_metadata(&folder) {
        Ok(found) if !found.is_dir() => cannot(format!("{shown} is not a folder"), format!("remove {shown}")),
        Ok(found) if found.uid() != own_uid() => cannot(
            format!("{shown} belongs to user {}", found.uid()),
            format!("have {shown} removed, or set XDG_RUNTIME_DIR to a folder of yours"),
        ),
        Ok(found) if found.permissions().mode() & 0o077 != 0 => {
            cannot(format!("{shown} is open to other users"), format!("chmod 700 {shown}"))
        }
        Ok(_) => writable("control sockets", &folder).unwrap_or_else(|why| cannot(why, format!("chmod 700 {shown}"))),
        Err(_) => {
            let above = folder.parent().unwrap_or(Path::new("/"));
            match access(above, Access::WRITE_OK | Access::EXEC_OK) {
                Ok(()) => Check::ok("control sockets", format!("{shown} (created by the first recorded process)")),
                Err(error) => cannot(
                    format!("{shown} cannot be created ({})", std::io::Error::from(error)),
                    "set XDG_RUNTIME_DIR to a folder of yours".to_owned(),
                ),
            }
        }
    }
}

fn writable(name: &'static str, folder: &Path) -> Result<Check, String> {
    let shown = folder.display();
    match access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Ok(Check::ok(name, shown.to_string())),
        Err(error) => Err(format!("{shown} cannot be written to ({})", std::io::Error::from(error))),
    }
}

/// Checks the host's memory, which holds offloaded GPU memory and, pinned, the weights of paged models.
///
/// `device`: memory of the largest GPU.
pub fn memory(root: &Path, device: Option<u64>) -> Check {
    let name = "host memory";
    let Some((bytes, whose)) = available_host_memory(root) else {
        return Check::warning(name, "the system does not report available memory", "check that /proc is mounted");
    };
    let locked = match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("`ulimit -l` is {}", size(bytes)),
        None => "`ulimit -l` is unlimited".to_owned(),
    };
    let found = format!("{whose} has {} available; {locked}", size(bytes));
    match device {
        Some(device) if bytes < device => Check::warning(
            name,
            format!("{found}: `memlab offload` of a full GPU needs {} here", size(device)),
            "free host memory or raise the container's limit before you offload more; if pinning is refused, raise \
             `ulimit -l`, too",
        ),
        _ => Check::ok(name, found),
    }
}

/// Checks `/dev/shm`, which the processes on a simulated card share.
pub fn shared_memory(root: &Path) -> Check {
    let (name, folder) = ("/dev/shm", root.join("dev/shm"));
    let warning = |why: &str| {
        Check::warning(
            name,
            format!("it {why}: `memlab simulate` uses the temporary folder, and PyTorch's DataLoader workers fail"),
            "in a container, mount it: `docker run --shm-size=8g` or `--ipc=host`",
        )
    };
    if access(&folder, Access::WRITE_OK).is_err() {
        return warning("cannot be written to");
    }
    match free(&folder) {
        Some(0) => warning("is full"),
        Some(bytes) => Check::ok(name, format!("{} free", size(bytes))),
        None => Check::ok(name, "can be written to"),
    }
}

/// Bytes that this user may still write to the folder's file system.
fn free(folder: &Path) -> Option<u64> {
    statvfs(folder).ok().map(|system| system.f_bavail * system.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::CheckState;

    #[test]
    fn host_memory_is_held_against_the_largest_gpu() {
        // GIVEN a machine with 8 GiB of free memory
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/meminfo"), "MemAvailable:    8388608 kB\n").unwrap();
        // THEN that is enough for a GPU of 8 GiB but not for one of 80 GiB, and without a GPU no memory is required
        assert_eq!(memory(root.path(), Some(8 << 30)).state, CheckState::Ok);
        assert_eq!(memory(root.path(), None).state, CheckState::Ok);
        let warning = memory(root.path(), Some(80 << 30));
        assert_eq!(warning.state, CheckState::Warning);
        assert!(warning.found.starts_with("the machine has 8.00 GiB available; "), "{}", warning.found);
        assert!(warning.found.ends_with(": `memlab offload` of a full GPU needs 80.0 GiB here"), "{}", warning.found);
    }

    #[test]
    fn shared_memory_has_to_be_there() {
        // GIVEN a machine without /dev/shm THEN its absence is reported; WHEN it exists THEN its free space is reported
        let root = tempfile::tempdir().unwrap();
        let warning = shared_memory(root.path());
        assert_eq!(warning.state, CheckState::Warning);
        assert!(warning.advice.unwrap().contains("--shm-size"));
        fs::create_dir_all(root.path().join("dev/shm")).unwrap();
        let found = shared_memory(root.path());
        assert!(found.state == CheckState::Ok && found.found.ends_with(" free"), "{found:?}");
    }
}
