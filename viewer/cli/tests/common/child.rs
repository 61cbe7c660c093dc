//! Child processes of tests: independent of how the tests were started, and with a time limit.

use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// The longest life of a child process, and the longest wait.
///
/// Only a hanging child reaches it.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Factor for memlab's timeouts, so that a busy machine does not exceed them.
pub const PATIENCE: (&str, &str) = ("MEMLAB_PATIENCE", "120");

/// Polls until `is` is true; false: the limit was reached first.
pub fn becomes_true(mut is: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !is() {
        if started.elapsed() > LIMIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Resets the signal handling of a child to the defaults, whatever the parent of the tests ignores (`nohup`, a shell's
/// background job).
///
/// # Errors
///
/// If a system call fails.
pub fn usual_signals() -> io::Result<()> {
    let mut none = std::mem::MaybeUninit::uninit();
    // SAFETY: async-signal-safe system calls on this process; the set is initialised by sigemptyset.
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

/// Makes a command start without input, without a terminal, in a new session, with default signal handling and with patience.
pub fn alone(command: &mut Command) {
    command.stdin(Stdio::null()).env(PATIENCE.0, PATIENCE.1);
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            usual_signals()
        });
    }
}

/// Kills a process group and its leader if it still runs at the limit, or when the test fails.
pub struct Watchdog {
    group: i32,
    _until: Sender<()>,
}

fn kill_group(group: i32) {
    // SAFETY: a signal to a group whose leader is a child of this test.
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

/// Starts a command; keep the watchdog as long as the child is used.
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

/// Runs a command to its end, within the limit.
///
/// Its descendants may keep its output open; they are not waited for.
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
