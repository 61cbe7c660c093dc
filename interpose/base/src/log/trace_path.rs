//! Chooses the file of a trace: a new one, or one that contains an earlier trace.
//!
//! The name may be a mistake (`-o train.py`), a device, or a file that another user has placed in a shared folder. Nothing
//! is opened if opening it could block or have an effect, and only traces of this user are replaced.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::clock;
use crate::descriptors::inode_of;

/// The first bytes of a trace.
const HEADER: &[u8] = b"{\"memlab\":";

/// Stands for the path of a trace that is kept in memory.
///
/// Such a trace disappears with the process.
pub const IN_MEMORY: &str = ":memory:";

/// Number of names tried in order.
const ORDERED_NAMES: u64 = 1000;

/// Policy for a name that is taken.
///
/// `run` is the current `memlab run`, whose traces are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Naming<'a> {
    /// The user chose the name.
    ///
    /// If the trace of a living process has it, `trace-1.jsonl` is used. If a file that is not a trace has it, the user gets
    /// an error.
    AsAsked { run: Option<&'a str> },
    /// The user did not choose the name: if any file has it, `trace-1.jsonl` is used.
    Anything { run: Option<&'a str> },
    /// Allows no other name: readers would not find it.
    Exact,
}

/// Opens a new file at `path`.
///
/// The file goes beside it (`trace-1.jsonl` …) if `path` is the trace of a living process, of this process before an `exec`,
/// or of another process of the same run. A file that may be mapped is never truncated: truncation would kill any process
/// that reads the mapping.
pub fn open_unused(path: &Path, naming: Naming<'_>) -> io::Result<(File, PathBuf)> {
    if path.as_os_str() == IN_MEMORY {
        let memory = rustix::fs::memfd_create("memlab", rustix::fs::MemfdFlags::CLOEXEC)?;
        return Ok((File::from(memory), path.to_owned()));
    }
    let names = if naming == Naming::Exact { 1 } else { ORDERED_NAMES };
    // The numbered names are tried one by one; further names are formed from the time.
    let later = (naming != Naming::Exact).then(clock::unix_ns).into_iter().flat_map(|now| now..now + 16);
    for number in (0..names).chain(later) {
        let candidate = if number == 0 { path.to_owned() } else { numbered(path, number) };
        // Several processes may do this at once. Between creating a file and locking it, another process may have taken it
        // for that of a dead process. Only the process that holds the lock of the file with the name continues.
        for _ in 0..16 {
            let mut options = OpenOptions::new();
            match options.read(true).write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(&candidate) {
                Ok(file) if lock(&file) != LockState::Others && is_named(&file, &candidate) => {
                    return Ok((file, candidate));
                }
                Ok(_) => continue,
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => {}
            }
            match ExistingFile::at(&candidate)? {
                ExistingFile::Nothing => {}
                ExistingFile::Trace(old) => {
                    let taken = match naming {
                        Naming::AsAsked { run } | Naming::Anything { run } => is_of_this_run(&old, run),
                        Naming::Exact => false,
                    };
                    if taken || lock(&old) != LockState::Ours {
                        break;
                    }
                    if is_named(&old, &candidate) {
                        std::fs::remove_file(&candidate)?;
                    }
                }
                ExistingFile::AnotherUsers => break,
                ExistingFile::Other(what) if !matches!(naming, Naming::Anything { .. }) && number == 0 => {
                    return Err(refused(what));
                }
                ExistingFile::Other(_) => break,
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "other processes write to files of this name"))
}

/// Returns true if an error of [`open_unused`] means that the name itself is wrong, not that the folder is not writable.
pub fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, format!("{what}, and memlab replaces only traces"))
}

/// The existing file at a name.
enum ExistingFile {
    Nothing,
    /// A trace of this user, or an empty file.
    ///
    /// Replacing it loses nothing.
    Trace(File),
    AnotherUsers,
    Other(&'static str),
}

impl ExistingFile {
    fn at(path: &Path) -> io::Result<Self> {
        let found = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Nothing),
            found => found?,
        };
        let own = rustix::process::geteuid().as_raw();
        match not_a_file(found.file_type()) {
            Some(what) => return Ok(Self::Other(what)),
            None if found.uid() != own => return Ok(Self::AnotherUsers),
            None => {}
        }
        // Another file may have taken the name in the meantime.
        let careful = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let file = match OpenOptions::new().read(true).custom_flags(careful).open(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(Self::Other("it cannot be read"));
            }
            Err(_) => return Ok(Self::Nothing), // Checked again.
            Ok(file) => file,
        };
        let found = file.metadata()?;
        if !found.is_file() || found.uid() != own {
            return Ok(Self::Nothing);
        }
        let mut start = [0; HEADER.len()];
        let length = file.read_at(&mut start, 0)?;
        // A process that has just created the file and holds its lock may not have written the header yet.
        let is_trace = length == 0 || start[..length] == *HEADER || lock(&file) == LockState::Others;
        Ok(if is_trace { Self::Trace(file) } else { Self::Other("it is a file that is not a trace") })
    }
}

