//! How far reading a trace has come, on a terminal, if it takes long enough to wonder.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use memlab_trace::Progress;

use crate::format;

/// Reading that takes longer than this says how far it has come.
const SILENCE: Duration = Duration::from_millis(700);

/// Does what reads a trace, and shows on standard error how far it has come.
pub fn shown<T>(read: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> T) -> T {
    let start = Instant::now();
    let mut said = false;
    let is_terminal = io::stderr().is_terminal();
    let result = read(&mut |Progress { bytes_read, bytes_total, events }| {
        if is_terminal && start.elapsed() > SILENCE {
            said = true;
            eprint!(
                "\r\u{1b}[Kreading: {} ({} events)",
                format::percent(bytes_read, bytes_total),
                format::count(events)
            );
        }
        ControlFlow::Continue(())
    });
    if said {
        eprint!("\r\u{1b}[K");
    }
    result
}

/// Does what takes a while without telling how far it is, and says on standard error what it is about.
pub fn said<T>(what: &str, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    said_to(io::stderr(), SILENCE, what, work)
}

/// The same, said to `out` after a while.
fn said_to<T>(mut out: impl Write + Send, silence: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let (done, over) = bounded::<()>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if over.recv_timeout(silence) == Err(RecvTimeoutError::Timeout) {
                // The work goes on if the text cannot be written.
                let _ = write!(out, "\r\u{1b}[K{what}…").and_then(|()| out.flush());
                let _ = over.recv();
                let _ = write!(out, "\r\u{1b}[K").and_then(|()| out.flush());
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells of every flush.
    struct Out(Vec<u8>, crossbeam_channel::Sender<String>);

    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            let _ = self.1.send(String::from_utf8_lossy(&self.0).into_owned());
            Ok(())
        }
    }

    #[test]
    fn what_takes_long_says_what_it_is_about_and_takes_it_away() {
        // GIVEN work that ends when something was said of it
        let (said, heard) = crossbeam_channel::unbounded();
        let words = said_to(Out(Vec::new(), said), Duration::ZERO, "writing the page", || heard.recv());
        // THEN it was, and the line is empty again
        assert_eq!(words.unwrap(), "\r\u{1b}[Kwriting the page…");
        assert_eq!(heard.recv().unwrap(), "\r\u{1b}[Kwriting the page…\r\u{1b}[K");
        // AND what is soon done says nothing
        let (said, heard) = crossbeam_channel::unbounded();
        said_to(Out(Vec::new(), said), Duration::from_secs(600), "writing the page", || ());
        assert!(heard.recv().is_err());
    }
}
