//! A pseudo-terminal for the program: under the dashboard it prints as on a terminal.

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
    /// Output goes to standard output instead of the screen.
    passes_on: Arc<AtomicBool>,
    reader: Option<std::thread::JoinHandle<()>>,
    ended: Option<ExitOutcome>,
    /// Whether it reads from this terminal.
    takes_input: bool,
    /// What was typed and not taken yet.
    typed: VecDeque<u8>,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// A new pseudo-terminal: the side of this process, and that of the program.
fn open(rows: u16, columns: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    // The program must not inherit the side of this process.
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    tcsetwinsize(&ours, size(rows, columns))?;
    Ok((ours, theirs))
}

impl PtyProgram {
    /// Starts `command` on a new terminal of this size. Standard input is the terminal too, unless it is a pipe or a
    /// file: then the program reads that.
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
        // The command keeps its copies of the slave; replaced, they are closed, and the end of output can be seen.
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

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it reads what is typed on this terminal, and not a pipe or a file.
    pub fn takes_input(&self) -> bool {
        self.takes_input
    }

    /// Passes on what was typed, as far as the program's terminal takes it: one whose program does not read fills up.
    pub fn pass_typed(&mut self) {
        while !self.typed.is_empty() && can_take(&self.master) {
            let (front, _) = self.typed.as_slices();
            // What a terminal takes of so few bytes at once does not block.
            match rustix::io::write(&self.master, &front[..front.len().min(WRITE_BYTES)]) {
                Ok(written @ 1..) => drop(self.typed.drain(..written)),
                _ => return,
            }
        }
    }

    /// What it printed.
    pub fn screen(&self) -> Arc<Mutex<ProgramTerminal>> {
        self.screen.clone()
    }

    /// Prints the last rows of its screen; from then on its output goes straight to standard output.
    pub fn pass_on(&self, rows: usize) {
        // The reader waits for this lock before it decides where to, so nothing is lost or out of order.
        let mut screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stdout = output::stdout();
        for row in screen.last_rows(rows) {
            // As below: a terminal that is gone cannot be helped.
            let _ = writeln!(stdout, "{row}");
        }
        self.passes_on.store(true, Ordering::SeqCst);
    }

    /// How it ended, if it has.
    pub fn try_end(&mut self) -> Option<ExitOutcome> {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some(ExitOutcome::of(status));
            // What it printed last is still on its way; children of it may hold the terminal open for longer.
            let deadline = Instant::now() + patience(LAST_OUTPUT_TIMEOUT);
            while self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.ended
    }
}

/// The time to wait for the last output of a program that has ended.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(300);

/// Bytes passed on at once: terminals take more than that when they take any.
const WRITE_BYTES: usize = 256;

/// Bytes that wait to be read by the program, at most.
const MAX_TYPED_BYTES: usize = 1 << 16;

/// Whether a terminal's other side takes more.
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
        // If it is refused, output wraps elsewhere.
        let _ = tcsetwinsize(&self.master, size(rows, columns));
    }
}

/// Reads what the program prints until it and its children closed the terminal.
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

/// Passes the program's own output on, as it is. A terminal that is gone must not stop the program: its output is still read.
#[expect(clippy::disallowed_methods, reason = "without the dashboard, the program prints on the terminal itself")]
fn pass(printed: &[u8]) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(printed).and_then(|()| stdout.flush());
}
