//! The client of the control socket of every traced process: one JSON object per line, one reply per line.
//!
//! Nothing here waits long: a stopped process does not answer and must not block the caller. The process performs slow
//! operations in the background, and [`Process::status`] reports their progress. `docs/control.md` lists every request.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::Deserialize;

use memlab_base::clock::patience;
use memlab_base::error::bad_input;
use memlab_base::text;
use memlab_protocol::request::{ControlRequest, Range};
use memlab_protocol::status::{LimitStatus, MoveStatus, OnLimit};

/// Longest wait for an answer, before [`patience`].
const REPLY_TIMEOUT: Duration = Duration::from_millis(1000);
/// Longest valid reply.
const MAX_REPLY_BYTES: u64 = 1 << 20;

/// Status of a traced process, as it reports it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Status {
    /// Process id.
    pub pid: u32,
    /// Path of its trace.
    pub trace: PathBuf,
    /// Rank, if a launcher set one.
    #[serde(default)]
    pub rank: Option<u32>,
    /// Command line.
    #[serde(default)]
    pub command: Vec<String>,
    /// State: `recording`, …
    #[serde(default)]
    pub state: String,
    /// Identity of the trace.
    #[serde(default)]
    pub id: String,
    /// Devices, if it reports them.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
    /// Location of its GPU memory; `None`: its memlab is too old to report it.
    #[serde(default, rename = "move")]
    pub moving: Option<MoveStatus>,
    /// Devices with a limit.
    #[serde(default)]
    pub limits: Vec<LimitStatus>,
}

impl Status {
    /// The process for messages: `train.py (pid 42)`.
    pub fn who(&self) -> String {
        format!("{} (pid {})", text::fit(&text::short_command(&self.command), 40, "…"), self.pid)
    }
}

/// One device of a traced process.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct DeviceStatus {
    /// CUDA ordinal.
    pub index: i32,
    /// Bytes allocated by PyTorch's caching allocator.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// Bytes reserved by the allocator.
    #[serde(default)]
    pub reserved_bytes: u64,
}

/// Reason why a process does not answer.
#[derive(Debug)]
pub enum Unreachable {
    /// The socket does not exist.
    NoSocket,
    /// The socket exists without a listener: the process is gone.
    Stale,
    /// The socket, or its folder, belongs to another user.
    NotOurs(PathBuf),
    /// No answer in time: the process is stopped or busy.
    Silent,
    /// The process answered with an error.
    Refused(String),
    /// The answer is invalid, or the system failed.
    Failed(io::Error),
}

/// The folder with the sockets of this user's processes.
pub fn socket_folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usable = runtime
        .filter(|folder| folder.is_absolute() && fs::metadata(folder).is_ok_and(|found| found.uid() == own_uid()));
    usable.map_or_else(fallback_folder, |folder| folder.join("memlab"))
}

fn fallback_folder() -> PathBuf {
    PathBuf::from(format!("/tmp/memlab-{}", own_uid()))
}

/// All folders in which a process of this user may listen, because it may have had another environment.
fn socket_folders() -> Vec<PathBuf> {
    let (first, second) = (socket_folder(), fallback_folder());
    if first == second { vec![first] } else { vec![first, second] }
}

/// Id of this user.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns true if a folder belongs to this user and no other user can access it.
fn is_private(folder: &Path) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == own_uid() && found.permissions().mode() & 0o022 == 0)
}

/// A traced process that answers, and its socket.
#[derive(Clone, Debug)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    folder: PathBuf,
    socket: PathBuf,
}

/// Reply to a request that starts an operation.
#[derive(Deserialize)]
struct Started {
    operation: u64,
}

