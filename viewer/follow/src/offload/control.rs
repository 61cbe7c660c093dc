//! The client of the socket that every traced process listens on: one JSON object a line, one reply a line.
//!
//! Nothing here waits long: a process that is stopped does not answer, and must not hold up who asks. What takes time
//! the process does in the background, and [`Process::status`] reports its progress; `docs/control.md` lists every
//! request.

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

/// Time for a process to answer, before [`patience`].
const REPLY_TIMEOUT: Duration = Duration::from_millis(1000);
/// A reply longer than this is none.
const MAX_REPLY_BYTES: u64 = 1 << 20;

/// What a traced process says of itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Status {
    /// The process.
    pub pid: u32,
    /// Where its trace is.
    pub trace: PathBuf,
    /// Its rank, if a launcher gave it one.
    #[serde(default)]
    pub rank: Option<u32>,
    /// Its command line.
    #[serde(default)]
    pub command: Vec<String>,
    /// What it is doing: `recording`, …
    #[serde(default)]
    pub state: String,
    /// The trace's identity.
    #[serde(default)]
    pub id: String,
    /// Its devices, if it reports them.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
    /// Where its GPU memory is; `None`: its memlab is older than that.
    #[serde(default, rename = "move")]
    pub moving: Option<MoveStatus>,
    /// The devices that have a limit.
    #[serde(default)]
    pub limits: Vec<LimitStatus>,
}

impl Status {
    /// The process in words: `train.py (PID 42)`.
    pub fn who(&self) -> String {
        format!("{} (PID {})", text::fit(&text::short_command(&self.command), 40, "…"), self.pid)
    }
}

/// One device of a traced process.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct DeviceStatus {
    /// The CUDA ordinal.
    pub index: i32,
    /// Bytes handed out by PyTorch's caching allocator.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// Bytes it holds.
    #[serde(default)]
    pub reserved_bytes: u64,
}

/// Why a process does not answer.
#[derive(Debug)]
pub enum Unreachable {
    /// There is no socket.
    NoSocket,
    /// There is one, but no process listens: it is gone.
    Stale,
    /// The socket, or its folder, belongs to someone else.
    NotOurs(PathBuf),
    /// It does not answer in time: it is stopped, or busy.
    Silent,
    /// It answered with an error.
    Refused(String),
    /// What it said makes no sense, or the system failed.
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

/// Every folder in which a process of this user may listen: it may have had another environment.
fn socket_folders() -> Vec<PathBuf> {
    let (first, second) = (socket_folder(), fallback_folder());
    if first == second { vec![first] } else { vec![first, second] }
}

/// The user this is.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a folder is this user's and no other's.
fn is_private(folder: &Path) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == own_uid() && found.permissions().mode() & 0o022 == 0)
}

/// A traced process that answers, and the socket on which it does.
#[derive(Clone, Debug)]
pub struct Process {
    /// The process.
    pub pid: u32,
    folder: PathBuf,
    socket: PathBuf,
}

/// A reply to what starts an operation.
#[derive(Deserialize)]
struct Started {
    operation: u64,
}

impl Process {
    /// The process `pid`, and what it says of itself.
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

    /// What it says of itself.
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

    /// Has it start to move memory to the host, all of it or some ranges; returns the operation's number.
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

    /// Has it start to bring everything back; returns the operation's number. With `free_host` it gives the pinned host
    /// memory back to the system afterwards.
    ///
    /// # Errors
    ///
    /// If it refuses, or cannot be reached.
    pub fn restore(&self, timeout: Duration, free_host: bool) -> Result<u64, Unreachable> {
        self.start(&ControlRequest::Restore { timeout, free_host })
    }

    /// Sets the limit of one device or of all; `bytes` None: lifts it, `on_limit` None: keeps what happens there.
    ///
    /// # Errors
    ///
    /// If it refuses, or cannot be reached.
    pub fn limit(&self, device: Option<u32>, bytes: Option<u64>, on_limit: Option<OnLimit>) -> Result<(), Unreachable> {
        let device = device.map(|device| i32::try_from(device).unwrap_or(i32::MAX)); // Refused with the reason.
        self.ask(&ControlRequest::Limit { device, bytes, on_limit }).map(|_| ())
    }

    /// Tells it that the driver has taken, or given back, its device memory.
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

/// What the process `pid` says of itself.
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
    /// Whether the process whose socket this is has ended.
    fn is_of_the_dead(&self, socket: &Path) -> bool {
        match self {
            Self::Stale => true,
            // (A process of another PID namespace has another number here, or none.)
            Self::Silent => listener(socket).is_some_and(|pid| owner(pid).is_none()),
            _ => false,
        }
    }

    /// Whether the process has no socket, or one without a listener.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::NoSocket | Self::Stale)
    }

    /// What it means for the user, and what to do; `if_silent`: what to do when it does not answer.
    pub fn explain(&self, pid: u32, if_silent: &str) -> String {
        match self {
            Self::NoSocket | Self::Stale => match owner(pid) {
                None => format!("there is no process {pid}: `memlab ps` lists those that can be watched"),
                Some(uid) if uid != own_uid() => {
                    format!("process {pid} belongs to another user ({uid}): ask them to watch it, or become them")
                }
                Some(_) => format!(
                    "process {pid} is not traced, or has not used CUDA yet: start it with `memlab run -- CMD`; `memlab \
                     ps` lists those that can be watched"
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

    /// The same as an error: a bad input, unless the system failed.
    pub fn into_error(self, pid: u32, if_silent: &str) -> anyhow::Error {
        let message = self.explain(pid, if_silent);
        if matches!(self, Self::Failed(_)) { anyhow::anyhow!(message) } else { bad_input(message) }
    }
}

/// Whose process it is; `None`: there is no such process.
pub fn owner(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// The command line of a process from /proc; empty if it cannot be read.
pub fn command_of(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}

/// What a process is doing, as a letter of the system's: `R` runs, `S` waits, `T` is stopped; see proc_pid_stat(5).
pub fn run_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// All traced processes of this user that answer, and those whose socket is there but that do not. Sockets left
/// behind by dead processes are removed.
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
    // All at once: one that does not answer costs no more than its own patience.
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
        // A child of a process that is gone may still hold its socket, without answering.
        Err(error) if error.is_of_the_dead(socket) => {
            // Its process is gone: the next look need not trip over it. That it cannot be removed is no matter.
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

/// The process that listens on a socket; `None` if it has no number here, or does not take connections.
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

/// Connects without waiting: with a stopped process, whose queue is full, it would block.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = UnixStream::from(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?);
    rustix::net::connect(&stream, &address)?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}
