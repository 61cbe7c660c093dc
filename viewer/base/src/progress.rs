//! Progress of slow work, shown on standard error if that is a terminal.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use memlab_trace::Progress;
use memlab_units::format;

use crate::clock::patience;
use crate::output::{self, ProgressLine};

/// Delay before slow work shows its progress.
const PROGRESS_DELAY: Duration = Duration::from_millis(700);

/// Runs `read`, which reads a trace, and shows its progress.
pub fn report<T>(read: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> T) -> T {
    let start = Instant::now();
    let mut line = ProgressLine::default();
    read(&mut |Progress { bytes_read, bytes_total, events }| {
        if start.elapsed() > patience(PROGRESS_DELAY) {
            let read = format::percent(bytes_read, bytes_total);
            line.show(&format!("reading: {read} ({} events)", format::count(events)));
        }
        ControlFlow::Continue(())
    })
}

/// Runs `work`, which does not report progress, and shows `what` meanwhile.
pub fn announce<T>(what: &str, work: impl FnOnce() -> T) -> T {
    if !output::stderr_is_terminal() {
        return work();
    }
    announce_on(ProgressLine::default(), patience(PROGRESS_DELAY), what, work)
}

/// Implements [`announce`], printing on `line` after `silence`.
fn announce_on<T>(
    mut line: ProgressLine<impl Write + Send>,
    silence: Duration,
    what: &str,
    work: impl FnOnce() -> T,
) -> T {
    let (done, over) = bounded::<()>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if over.recv_timeout(silence) == Err(RecvTimeoutError::Timeout) {
                line.write(&format!("{what}…"));
                let _ = over.recv();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Sends the written bytes at every flush.
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
    fn slow_work_is_announced_and_the_line_is_cleared() {
        // GIVEN work that ends once its announcement is printed
        let (sender, flushed) = crossbeam_channel::unbounded();
        let words = announce_on(ProgressLine::on(Out(Vec::new(), sender)), Duration::ZERO, "writing the page", || {
            flushed.recv()
        });
        // THEN it was printed, and the line is empty again
        assert_eq!(words.unwrap(), "\r\u{1b}[Kwriting the page…");
        assert_eq!(flushed.recv().unwrap(), "\r\u{1b}[Kwriting the page…\r\u{1b}[K");
        // AND quick work prints nothing
        let (sender, flushed) = crossbeam_channel::unbounded();
        announce_on(ProgressLine::on(Out(Vec::new(), sender)), Duration::from_secs(600), "writing the page", || ());
        assert!(flushed.recv().is_err());
    }
}
