//! `memlab advise`: changes that lower a program's memory.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use clap::Args;

use crate::recording::unreadable;
use memlab_base::error::bad_input;
use memlab_base::text::Style;
use memlab_base::{arguments, json, output, progress, trace_files};
use memlab_report::advice;
use memlab_report::report::write_advice;

/// The help after the options.
pub const HELP: &str = "\
Examples:
  memlab run --time -- python train.py           record a run, with GPU times
  memlab advise memlab-train-4242.jsonl          suggest changes
  memlab advise --target 12GiB memlab-train-4242.jsonl

The effect of each change is computed from the recorded run, without running the program. Without --time, the cost in GPU time is \
unknown.";

/// Options of `memlab advise`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The trace (.jsonl or .jsonl.zst). A folder means the newest trace in it [default: the current folder].
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Target for PyTorch's allocated memory. Changes that reach it come first, cheapest first.
    #[arg(long, value_name = "SIZE", value_parser = arguments::positive_size)]
    target: Option<u64>,
    /// Print JSON for scripts.
    #[arg(long)]
    json: bool,
}

/// Prints the suggested changes.
///
/// # Errors
///
/// If the file is not a trace whose allocations can be replayed, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let files: Vec<PathBuf> = options.file.iter().cloned().collect();
    let [file] = &*trace_files::traces(&files, false)? else {
        return Err(bad_input("name one trace"));
    };
    trace_files::check_exists(file, "advise")?;
    let advices = progress::announce("trying changes", || advice::of(file, options.target, None))
        .map_err(|error| unreadable(file, error))?;
    let style = Style::of_output();
    let mut out = BufWriter::new(output::styled_stdout(style));
    if options.json {
        json::write_pretty(&mut out, &advices)?;
    } else {
        write_advice(&mut out, &advices, style)?;
    }
    Ok(out.flush()?)
}
