//! `memlab report`: where the memory of a recorded run was.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use memlab_trace::{Scope, load_whole};

use crate::arguments::Libraries;
use crate::error::bad_input;
use crate::moment::{NamedMoment, load_at};
use crate::report::{write_html, write_html_at, write_json, write_text, write_text_at};
use crate::save::Destination;
use crate::text::Style;
use crate::trace_moment::TraceMoment;
use crate::{export, progress, trace_files};

/// What to report, and how.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Traces (.jsonl or .jsonl.zst), reported one after the other. Add a moment after an @ to report what was held
    /// then. A folder means the newest trace in it [default: the newest trace in this folder].
    #[arg(value_name = "FILE[@MOMENT]")]
    files: Vec<PathBuf>,
    /// Report what was held at this moment instead of the whole run.
    #[arg(long, value_name = "MOMENT")]
    at: Option<NamedMoment>,
    /// Print JSON for scripts; several traces are an array.
    #[arg(long)]
    json: bool,
    /// Write a web page about one trace, which needs no network [-: standard output].
    #[arg(long, value_name = "OUT", conflicts_with = "json")]
    html: Option<PathBuf>,
    /// Show lines of libraries too: of each stack the innermost line of your code or of a library [default: where your
    /// lines only call libraries].
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    libraries: Option<Libraries>,
}

/// Writes the reports.
///
/// # Errors
///
/// If the file is no trace that can be read, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let scope = Libraries::scope(options.libraries);
    match &options.html {
        Some(out) => write_page(&options.files, options.at, out, scope),
        None => print(&options.files, options.at, options.json, scope),
    }
}

/// Prints the reports of traces, or of a moment of them; as JSON, several come as an array. Nothing is printed if one
/// of them cannot be read.
fn print(files: &[PathBuf], at: Option<NamedMoment>, json: bool, scope: Option<Scope>) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for named in named(files, at)? {
        let mut report = Vec::new();
        match (named, json) {
            ((file, Some(moment)), json) => {
                let mut loaded = load_at(&file, moment, None, &mut ())?;
                loaded.set_scope(scope);
                if json {
                    export::json::write(&mut report, &file, &loaded, None)?;
                } else {
                    write_text_at(&mut report, &file, &loaded, Style::of_output())?;
                }
            }
            ((file, None), json) => {
                let mut loaded = progress::report(|progress| load_whole(&file, progress))?;
                loaded.model.set_scope(scope);
                if json {
                    write_json(&mut report, &file, &loaded)?;
                } else {
                    write_text(&mut report, &file, &loaded, Style::of_output())?;
                }
            }
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

/// The traces, each with a moment; `None`: the whole run.
fn named(files: &[PathBuf], at: Option<NamedMoment>) -> anyhow::Result<Vec<(PathBuf, Option<NamedMoment>)>> {
    if files.is_empty() {
        return Ok(trace_files::traces(files, false)?.into_iter().map(|file| (file, at)).collect());
    }
    let mut named = Vec::new();
    for file in files {
        // If the path is not split, the argument names no moment, and the default does not count.
        let parsed = TraceMoment::parse(file, at.unwrap_or_default())?;
        let moment = if parsed.path == *file { at } else { Some(parsed.moment) };
        named.extend(trace_files::traces(&[parsed.path], false)?.into_iter().map(|file| (file, moment)));
    }
    Ok(named)
}

/// Writes the report of one trace, or of a moment of it, as a page to `out`; `-`: standard output. The page has the
/// lines of libraries whatever `scope` is.
fn write_page(files: &[PathBuf], at: Option<NamedMoment>, out: &Path, scope: Option<Scope>) -> anyhow::Result<()> {
    let files = named(files, at)?;
    let [(file, moment)] = &*files else {
        return Err(bad_input(format!(
            "--html writes one page for one trace, and {} were given: run it once for each trace",
            files.len()
        )));
    };
    let destination = Destination::of(out);
    destination.check(file, true)?;
    if let Some(moment) = moment {
        let mut loaded = load_at(file, *moment, None, &mut ())?;
        loaded.set_scope(scope);
        progress::announce("writing the page", || destination.write(|mut out| write_html_at(&mut out, file, &loaded)))?;
    } else {
        let mut loaded = progress::report(|progress| load_whole(file, progress))?;
        loaded.model.set_scope(scope);
        progress::announce("writing the page", || destination.write(|mut out| write_html(&mut out, file, &loaded)))?;
    }
    if io::stderr().is_terminal() && destination != Destination::Output {
        eprintln!("memlab: {} → {}", file.display(), out.display());
    }
    Ok(())
}
