//! The control thread: answers `memlab ps` and related commands on a Unix socket, and samples the cards' memory use.
//!
//! It takes no lock of Python or PyTorch, and every request is bounded in size and time.

pub mod clients;

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde_json::{Value, json};

use self::clients::Clients;
use crate::compaction;
use crate::gpu_time;
use crate::limit::settings;
use crate::moved_bytes;
use crate::mover;
use crate::mover::operation::{self, MoveRequest};
use crate::mover::progress::{self, Progress};
use crate::python::holders;
use crate::recorder::Recorder;
use crate::torch::expected;
use interpose_base::background;
use interpose_base::got_patch;
use interpose_base::recursion::RecursionGuard;
use memlab_protocol::request::ControlRequest;

/// Time between two rounds of periodic work when no request arrives.
const TICK: Duration = Duration::from_millis(250);
/// Number of ticks after which the cards are sampled even if this process changed nothing: other processes may have.
const TICKS_BETWEEN_SAMPLES: u32 = 8;

/// Starts the control thread.
///
/// Called once, by the thread that created the recorder. Its caller may hold any lock, so this does not wait.
pub fn start(recorder: &'static Recorder) {
    if background::spawn("memlab", move || run(recorder)).is_err() {
        recorder.warn("no thread could be started: `memlab ps` will not find this process");
    }
}

fn run(recorder: &'static Recorder) {
    // This thread's work is not recorded.
    let Some(_guard) = RecursionGuard::enter() else { return };
    let mut clients = match listen(recorder.facts.pid).and_then(|listener| Clients::new(listener, refusal)) {
        Ok(clients) => Some(clients),
        Err(error) => {
            recorder.warn(&format!("no control socket ({error}): `memlab ps` will not find this process"));
            None
        }
    };
    let mut ticks = 0u32;
    loop {
        // While memory is being moved, the card's figures would be attributed to another process.
        if moved_bytes::record(recorder) {
            recorder.sample_cards(ticks.is_multiple_of(TICKS_BETWEEN_SAMPLES));
        }
        if !recorder.is_finished() {
            recorder.python.retry_call(recorder.elapsed_ns());
            holders::retry(recorder);
        }
        recorder.interner.sources.write(&recorder.log);
        recorder.log.file().fault_ahead();
        gpu_time::tick(recorder);
        compaction::start_if_needed(recorder);
        got_patch::patch_new_objects();
        expected::check(recorder);
        ticks = ticks.wrapping_add(1);
        let until = Instant::now() + TICK;
        match &mut clients {
            Some(clients) if clients.can_listen() => {
                clients.serve_until(until, |request| reply(request, recorder));
            }
            Some(_) => clients = None,
            None => std::thread::sleep(TICK),
        }
    }
}

/// Returns the error for a client of another user.
fn refusal(client: &UnixStream) -> Option<String> {
    (!same_user(client)).then(|| format!("{}\n", refused("only the owner of the process may send requests")))
}

/// Returns the reply line to a request.
fn reply(request: &[u8], recorder: &Recorder) -> String {
    let answer = ControlRequest::parse(request).map_or_else(|why| refused(&why), |request| answer(request, recorder));
    format!("{answer}\n")
}

fn answer(request: ControlRequest, recorder: &Recorder) -> Value {
    match request {
        ControlRequest::Status => status(recorder),
        ControlRequest::Offload { timeout } => started(operation::start(MoveRequest::Offload, timeout)),
        ControlRequest::Move { timeout, ranges } => started(operation::start(MoveRequest::Move { ranges }, timeout)),
        ControlRequest::Restore { timeout, free_host } => {
            started(operation::start(MoveRequest::Restore { free_host }, timeout))
        }
        ControlRequest::Checkpointed(value) => {
            progress::set_checkpointed(value);
            json!({"ok": true})
        }
        ControlRequest::Holders => match holders::request(recorder) {
            Ok(time) => json!({"ok": true, "time_ns": time}),
            Err(why) => refused(&why),
        },
        ControlRequest::Limit { device, bytes, on_limit } => {
            settings::set(device, bytes, on_limit);
            json!({"ok": true, "limits": settings::status()})
        }
    }
}

/// Status of the process.
pub fn status(recorder: &Recorder) -> Value {
    let moving = mover::status::status();
    json!({
        "ok": true,
        "pid": recorder.facts.pid,
        "id": recorder.facts.id,
        "trace": recorder.log.file().path,
        "rank": recorder.facts.rank,
        "command": recorder.facts.command,
        "state": moving.state.activity(),
        "move": mover::status::described(&moving),
        // Reading current use queries the driver, which does not answer while the process is checkpointed.
        "limits": if progress::is_checkpointed() { json!([]) } else { json!(settings::status()) },
    })
}

fn refused(why: &str) -> Value {
    json!({"ok": false, "error": why})
}

fn started(outcome: Result<&Progress, String>) -> Value {
    match outcome {
        Ok(operation) => json!({"ok": true, "operation": operation.id()}),
        Err(why) => refused(&why),
    }
}

fn same_user(client: &UnixStream) -> bool {
    peer_uid(client) == Some(geteuid().as_raw())
}

/// User id of the connected process. rustix cannot read it: it requires a process id, and a process of another PID namespace
/// has none here.
fn peer_uid(client: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option's value is a ucred, for which there is room.
    let failed = unsafe {
        let peer = (&raw mut peer).cast();
        libc::getsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, peer, &mut length)
    };
    (failed == 0).then_some(peer.uid)
}

/// `$XDG_RUNTIME_DIR/memlab`, or `/tmp/memlab-<uid>`.
fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(runtime) if runtime.is_absolute() && is_own_folder(&runtime) => runtime.join("memlab"),
        _ => PathBuf::from(format!("/tmp/memlab-{}", geteuid().as_raw())),
    }
}

/// Returns true if the folder belongs to this user: `sudo -E` leaves another user's folder in the environment.
fn is_own_folder(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw())
}

fn socket_path(pid: u32) -> PathBuf {
    folder().join(format!("{pid}.sock"))
}

fn listen(pid: u32) -> io::Result<UnixListener> {
    let folder = folder();
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // In /tmp another user may have created a folder of this name.
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is not a private folder of this user", folder.display()),
        ));
    }
    let path = socket_path(pid);
    let _ = fs::remove_file(&path); // Left by a dead process with the same id.
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Removes the socket when the process ends.
pub fn remove_socket(pid: u32) {
    let _ = fs::remove_file(socket_path(pid));
}
