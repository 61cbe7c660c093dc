//! `memlab diff`: changes between two runs or moments.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use clap::Args;

use memlab_base::arguments::{Libraries, MOMENTS};
use memlab_base::moment::NamedMoment;
use memlab_base::output;
use memlab_base::text::Style;
use memlab_base::trace_moment::TraceMoment;
use memlab_report::diff::{Difference, Side, write_json, write_text};

const HELP: &str = "\
Examples:
  memlab diff before.jsonl after.jsonl
  memlab diff run.jsonl@step:3 run.jsonl@step:10
  memlab diff --at end --json a.jsonl b.jsonl

A and B are traces. @MOMENT after a trace overrides --at:";

/// Returns the help text after the options.
pub fn help() -> String {
    format!("{HELP}\n{MOMENTS}")
}

/// Options of `memlab diff`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The first trace.
    #[arg(value_name = "A[@MOMENT]")]
    before: PathBuf,
    /// The second trace.
    #[arg(value_name = "B[@MOMENT]")]
    after: PathBuf,
    /// Print JSON for scripts.
    #[arg(long)]
    json: bool,
    /// The moment to compare.
    #[arg(long, value_name = "MOMENT", default_value = "peak")]
    at: NamedMoment,
    /// Compare this device [default: in each trace the device with the highest peak].
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// Attribute memory to library lines instead of your lines. Without =WHEN: always [default: auto].
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    libraries: Option<Libraries>,
}

/// Compares two traces and prints the differences.
///
/// # Errors
///
/// If a trace cannot be read or lacks the moment or device, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let named = [&options.before, &options.after].map(|argument| TraceMoment::parse(argument, options.at));
    let [before, after] = named;
    let (before, after) = (before?, after?);
    let (before, after) = (Side::load(before, options.device)?, Side::load(after, options.device)?);
    let difference = Difference::new(before, after, Libraries::scope(options.libraries));
    let style = Style::of_output();
    let mut out = BufWriter::new(output::styled_stdout(style));
    if options.json {
        write_json(&mut out, &difference)?;
    } else {
        write_text(&mut out, &difference, style)?;
    }
    Ok(out.flush()?)
}
