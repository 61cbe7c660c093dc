//! `memlab fit`: chooses the changes with which a program fits, and shows them.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use memlab_base::error::bad_input;
use memlab_base::text::{Style, short_command};
use memlab_base::{arguments, output};
use memlab_predict::plan::Recording;

use crate::fit::{self, Request};
use crate::run::Allowed;

/// The help after the options.
pub const HELP: &str = "\
Examples:
  memlab fit --size 16GiB -- python train.py     choose changes for this program, and show them as code
  memlab fit --size 16GiB memlab-train-4242.jsonl
                                                 the same for the program of a trace, with its GPU times
  memlab run --fit 16GiB -- python train.py      choose them, and run the program with them

The changed program runs on a simulated card. No GPU is needed, and its files are not changed.";

const MIB: u64 = 1 << 20;

/// Options of `memlab fit`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// A trace of the unchanged program (.jsonl or .jsonl.zst).
    #[arg(value_name = "TRACE")]
    file: Option<PathBuf>,
    /// Most GPU memory, context included [default: what is free on the card].
    #[arg(long, value_name = "SIZE", value_parser = arguments::positive_size)]
    size: Option<u64>,
    /// Leave out a change: a module, gradients, loss, state, activations or weights. Can be repeated.
    #[arg(long, value_name = "CHANGE")]
    without: Vec<String>,
    /// Allow changes that alter the last bits of results, if others do not suffice.
    #[arg(long, value_name = "WHAT")]
    allow: Option<Allowed>,
    /// The program and its arguments [default: those of the trace].
    #[arg(last = true, value_hint = ValueHint::CommandWithArguments, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Prints the changes.
///
/// # Errors
///
/// If the program cannot be recorded or does not fit, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let from = options.file.as_deref().map(fit::recorded).transpose()?;
    let command = match (&from, &*options.command) {
        (Some(recording), []) => command_of(recording)?,
        (None, []) => {
            return Err(bad_input("name a program or its trace: `memlab fit --size 16GiB -- python train.py`"));
        }
        (_, command) => command.to_vec(),
    };
    let allows_rounding = options.allow.is_some();
    let (size, without) = (options.size, &*options.without);
    let fitted = fit::choose(Request { command: &command, size, without, allows_rounding, from })?;
    let mut out = output::styled_stdout(Style::of_output());
    writeln!(out, "{fitted}")?;
    if let Some(code) = fitted.code() {
        let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let words = shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| short_command(&words));
        let size = options.size.map_or_else(String::new, |size| match size % MIB {
            0 => format!(" {}MiB", size / MIB),
            _ => format!(" {size}B"),
        });
        let allow = if allows_rounding { " --fit-allow rounding" } else { "" };
        writeln!(out, "\n{code}\n\n# To run it with these changes: memlab run --fit{size}{allow} -- {words}")?;
    }
    Ok(out.flush()?)
}

/// Returns the command that was recorded.
fn command_of(recording: &Recording) -> anyhow::Result<Vec<OsString>> {
    let header = recording.model.header();
    let command: Vec<OsString> = header.iter().flat_map(|header| &header.command).map(OsString::from).collect();
    if command.is_empty() {
        return Err(bad_input("the trace has no command: name it after `--`"));
    }
    Ok(command)
}
