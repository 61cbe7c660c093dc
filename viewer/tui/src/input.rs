//! The background thread that reads keys and the mouse from the terminal.

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

/// Reader thread; it ends when this is dropped.
pub struct Input {
    events: Receiver<io::Result<Event>>,
    /// Dropped to stop the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Input {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the system has no pipe or thread left.
    pub fn start() -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let (sender, events) = unbounded();
        let reader = Reader { terminal: Terminal::open(), stopped, events: sender };
        let thread = std::thread::Builder::new().name("memlab-input".into()).spawn(move || reader.run())?;
        Ok(Self { events, stop: Some(stop), thread: Some(thread) })
    }

    /// Keys and the mouse. Disconnected once the terminal is gone.
    pub fn events(&self) -> &Receiver<io::Result<Event>> {
        &self.events
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic there.
            let _ = thread.join();
        }
    }
}

/// Source of the keys: standard input or, as in crossterm, the controlling terminal if standard input is not a
/// terminal.
struct Terminal(Option<File>);

impl Terminal {
    fn open() -> Self {
        Self(if io::stdin().is_terminal() { None } else { File::open("/dev/tty").ok() })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().map_or(rustix::stdio::stdin(), AsFd::as_fd)
    }

    /// Makes the kernel report again that the terminal has a key. crossterm waits for the edge, and misses one that comes
    /// with a new size: it would see this key only with the next.
    fn report_again(&self) {
        if let Ok(attributes) = tcgetattr(self.fd()) {
            // Setting attributes, also unchanged ones, wakes all who wait for the terminal.
            let _ = tcsetattr(self.fd(), OptionalActions::Now, &attributes);
        }
    }

    /// True if the terminal was closed. crossterm cannot answer: it never returns once the terminal is gone.
    fn is_gone(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok() && has_ended(polled[0].revents())
    }
}

fn has_ended(events: PollFlags) -> bool {
    events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

struct Reader {
    terminal: Terminal,
    stopped: PipeReader,
    events: Sender<io::Result<Event>>,
}

/// Interval of polling crossterm while no key arrives.
///
/// crossterm reports a new terminal size first, and misses a simultaneous key.
const RESIZE_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Time to wait when the terminal has a key that crossterm misses.
const MISSED_KEY_DELAY: Duration = Duration::from_millis(10);

/// Reason for the end of a wait.
enum Wake {
    Key,
    Timeout,
    /// The thread must stop, or the terminal is gone.
    End,
}

impl Reader {
    fn run(self) {
        loop {
            let wake = self.wait();
            if matches!(wake, Wake::End) {
                return;
            }
            let mut read = false;
            while !self.terminal.is_gone() {
                match event::poll(Duration::ZERO).and_then(|is_there| is_there.then(event::read).transpose()) {
                    Ok(None) => break,
                    Ok(Some(event)) => {
                        read = true;
                        if self.events.send(Ok(event)).is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        let _ = self.events.send(Err(error));
                        return;
                    }
                }
            }
            if matches!(wake, Wake::Key) && !read {
                std::thread::sleep(MISSED_KEY_DELAY);
                self.terminal.report_again();
            }
        }
    }

    fn wait(&self) -> Wake {
        loop {
            let terminal = PollFd::from_borrowed_fd(self.terminal.fd(), PollFlags::IN);
            let mut polled = [terminal, PollFd::new(&self.stopped, PollFlags::IN)];
            match poll(&mut polled, Some(&RESIZE_INTERVAL)) {
                Err(Errno::INTR) => {}
                Ok(0) => return Wake::Timeout,
                Ok(_) if polled[1].revents().is_empty() && !has_ended(polled[0].revents()) => return Wake::Key,
                Ok(_) | Err(_) => return Wake::End,
            }
        }
    }
}