fn not_a_file(kind: FileType) -> Option<&'static str> {
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("it is a folder")
    } else if kind.is_symlink() {
        Some("it is a symbolic link")
    } else if kind.is_fifo() {
        Some("it is a named pipe")
    } else if kind.is_socket() {
        Some("it is a socket")
    } else {
        Some("it is a device")
    }
}

/// Path through which this process, and others of its user, can open a file without a name.
pub fn path_of_descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

/// Returns true if this name refers to the file.
pub fn is_named(file: &File, path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == inode_of(file))
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (stem, ending) = name.find('.').map_or((&*name, ""), |dot| name.split_at(dot));
    path.with_file_name(format!("{stem}-{number}{ending}"))
}

#[derive(PartialEq, Eq)]
enum LockState {
    Ours,
    Others,
    /// The file system does not support locks.
    None,
}

/// Takes the lock that marks the file as being written by a process; the kernel releases it when the process ends.
fn lock(file: &File) -> LockState {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => LockState::Ours,
        Err(Errno::WOULDBLOCK) => LockState::Others,
        Err(_) => LockState::None,
    }
}

/// Returns true for a trace of the same run, of a run inside it or around it, or of this process before an `exec`.
///
/// An `exec` keeps the process id but not the descriptors.
fn is_of_this_run(file: &File, run: Option<&str>) -> bool {
    let mut beginning = [0; 512];
    let length = file.read_at(&mut beginning, 0).unwrap_or(0);
    let after = |key: &str| {
        let at = memchr::memmem::find(&beginning[..length], key.as_bytes())? + key.len();
        Some(&beginning[at..length])
    };
    let number_after = |key: &str| {
        let mut digits = after(key)?.iter().take_while(|byte| byte.is_ascii_digit());
        digits.try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
    };
    let is_before_exec = || {
        let began = number_after("\"start_unix_ns\":").unwrap_or(0);
        number_after("\"pid\":") == Some(u64::from(std::process::id()))
            && process_start().is_none_or(|start| began >= start)
    };
    let outermost = |run: &[u8]| run.split(|byte| b"/\"".contains(byte)).next().map(<[u8]>::to_vec);
    let is_of_run = |run: &str| after("\"run\":\"").and_then(outermost) == outermost(run.as_bytes());
    run.is_some_and(is_of_run) || is_before_exec()
}

