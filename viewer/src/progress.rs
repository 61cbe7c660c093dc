//! How far reading a trace has come, on a terminal, if it takes long enough to wonder.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

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
