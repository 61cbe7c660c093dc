//! Processes that tests start: alike wherever the tests run, and never for longer than a while.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// No process of a test lives longer.
pub const LIMIT: Duration = Duration::from_secs(30);

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
            Ok(())
        });
    }
}

/// Kills a process that leads a group, and the group, if it is still watched after [`LIMIT`], or when the test fails.
pub struct Watchdog {
    group: i32,
    bit: Arc<AtomicBool>,
    _until: Sender<()>,
}

fn kill_group(group: i32) {
    // SAFETY: a signal to a group that a child of this test leads.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

impl Watchdog {
    pub fn on(pid: u32) -> Self {
        let (until, over) = mpsc::channel::<()>();
        let (group, bit) = (pid as i32, Arc::new(AtomicBool::new(false)));
        let bites = bit.clone();
        std::thread::spawn(move || {
            if over.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                bites.store(true, Ordering::SeqCst);
                kill_group(group);
            }
        });
        Self { group, bit, _until: until }
    }

    pub fn has_bitten(&self) -> bool {
        self.bit.load(Ordering::SeqCst)
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
    let child = command.spawn().expect("memlab starts");
    let watchdog = Watchdog::on(child.id());
    (child, watchdog)
}

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Output {
    let (child, watchdog) = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let output = child.wait_with_output().expect("it ends");
    assert!(!watchdog.has_bitten(), "{command:?} took longer than {LIMIT:?}:\n{output:?}");
    output
}
