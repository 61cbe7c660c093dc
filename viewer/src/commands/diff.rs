//! `memlab diff`: what changed from one run, or moment, to another.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use memlab_trace::Scope;

use crate::diff::{Difference, Side, write_json, write_text};
use crate::moment::Moment;
use crate::text::Style;
use crate::trace_moment::TraceMoment;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// The trace before, with a moment after an `@` or not.
    pub before: PathBuf,
    /// The trace after, likewise.
    pub after: PathBuf,
    /// As JSON.
    pub json: bool,
    /// The moment of traces without one.
    pub at: Moment,
    /// The device; else in each the one with the highest peak.
    pub device: Option<i32>,
    /// Whose lines are shown; `None`: libraries' where the user's only call them.
    pub scope: Option<Scope>,
}

/// Compares.
///
/// # Errors
///
/// If a trace cannot be read, has no such moment or device, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let named = [&options.before, &options.after].map(|argument| TraceMoment::parse(argument, options.at));
    let [before, after] = named;
    let (before, after) = (before?, after?);
    let (before, after) = (Side::load(before, options.device)?, Side::load(after, options.device)?);
    let difference = Difference::new(before, after, options.scope);
    let mut out = BufWriter::new(io::stdout().lock());
    if options.json {
        write_json(&mut out, &difference)?;
    } else {
        write_text(&mut out, &difference, Style::of_output())?;
    }
    Ok(out.flush()?)
}
