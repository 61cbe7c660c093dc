//! Runs a command with a notice.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::notice::Notice;
use memlab_base::signals;

/// Interval between checks of a command.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time for a command to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// Starts a command in a separate process group, so that Ctrl-C on the program does not reach it.
///
/// Its output goes to standard error, or nowhere if the terminal shows the dashboard. Standard output belongs to the
/// program.
pub fn start(command: &OsStr, notice: &Notice, is_quiet: bool) -> io::Result<Child> {
    let printed = || -> io::Result<Stdio> {
        Ok(if is_quiet { Stdio::null() } else { rustix::stdio::stderr().try_clone_to_owned()?.into() })
    };
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).envs(notice.variables()).process_group(0);
    shell.stdin(Stdio::piped()).stdout(printed()?).stderr(printed()?);
    // SAFETY: between fork and exec only sigemptyset and sigprocmask are called, which are async-signal-safe; the first
    // initialises the set.
    unsafe {
        // memlab blocks signals in its threads to wait for them, so unblock them for the command.
        shell.pre_exec(|| {
            let mut none = MaybeUninit::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            match libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    shell.spawn()
}

/// Writes the notice to a command and waits while `may_run` returns true, then ends it.
///
/// Returns the error, if any.
pub fn wait(command: &OsStr, mut child: Child, notice: &Notice, may_run: impl Fn() -> bool) -> Result<(), String> {
    let shown = command.to_string_lossy();
    if let Some(mut input) = child.stdin.take() {
        // The command may ignore its input. A pipe holds more than a notice.
        let _ = writeln!(input, "{}", notice.json());
    }
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("--notify: `{shown}` ended with {}", described(status))),
            Ok(None) if may_run() => std::thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                end(&mut child);
                return Err(format!("--notify: `{shown}` outlasted the program and was ended"));
            }
            Err(error) => return Err(format!("--notify: `{shown}`: {error}")),
        }
    }
}

fn described(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => signals::describe(signal.unwrap_or(0)),
    }
}

/// Asks the command and its descendants to end, then kills them.
fn end(child: &mut Child) {
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::TERM);
    let asked = Instant::now();
    while asked.elapsed() < END_TIMEOUT && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(POLL_INTERVAL);
    }
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}
