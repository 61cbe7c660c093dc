//! Processes that tests start: alike wherever the tests run, and never for longer than a while.

use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// No process of a test lives longer.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Gives what this process starts the usual handling of signals, whatever the one who started the tests ignores
/// (`nohup`, a shell's background job).
///
/// # Errors
///
/// What the system says.
pub fn usual_signals() -> io::Result<()> {
    let mut none = std::mem::MaybeUninit::uninit();
    // SAFETY: plain, async-signal-safe system calls on this process; the set is initialised by sigemptyset.
    unsafe {
        for signal in (1..32).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
            if libc::signal(signal, libc::SIG_DFL) == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        libc::sigemptyset(none.as_mut_ptr());
        match libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Has a command start without input, without a terminal, in a session of its own, with the usual signals.
pub fn alone(command: &mut Command) {
    command.stdin(Stdio::null());
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            usual_signals()
        });
    }
}

/// Kills a process that leads a group, and the group, if it is still watched after a while, or when the test fails.
pub struct Watchdog {
    group: i32,
    _until: Sender<()>,
}

fn kill_group(group: i32) {
    // SAFETY: a signal to a group that a child of this test leads.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

impl Watchdog {
    pub fn on(pid: u32, limit: Duration) -> Self {
        let (until, over) = mpsc::channel::<()>();
        let group = pid as i32;
        std::thread::spawn(move || {
            if over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                kill_group(group);
            }
        });
        Self { group, _until: until }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill_group(self.group);
        }
    }
}

/// Starts a command; the watchdog is to be kept as long as the child is used.
pub fn start(command: &mut Command) -> (Child, Watchdog) {
    start_for(command, LIMIT)
}

fn start_for(command: &mut Command, limit: Duration) -> (Child, Watchdog) {
    let child = command.spawn().expect("memlab starts");
    let watchdog = Watchdog::on(child.id(), limit);
    (child, watchdog)
}

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Output {
    output_within(command, LIMIT)
}

/// Runs a command to its end, which must come soon enough. What it leaves behind may hold its output open: that is not
/// waited for.
pub fn output_within(command: &mut Command, limit: Duration) -> Output {
    let mut files = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
    let [stdout, stderr] = files.each_ref().map(|file| file.try_clone().expect("copied"));
    let (mut child, _watchdog) = start_for(command.stdout(stdout).stderr(stderr), limit);
    let status = child.wait().expect("it ends");
    let [stdout, stderr] = files.each_mut().map(|file| {
        let mut content = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut content)).expect("readable");
        content
    });
    Output { status, stdout, stderr }
}
