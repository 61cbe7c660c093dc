//! `memlab report`: where the memory of a recorded run was, to read and to script.

mod advice;
mod bar;
mod json;
mod sections;
mod table;
mod text;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use memlab_trace::{Loaded, Progress, load_whole};

pub use json::write_json;
pub use text::write_text;

use crate::format;

/// Reading that takes longer than this says how far it has come.
const SILENCE: Duration = Duration::from_millis(700);

/// Prints the report of a trace.
///
/// # Errors
///
/// If the file is no trace that can be read, or the output cannot be written.
pub fn run(file: &Path, json: bool) -> anyhow::Result<()> {
    let loaded = load_with_progress(file)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if json {
        write_json(&mut out, file, &loaded)?;
    } else {
        write_text(&mut out, file, &loaded, columns())?;
    }
    out.flush()?;
    Ok(())
}

/// The width to write for: the terminal's within reason, else what fits a page.
fn columns() -> usize {
    let terminal = io::stdout().is_terminal().then(crossterm::terminal::size);
    match terminal {
        Some(Ok((columns, _))) => usize::from(columns).clamp(80, 160),
        _ => 110,
    }
}

fn load_with_progress(file: &Path) -> anyhow::Result<Loaded> {
    let start = Instant::now();
    let mut said = false;
    let is_terminal = io::stderr().is_terminal();
    let loaded = load_whole(file, &mut |Progress { bytes_read, bytes_total, events }| {
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
    Ok(loaded?)
}
