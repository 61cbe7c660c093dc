//! Runs the program on a pseudo-terminal, so that under the dashboard it prints as on a terminal.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::stdio::stdout;
use rustix::termios::{Winsize, tcsetwinsize};

use super::launch::ExitOutcome;
use memlab_base::clock::patience;
use memlab_base::output;
use memlab_tui::program_terminal::ProgramTerminal;
use memlab_tui::session::Program;

/// A program on a separate terminal.
pub struct PtyProgram {
    child: Child,
    master: OwnedFd,
    screen: Arc<Mutex<ProgramTerminal>>,
    /// True to send output to standard output instead of the screen.
    passes_on: Arc<AtomicBool>,
    reader: Option<std::thread::JoinHandle<()>>,
    ended: Option<ExitOutcome>,
    /// True if it reads from this terminal.
    takes_input: bool,
    /// Typed bytes that the program's terminal has not taken yet.
    typed: VecDeque<u8>,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Opens a pseudo-terminal: returns this process's side and the program's side.
fn open(rows: u16, columns: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    // The program must not inherit this process's side.
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    tcsetwinsize(&ours, size(rows, columns))?;
    Ok((ours, theirs))
}

impl PtyProgram {
    /// Starts `command` on a new terminal of this size.
    ///
    /// Standard input is the terminal too, unless it is a pipe or a file, which the program then reads.
    pub fn start(command: &mut Command, rows: u16, columns: u16) -> io::Result<Self> {
        let (master, slave) = open(rows, columns)?;
        let has_input = !io::stdin().is_terminal();
        command.stdout(slave.try_clone()?).stderr(slave.try_clone()?);
        command.stdin(if has_input { Stdio::inherit() } else { slave.try_clone()?.into() });
        // SAFETY: between fork and exec only two system calls are made, setsid and ioctl, which are async-signal-safe.
        // Standard output is the new terminal by then.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                Ok(ioctl_tiocsctty(stdout())?)
            });
        }
        let child = command.spawn()?;
        // The command holds copies of the slave. Replacing them closes the copies, so that the end of output is visible.
        command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        drop(slave);
        let screen = Arc::new(Mutex::new(ProgramTerminal::new(rows, columns)));
        let passes_on = Arc::new(AtomicBool::new(false));
        let source = File::from(master.try_clone()?);
        let (target, passing) = (screen.clone(), passes_on.clone());
        let reader =
            std::thread::Builder::new().name("memlab-output".into()).spawn(move || read(source, &target, &passing))?;
        Ok(Self {
            child,
            master,
            screen,
            passes_on,
            reader: Some(reader),
            ended: None,
            takes_input: !has_input,
            typed: VecDeque::new(),
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if it reads this terminal's input rather than a pipe or a file.
    pub fn takes_input(&self) -> bool {
        self.takes_input
    }

    /// Forwards typed bytes as far as the program's terminal takes them.
    ///
    /// A terminal fills up if its program does not read.
    pub fn pass_typed(&mut self) {
        while !self.typed.is_empty() && can_take(&self.master) {
            let (front, _) = self.typed.as_slices();
            // A terminal that takes any bytes takes this few without blocking.
            match rustix::io::write(&self.master, &front[..front.len().min(WRITE_BYTES)]) {
                Ok(written @ 1..) => drop(self.typed.drain(..written)),
                _ => return,
            }
        }
    }

    /// The screen with the program's output.
    pub fn screen(&self) -> Arc<Mutex<ProgramTerminal>> {
        self.screen.clone()
    }

    /// Prints the last rows of the screen.
    ///
    /// Later output goes straight to standard output.
    pub fn pass_on(&self, rows: usize) {
        // The reader takes this lock before it chooses the destination, so no output is lost or reordered.
        let mut screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stdout = output::stdout();
        for row in screen.last_rows(rows) {
            // As in `pass`: a terminal may be gone.
            let _ = writeln!(stdout, "{row}");
        }
        self.passes_on.store(true, Ordering::SeqCst);
    }

    /// Returns how the program ended, if it has.
    pub fn try_end(&mut self) -> Option<ExitOutcome> {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some(ExitOutcome::of(status));
            // The last output is still on its way. Children of the program may hold the terminal open for longer.
            let deadline = Instant::now() + patience(LAST_OUTPUT_TIMEOUT);
            while self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.ended
    }
}

/// Longest wait for the last output of an ended program.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(300);

/// Bytes forwarded at once.
///
/// A terminal that takes any bytes takes more than this.
const WRITE_BYTES: usize = 256;

/// The most typed bytes that wait for the program to read them.
const MAX_TYPED_BYTES: usize = 1 << 16;

/// Returns true if the terminal's other side takes more bytes.
fn can_take(master: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(master, PollFlags::OUT)];
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::OUT)
}

impl Program for PtyProgram {
    fn input(&mut self, bytes: &[u8]) {
        if self.takes_input && self.ended.is_none() && self.typed.len() + bytes.len() <= MAX_TYPED_BYTES {
            self.typed.extend(bytes);
        }
        self.pass_typed();
    }

    fn poll_end(&mut self) -> Option<String> {
        self.pass_typed();
        self.try_end().map(ExitOutcome::describe)
    }

    fn signal(&self, signal: i32) {
        if self.ended.is_none() {
            // SAFETY: sends a signal to the group that the child leads. The child was not waited for, so that no other
            // process has its number.
            unsafe { libc::kill(-(self.child.id() as libc::pid_t), signal) };
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        // If this is refused, output only wraps at another column.
        let _ = tcsetwinsize(&self.master, size(rows, columns));
    }
}

/// Reads the program's output until it and its children have closed the terminal.
fn read(mut source: File, screen: &Mutex<ProgramTerminal>, passing: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // EIO: every copy of the other side is closed.
            Err(_) => return,
        };
        let mut screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
        if !passing.load(Ordering::SeqCst) {
            screen.process(&buffer[..length]);
            continue;
        }
        drop(screen);
        pass(&buffer[..length]);
    }
}

/// Passes the program's output on unchanged.
///
/// A terminal that is gone must not stop the program: its output is still read.
#[expect(clippy::disallowed_methods, reason = "without the dashboard, the program prints on the terminal itself")]
fn pass(printed: &[u8]) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(printed).and_then(|()| stdout.flush());
}
