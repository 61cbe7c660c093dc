//! The control thread: answers `memlab ps` and kin on a Unix socket, and samples how full the cards are.
//!
//! It takes no lock of Python's or PyTorch's, and every request is bounded in size and time.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::condense;
use crate::recorder::Recorder;
use crate::sampler::Nvml;

/// How often the control thread looks around when nobody asks.
const TICK: Duration = Duration::from_millis(250);
/// Every so many ticks the cards are sampled even if this process changed nothing: others may have.
const TICKS_BETWEEN_SAMPLES: u32 = 8;
const REQUEST_LIMIT: usize = 64 * 1024;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the control thread. Called once, by the thread that made the recorder, with unknown locks of its caller held:
/// nothing is waited for.
pub fn start(recorder: &'static Recorder) {
    // A thread of ours must not take the program's signals.
    // SAFETY: plain signal mask calls on this thread; the mask is restored right after.
    let spawned = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let spawned = std::thread::Builder::new().name("memlab".into()).spawn(move || run(recorder));
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        spawned
    };
    if spawned.is_err() {
        recorder.warn("no thread could be started: `memlab ps` will not find this process");
    }
}

fn run(recorder: &'static Recorder) {
    // Nothing this thread does is to be recorded.
    let Some(_never_record) = crate::thread::Guard::enter() else { return };
    let listener = match listen(recorder.facts.pid) {
        Ok(listener) => Some(listener),
        Err(error) => {
            recorder.warn(&format!("no control socket ({error}): `memlab ps` will not find this process"));
            None
        }
    };
    let nvml = Nvml::load();
    let mut ticks = 0u32;
    loop {
        if let Some(nvml) = &nvml {
            recorder.sampler.sample(recorder, nvml, ticks.is_multiple_of(TICKS_BETWEEN_SAMPLES));
        }
        condense::if_large(recorder);
        crate::late::patch_what_is_new();
        ticks = ticks.wrapping_add(1);
        let until = Instant::now() + TICK;
        match &listener {
            Some(listener) => serve_until(listener, recorder, until),
            None => std::thread::sleep(TICK),
        }
    }
}

/// Serves clients one at a time until the time is up; each is bounded, so ticks are late by [`REQUEST_TIMEOUT`] at most.
fn serve_until(listener: &UnixListener, recorder: &Recorder, until: Instant) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return; // However many clients there are, the other work is due.
        }
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid descriptor.
        let ready = unsafe { libc::poll(&mut poll, 1, left.as_millis() as i32) };
        if ready <= 0 {
            return;
        }
        match listener.accept() {
            // A client that misbehaves only hurts itself.
            Ok((client, _)) => drop(serve(client, recorder)),
            // No descriptor left in the process, say: there may be one later.
            Err(_) => std::thread::sleep(until.saturating_duration_since(Instant::now())),
        }
    }
}

fn serve(client: UnixStream, recorder: &Recorder) -> io::Result<()> {
    client.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    if !same_user(&client) {
        return reply(&client, &json!({"ok": false, "error": "only the owner of the process may ask"}));
    }
    let request = read_request(&client)?;
    let answer = match serde_json::from_str::<Value>(&request) {
        Ok(request) => answer(&request, recorder),
        Err(error) => json!({"ok": false, "error": format!("not a request: {error}")}),
    };
    reply(&client, &answer)
}

/// One line, within a time and a size for the whole of it.
fn read_request(mut client: &UnixStream) -> io::Result<String> {
    let until = Instant::now() + REQUEST_TIMEOUT;
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    while !request.contains(&b'\n') && request.len() < REQUEST_LIMIT {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut piece)? {
            0 => break,
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

fn answer(request: &Value, recorder: &Recorder) -> Value {
    match request.get("command").and_then(Value::as_str) {
        Some("status") => json!({
            "ok": true,
            "pid": recorder.facts.pid,
            "id": recorder.facts.id,
            "trace": recorder.log.file().path,
            "rank": recorder.facts.rank,
            "command": recorder.facts.command,
            "state": "recording",
        }),
        Some(other) => json!({"ok": false, "error": format!("this memlab does not know the command {other:?}")}),
        None => json!({"ok": false, "error": "the request names no command"}),
    }
}

fn reply(mut client: &UnixStream, answer: &Value) -> io::Result<()> {
    client.write_all(format!("{answer}\n").as_bytes())
}

fn same_user(client: &UnixStream) -> bool {
    // SAFETY: zeros are a valid ucred; the kernel fills it.
    unsafe {
        let mut peer: libc::ucred = std::mem::zeroed();
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let asked = libc::getsockopt(
            client.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut length,
        );
        asked == 0 && peer.uid == libc::geteuid()
    }
}

/// `$XDG_RUNTIME_DIR/memlab`, or `/tmp/memlab-<uid>`.
fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(runtime) if runtime.is_absolute() && is_own_folder(&runtime) => runtime.join("memlab"),
        // SAFETY: cannot fail.
        _ => PathBuf::from(format!("/tmp/memlab-{}", unsafe { libc::geteuid() })),
    }
}

/// A folder of this user: `sudo -E` leaves another's in the environment.
fn is_own_folder(path: &Path) -> bool {
    // SAFETY: cannot fail.
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == unsafe { libc::geteuid() })
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
    // In /tmp somebody else may have made a folder of this name.
    let found = fs::symlink_metadata(&folder)?;
    // SAFETY: cannot fail.
    if !found.is_dir() || found.uid() != unsafe { libc::geteuid() } || found.mode() & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is not a private folder of this user", folder.display()),
        ));
    }
    let path = socket_path(pid);
    let _ = fs::remove_file(&path); // Left behind by a dead process of the same id.
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Takes the socket away when the process ends.
pub fn remove_socket(pid: u32) {
    let _ = fs::remove_file(socket_path(pid));
}
