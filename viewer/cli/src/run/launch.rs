//! Starts a program as if memlab were absent: same terminal, input, output, signals and end.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, setrlimit, waitpid};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::low_level::raise;

use super::traces::TraceFinder;
use memlab_base::error::StartError;

/// End of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitOutcome {
    /// Exit with this code.
    Code(i32),
    /// Death by this signal.
    Signal(i32),
}

impl ExitOutcome {
    /// Converts the system's exit status.
    pub fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or(SIGKILL)),
        }
    }

    /// Describes the end for messages.
    pub fn describe(self) -> String {
        match self {
            Self::Code(code) => format!("exit code {code}"),
            Self::Signal(signal) => memlab_base::signals::describe(signal),
        }
    }

    /// Ends this process as the program ended: by the same signal, without a second core file.
    ///
    /// If the signal does not kill, exits with 128 + its number, as shells do.
    pub fn exit_like_child(self) -> ! {
        let signal = match self {
            Self::Code(code) => std::process::exit(code),
            Self::Signal(signal) => signal,
        };
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        let mut set = MaybeUninit::uninit();
        // SAFETY: plain system calls on this process; the set is initialised by sigemptyset before it is used.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::raise(signal);
        }
        std::process::exit(128 + signal)
    }
}

/// Signals that are forwarded to the program.
const FORWARDED: [i32; 9] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH];

/// Interval between searches for new traces.
///
/// While the writers live, their ancestors identify the run.
const POLL_INTERVAL: Duration = Duration::from_millis(400);

/// Runs `command` in the foreground until it ends.
///
/// Calls `started` once it runs. The signals that this process waits for are then blocked, so that threads of `started`
/// inherit the block.
pub fn run(
    command: &mut Command,
    finder: &Arc<Mutex<TraceFinder>>,
    started: impl FnOnce(),
) -> anyhow::Result<ExitOutcome> {
    // Signals stay pending until `next` reads them. The program starts with the original signal mask.
    let signals = BlockedSignals::block();
    let before = signals.before;
    // SAFETY: between fork and exec only sigprocmask is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || match libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let child = command.spawn().map_err(|error| StartError::of(command, &error))?;
    let pid = Pid::from_child(&child);
    lock(finder).adopt(child.id());
    let looking = TracePoller::start(finder.clone());
    started();
    let ended = loop {
        let (signal, from_terminal) = signals.next();
        match signal {
            SIGCHLD => {
                if let Some(ended) = wait(pid) {
                    break ended;
                }
            }
            // The terminal sent it to the program too: both are in the same process group.
            _ if from_terminal => {}
            // SAFETY: sends a signal to the child, which was not waited for: no other process has its number.
            signal => unsafe {
                libc::kill(pid.as_raw_nonzero().get(), signal);
            },
        }
    };
    drop(looking);
    Ok(ended)
}

/// Locks the finder, also after a panic elsewhere.
pub fn lock(finder: &Mutex<TraceFinder>) -> std::sync::MutexGuard<'_, TraceFinder> {
    finder.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the end of the child; `None` if it lives.
///
/// If the child stopped, this process stops too, so that the shell sees the job stopped. It wakes the child when it
/// continues.
fn wait(pid: Pid) -> Option<ExitOutcome> {
    loop {
        let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG | WaitOptions::UNTRACED).ok()??;
        if !status.stopped() {
            return Some(ExitOutcome::of(ExitStatus::from_raw(status.as_raw())));
        }
        let watch = ContinueWatch::start(pid);
        // This fails only for an invalid signal number.
        let _ = raise(SIGSTOP);
        drop(watch);
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// Continues this process when someone continues only its child.
///
/// A stopped process cannot notice that.
struct ContinueWatch(Option<Child>);

impl ContinueWatch {
    fn start(child: Pid) -> Self {
        const WATCH: &str = "while grep -q '^State:.*stopped' /proc/$0/status && kill -0 $1; do sleep 0.1; done; while kill -CONT $1; do sleep 0.1; done";
        let (child, own) = (child.as_raw_nonzero().to_string(), std::process::id().to_string());
        let mut command = Command::new("sh");
        command.args(["-c", WATCH, &child, &own]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The terminal does not stop a separate process group.
        Self(command.process_group(0).spawn().ok())
    }
}

impl Drop for ContinueWatch {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct BlockedSignals {
    waiting: libc::sigset_t,
    /// Signal mask before the block.
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn block() -> Self {
        let (mut waiting, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigemptyset initialises the one set, sigprocmask, which cannot fail here, the other.
        unsafe {
            libc::sigemptyset(waiting.as_mut_ptr());
            for signal in FORWARDED.iter().chain(&[SIGCHLD]) {
                libc::sigaddset(waiting.as_mut_ptr(), *signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, waiting.as_ptr(), before.as_mut_ptr());
            Self { waiting: waiting.assume_init(), before: before.assume_init() }
        }
    }

    /// Returns the next signal, and true if the kernel (the terminal) sent it rather than a process.
    fn next(&self) -> (i32, bool) {
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
            // SAFETY: the set is initialised; the info is filled when a signal is returned.
            let (signal, code) = unsafe {
                let signal = libc::sigwaitinfo(&self.waiting, info.as_mut_ptr());
                (signal, if signal > 0 { (*info.as_ptr()).si_code } else { 0 })
            };
            if signal > 0 {
                return (signal, code > 0);
            }
        }
    }
}

/// A thread that looks for new traces now and then; it ends on drop.
struct TracePoller {
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TracePoller {
    fn start(finder: Arc<Mutex<TraceFinder>>) -> Self {
        let (stop, stopped) = bounded::<()>(0);
        let look = move || loop {
            lock(&finder).scan();
            if stopped.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        };
        // Without the thread, traces are still found at the end.
        let thread = std::thread::Builder::new().name("memlab-traces".into()).spawn(look).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for TracePoller {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