/// Start time of this process, in nanoseconds since 1970, or slightly earlier.
///
/// `exec` does not change it.
fn process_start() -> Option<u64> {
    /// The system counts the process's start in hundredths of a second, and its own boot time in seconds.
    const CLOCK_ERROR_SECONDS: u64 = 2;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let booted: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let seconds = booted + ticks / rustix::param::clock_ticks_per_second();
    seconds.saturating_sub(CLOCK_ERROR_SECONDS).checked_mul(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("memlab-place-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn processes_that_start_at_once_get_separate_files() {
        // GIVEN the trace of a dead process, and eight processes that open the same name at the same moment
        let folder = folder("at-once");
        let path = folder.join("trace.jsonl");
        for _ in 0..200 {
            std::fs::write(&path, "{\"memlab\":1}\n").unwrap();
            let together = std::sync::Barrier::new(8);
            let files: Vec<(File, PathBuf)> = std::thread::scope(|scope| {
                let start = || {
                    together.wait();
                    open_unused(&path, Naming::AsAsked { run: None }).unwrap()
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            // THEN each has a file that still has its name, and no two files are the same
            assert!(files.iter().all(|(file, path)| is_named(file, path) && file.metadata().unwrap().len() == 0));
            let names: std::collections::BTreeSet<_> = files.iter().map(|(_, path)| path).collect();
            assert_eq!(names.len(), 8);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn traces_of_the_same_run_are_kept() {
        // GIVEN the traces of processes that have ended, of several runs
        let folder = folder("run");
        let path = folder.join("trace.jsonl");
        let ended = |run: &str| format!("{{\"memlab\":1,\"pid\":7,\"start_unix_ns\":5{run},\"command\":[]}}\n");
        let opened = |old: &str, run| {
            std::fs::write(&path, ended(old)).unwrap();
            open_unused(&path, Naming::AsAsked { run }).unwrap().1
        };
        // WHEN a process of a run opens such a name, THEN it replaces a trace of another run, or of no run
        for old in ["", ",\"run\":\"a1\"", ",\"run\":\"b22/a\"", ",\"run\":\"c/b2\""] {
            assert_eq!(opened(old, Some("b2")), path);
        }
        // AND opens a file beside the traces of the same run, of runs inside it and around it
        for (old, run) in [("b2", "b2"), ("b2/c3", "b2"), ("b2", "b2/d4")] {
            let old = format!(",\"run\":\"{old}\"");
            assert_eq!(opened(&old, Some(run)), folder.join("trace-1.jsonl"));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), ended(&old));
        }
        // AND without a run it replaces the trace
        assert_eq!(opened(",\"run\":\"b2\"", None), path);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_this_processs_own_traces_are_those_from_before_an_exec() {
        // GIVEN traces with this process's id: one of a process long gone, and one of this process before an `exec`
        let folder = folder("exec");
        let path = folder.join("trace.jsonl");
        let opened = |start: u64| {
            let line = format!("{{\"memlab\":1,\"pid\":{},\"start_unix_ns\":{start}}}\n", std::process::id());
            std::fs::write(&path, line).unwrap();
            open_unused(&path, Naming::AsAsked { run: None }).unwrap().1
        };
        // THEN the first is replaced, and the second stays
        assert_eq!(opened(1_000_000_000_000_000_000), path);
        assert_eq!(opened(clock::unix_ns()), folder.join("trace-1.jsonl"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn there_is_always_another_name() {
        // GIVEN files of all names that are tried in order; THEN the trace still gets a name
        let folder = folder("many");
        let path = folder.join("trace.jsonl");
        for number in 0..ORDERED_NAMES {
            let name = if number == 0 { path.clone() } else { numbered(&path, number) };
            std::fs::write(name, "not a trace").unwrap();
        }
        let (_, found) = open_unused(&path, Naming::Anything { run: None }).unwrap();
        assert!(found.to_string_lossy().contains("trace-1"), "{found:?}");
        assert!(found.metadata().unwrap().len() == 0);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_trace_without_its_header_yet_is_left_alone() {
        // GIVEN a trace whose process holds its lock and is about to write the header
        let folder = folder("begun");
        let path = folder.join("trace.jsonl");
        std::fs::write(&path, [0; 4096]).unwrap();
        let writer = File::open(&path).unwrap();
        assert!(lock(&writer) == LockState::Ours);
        // WHEN another process opens its name THEN its file goes beside the trace
        let (_, beside) = open_unused(&path, Naming::AsAsked { run: None }).unwrap();
        assert_eq!(beside, folder.join("trace-1.jsonl"));
        // AND without a writer the file counts as not a trace
        drop(writer);
        assert!(is_refusal(&open_unused(&path, Naming::AsAsked { run: None }).unwrap_err()));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn files_that_are_not_traces_are_left_alone() {
        // GIVEN names that refer to a file of the user, a folder, a link to a trace and a pipe
        let folder = folder("refused");
        let at = |name: &str| folder.join(name);
        std::fs::write(at("user.py"), "import torch\n").unwrap();
        std::fs::write(at("trace"), "{\"memlab\":1}\n").unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink(at("trace"), at("link")).unwrap();
        let pipe = std::ffi::CString::new(at("pipe").into_os_string().into_string().unwrap()).unwrap();
        // SAFETY: a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        for (name, what) in [("user.py", "not a trace"), ("folder", "folder"), ("link", "link"), ("pipe", "pipe")] {
            let before = std::fs::symlink_metadata(at(name)).unwrap();
            // WHEN a trace is to be written to such a name THEN that is refused, and the files stay unchanged
            for naming in [Naming::AsAsked { run: None }, Naming::Exact] {
                let error = open_unused(&at(name), naming).unwrap_err();
                assert!(is_refusal(&error) && error.to_string().contains(what), "{name}: {error}");
            }
            // AND if the user did not choose the name, the trace goes beside it
            let (_, beside) = open_unused(&at(name), Naming::Anything { run: None }).unwrap();
            assert_ne!(beside, at(name));
            assert_eq!(std::fs::symlink_metadata(at(name)).unwrap().ino(), before.ino());
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
