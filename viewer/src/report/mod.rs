//! `memlab report`: where the memory of a recorded run was, to read and to script.

mod advice;
mod bar;
mod json;
mod sections;
mod table;
mod text;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlab_trace::{Loaded, Progress, load_whole};

pub use json::write_json;
pub use text::write_text;

use crate::format;

/// Reading that takes longer than this says how far it has come.
const SILENCE: Duration = Duration::from_millis(700);

/// Prints the reports of traces; as JSON, several come as an array. Nothing is printed if one of them cannot be read.
///
/// # Errors
///
/// If the file is no trace that can be read, or the output cannot be written.
pub fn run(files: &[PathBuf], json: bool) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for file in files {
        let loaded = load_with_progress(file)?;
        let mut report = Vec::new();
        if json {
            write_json(&mut report, file, &loaded)?;
        } else {
            write_text(&mut report, file, &loaded, columns())?;
        }
        reports.push(report);
    }
    let (before, between, after) = match (json, reports.len() > 1) {
        (true, true) => ("[\n", ",\n", "]\n"),
        _ => ("", "\n", ""),
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    out.write_all(before.as_bytes())?;
    out.write_all(&reports.join(between.as_bytes()))?;
    out.write_all(after.as_bytes())?;
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