impl Process {
    /// Finds the process `pid` and its status.
    ///
    /// # Errors
    ///
    /// If it cannot be reached; see [`Unreachable`].
    pub fn find(pid: u32) -> Result<(Self, Status), Unreachable> {
        let mut last = Unreachable::NoSocket;
        for folder in socket_folders() {
            let socket = folder.join(format!("{pid}.sock"));
            if fs::symlink_metadata(&socket).is_err() {
                continue;
            }
            match ask_status(&folder, &socket) {
                Ok(status) if status.pid == pid => return Ok((Self { pid, folder, socket }, status)),
                Ok(_) => last = Unreachable::Stale,
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the process's status.
    ///
    /// # Errors
    ///
    /// If it cannot be reached.
    pub fn status(&self) -> Result<Status, Unreachable> {
        match ask_status(&self.folder, &self.socket) {
            Ok(status) if status.pid != self.pid => Err(Unreachable::Stale),
            answer => answer,
        }
    }

    /// Starts to move memory to the host, all of it or some ranges; returns the operation's number.
    ///
    /// # Errors
    ///
    /// If it refuses, or cannot be reached.
    pub fn offload(&self, timeout: Duration, ranges: Option<&[Range]>) -> Result<u64, Unreachable> {
        self.start(&match ranges {
            None => ControlRequest::Offload { timeout },
            Some(ranges) => ControlRequest::Move { timeout, ranges: ranges.to_vec() },
        })
    }

    /// Starts to restore everything; returns the operation's number.
    ///
    /// With `free_host`, the process frees the pinned host memory afterwards.
    ///
    /// # Errors
    ///
    /// If it refuses, or cannot be reached.
    pub fn restore(&self, timeout: Duration, free_host: bool) -> Result<u64, Unreachable> {
        self.start(&ControlRequest::Restore { timeout, free_host })
    }

    /// Sets the limit of one device or of all.
    ///
    /// `bytes` None: removes it; `on_limit` None: keeps the action at the limit.
    ///
    /// # Errors
    ///
    /// If it refuses, or cannot be reached.
    pub fn limit(&self, device: Option<u32>, bytes: Option<u64>, on_limit: Option<OnLimit>) -> Result<(), Unreachable> {
        let device = device.map(|device| i32::try_from(device).unwrap_or(i32::MAX)); // Refused with the reason.
        self.ask(&ControlRequest::Limit { device, bytes, on_limit }).map(|_| ())
    }

    /// Asks for a search for what holds the memory. Returns the trace time from which it may begin, in nanoseconds.
    ///
    /// # Errors
    ///
    /// If it refuses, or cannot be reached.
    pub fn search_holders(&self) -> Result<u64, Unreachable> {
        #[derive(Deserialize)]
        struct Asked {
            time_ns: u64,
        }
        let asked: Asked = serde_json::from_value(self.ask(&ControlRequest::Holders)?).map_err(nonsense)?;
        Ok(asked.time_ns)
    }

    /// Notifies the process that the driver has moved its device memory to the host, or restored it.
    ///
    /// # Errors
    ///
    /// If it refuses, or cannot be reached.
    pub fn note_checkpointed(&self, value: bool) -> Result<(), Unreachable> {
        self.ask(&ControlRequest::Checkpointed(value)).map(|_| ())
    }

    fn start(&self, request: &ControlRequest) -> Result<u64, Unreachable> {
        let started: Started = serde_json::from_value(self.ask(request)?).map_err(nonsense)?;
        Ok(started.operation)
    }

    fn ask(&self, request: &ControlRequest) -> Result<serde_json::Value, Unreachable> {
        ask(&self.folder, &self.socket, request)
    }
}

/// Returns the status of process `pid`.
///
/// # Errors
///
/// If it cannot be reached; see [`Unreachable`].
pub fn status(pid: u32) -> Result<Status, Unreachable> {
    Process::find(pid).map(|(_, status)| status)
}

fn nonsense(error: serde_json::Error) -> Unreachable {
    Unreachable::Failed(io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Unreachable {
    /// Returns true if the process of this socket has ended.
    fn is_of_the_dead(&self, socket: &Path) -> bool {
        match self {
            Self::Stale => true,
            // A process of another PID namespace has another pid here, or none.
            Self::Silent => listener(socket).is_some_and(|pid| owner(pid).is_none()),
            _ => false,
        }
    }

    /// Returns true if the process has no socket, or one without a listener.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::NoSocket | Self::Stale)
    }

    /// Explains the error to the user, with advice; `if_silent`: the advice if the process does not answer.
    pub fn explain(&self, pid: u32, if_silent: &str) -> String {
        match self {
            Self::NoSocket | Self::Stale => match owner(pid) {
                None => format!("no process {pid}: `memlab ps` lists recorded processes"),
                Some(uid) if uid != own_uid() => {
                    format!("process {pid} belongs to another user ({uid}): only that user can watch it")
                }
                Some(_) => format!(
                    "process {pid} is not recorded, or has not used CUDA yet: start it with `memlab run -- CMD`; \
                     `memlab ps` lists recorded processes"
                ),
            },
            Self::NotOurs(path) => format!(
                "process {pid}: {} belongs to another user, or others can write to it: it is not trusted",
                path.display()
            ),
            Self::Silent => format!("process {pid} does not answer: it may be stopped; {if_silent}"),
            Self::Refused(reason) => format!("process {pid} refuses: {reason}"),
            Self::Failed(error) => format!("process {pid} cannot be asked: {error}"),
        }
    }

    /// Converts this into an error: a bad input, unless the system failed.
    pub fn into_error(self, pid: u32, if_silent: &str) -> anyhow::Error {
        let message = self.explain(pid, if_silent);
        if matches!(self, Self::Failed(_)) { anyhow::anyhow!(message) } else { bad_input(message) }
    }
}

/// Returns the user id of a process; `None`: no such process.
pub fn owner(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// Reads the command line of a process from /proc; empty if it cannot be read.
pub fn command_of(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}

/// Returns the system's state letter of a process: `R` running, `S` sleeping, `T` stopped; see proc_pid_stat(5).
pub fn run_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The state follows the name, which may contain any character.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Returns all traced processes of this user: those that answer, and those whose socket exists without an answer.
///
/// Removes sockets of dead processes.
pub fn discover() -> Vec<(u32, Result<Status, Unreachable>)> {
    let mut found: Vec<(u32, PathBuf, PathBuf)> = Vec::new();
    for folder in socket_folders().into_iter().filter(|folder| is_private(folder)) {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_suffix(".sock")).and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid {
                found.push((pid, folder.clone(), entry.path()));
            }
        }
    }
    // Ask all processes at once, so that silent ones do not add up their timeouts.
    let mut answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            found.iter().map(|(pid, folder, socket)| (*pid, scope.spawn(move || ask_status(folder, socket)))).collect();
        let failed = || Err(Unreachable::Failed(io::Error::other("the request failed")));
        asked.into_iter().map(|(pid, thread)| (pid, thread.join().unwrap_or_else(|_| failed()))).collect()
    });
    answers.retain(|(_, answer)| !matches!(answer, Err(Unreachable::Stale | Unreachable::NoSocket)));
    answers.sort_by_key(|(pid, _)| *pid);
    answers
}

fn ask_status(folder: &Path, socket: &Path) -> Result<Status, Unreachable> {
    let reply = match ask(folder, socket, &ControlRequest::Status) {
        // A child of a dead process may still hold its socket, without answering.
        Err(error) if error.is_of_the_dead(socket) => {
            // Remove the socket for the next discovery. A failure does not matter.
            let _ = fs::remove_file(socket);
            return Err(Unreachable::Stale);
        }
        reply => reply?,
    };
    serde_json::from_value(reply).map_err(nonsense)
}

/// Sends one request and reads its reply.
fn ask(folder: &Path, socket: &Path, request: &ControlRequest) -> Result<serde_json::Value, Unreachable> {
    if !is_private(folder) {
        return Err(Unreachable::NotOurs(folder.to_owned()));
    }
    let metadata = fs::symlink_metadata(socket).map_err(|_| Unreachable::NoSocket)?;
    if metadata.uid() != own_uid() || !metadata.file_type().is_socket() {
        return Err(Unreachable::NotOurs(socket.to_owned()));
    }
    let reply = exchange(socket, request).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => Unreachable::Stale,
        io::ErrorKind::NotFound => Unreachable::NoSocket,
        io::ErrorKind::PermissionDenied => Unreachable::NotOurs(socket.to_owned()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Unreachable::Silent,
        _ => Unreachable::Failed(error),
    })?;
    let reply: serde_json::Value = serde_json::from_str(&reply).map_err(nonsense)?;
    if reply["ok"].as_bool() == Some(true) {
        return Ok(reply);
    }
    let error = reply["error"].as_str().unwrap_or("no reason was given");
    Err(Unreachable::Refused(text::clean(error).into_owned()))
}

fn exchange(socket: &Path, request: &ControlRequest) -> io::Result<String> {
    let mut stream = connect(socket)?;
    let timeout = Some(patience(REPLY_TIMEOUT));
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)?;
    stream.write_all(format!("{}\n", request.to_json()).as_bytes())?;
    let mut reply = String::new();
    BufReader::new(stream.take(MAX_REPLY_BYTES)).read_line(&mut reply)?;
    if reply.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the process closed the connection"));
    }
    Ok(reply)
}

/// Returns the process that listens on a socket; `None` if it has no pid here, or does not accept connections.
fn listener(socket: &Path) -> Option<u32> {
    let stream = connect(socket).ok()?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option's value is a ucred, for which there is room.
    let failed = unsafe {
        let peer = (&raw mut peer).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, peer, &mut length)
    };
    u32::try_from(peer.pid).ok().filter(|pid| failed == 0 && *pid > 0)
}

/// Connects without blocking.
///
/// A stopped process with a full queue would block.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = UnixStream::from(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?);
    rustix::net::connect(&stream, &address)?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}
