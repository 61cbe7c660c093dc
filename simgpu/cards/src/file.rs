//! Creates, opens and removes the card file.
//!
//! A process that has the file open holds a shared `flock` on it, which the kernel drops when the process dies. A file
//! that can be locked exclusively is therefore unused. The last process to exit removes it. The first process of
//! another invocation removes the files that killed processes left behind.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::environment::{model, size_from};
use crate::table::{MAGIC, MAX_DEVICES, Table};

/// Descriptor, path and owner of the card file, for [`leave`].
static IN_USE: OnceLock<(PathBuf, i32, u32)> = OnceLock::new();

/// Maps the card file at `path` and creates it if it does not exist. Returns `None` on failure.
pub fn open_shared(path: &Path) -> Option<*mut Table> {
    loop {
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(path) {
            lock(&file, libc::LOCK_SH);
            if file.metadata().ok()?.nlink() == 0 {
                continue; // another process removed it between open and lock
            }
            let table = map(Some(&file))?;
            // SAFETY: `map` returned a mapping of a whole table.
            if unsafe { (*table).magic } != MAGIC {
                return None;
            }
            remember(path, file);
            return Some(table);
        }
        sweep(path);
        let draft = path.with_file_name(format!(".simgpu-draft-{}", std::process::id()));
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&draft).ok()?;
        file.set_len(size_of::<Table>() as u64).ok()?;
        lock(&file, libc::LOCK_SH);
        let table = map(Some(&file))?;
        fill(table);
        let linked = std::fs::hard_link(&draft, path);
        std::fs::remove_file(&draft).ok();
        match linked {
            Ok(()) => {
                remember(path, file);
                return Some(table);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(_) => return None,
        }
    }
}

/// Returns cards that only this process uses.
pub fn private() -> *mut Table {
    let table = map(None).expect("a few hundred KiB of memory");
    fill(table);
    table
}

fn map(file: Option<&File>) -> Option<*mut Table> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    if file.is_some_and(|file| file.metadata().map_or(0, |meta| meta.len()) < size_of::<Table>() as u64) {
        return None;
    }
    // SAFETY: a fresh mapping at an address of the kernel's choice, checked below.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), size_of::<Table>(), libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
    };
    (address != libc::MAP_FAILED).then_some(address.cast())
}

/// Writes the header of a zeroed table that no other process can see yet.
fn fill(table: *mut Table) {
    let devices = std::env::var("SIMGPU_DEVICES").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    let memory = size_from("SIMGPU_MEMORY", model().memory);
    // SAFETY: `table` is a zeroed mapping that only this thread sees; all-zero is a valid `Table`.
    unsafe {
        (*table).devices = devices.min(MAX_DEVICES as u64);
        (*table).memory = memory;
        let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attributes);
        libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init((*table).lock.as_mut_ptr(), &attributes);
        libc::pthread_mutexattr_destroy(&mut attributes);
        (*table).magic = MAGIC;
    }
}

/// Keeps `file` open, and with it the shared lock, until the process ends.
fn remember(path: &Path, file: File) {
    let first = IN_USE.set((path.to_owned(), file.into_raw_fd(), std::process::id())).is_ok();
    if first {
        // SAFETY: `leave` touches only statics and the file system.
        unsafe { libc::atexit(leave) };
    }
}

/// Removes the file at exit of the last process.
extern "C" fn leave() {
    let Some((path, fd, pid)) = IN_USE.get() else { return };
    if *pid != std::process::id() {
        return; // a forked child shares the lock of its parent
    }
    // SAFETY: flock on a descriptor this process owns.
    if unsafe { libc::flock(*fd, libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return };
        // SAFETY: `path` is NUL-terminated.
        unsafe { libc::unlink(path.as_ptr()) };
    }
}

/// Removes unused card files beside `path`.
fn sweep(path: &Path) {
    let Some(folder) = path.parent() else { return };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().as_bytes().starts_with(b"simgpu-cards-") {
            continue;
        }
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(entry.path())
            && lock(&file, libc::LOCK_EX | libc::LOCK_NB)
        {
            std::fs::remove_file(entry.path()).ok();
        }
    }
}

fn lock(file: &File, how: i32) -> bool {
    // SAFETY: flock on a descriptor that `file` keeps open.
    unsafe { libc::flock(file.as_raw_fd(), how) == 0 }
}
