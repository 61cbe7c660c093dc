//! `memlab report`: where the memory of a recorded run was, to read, to look at and to script.

mod at;
mod bar;
mod html;
mod json;
mod names;
mod sections;
mod table;
mod text;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use memlab_trace::{Scope, load_whole};

pub use at::write_text_at;
pub use html::{write_html, write_html_at};
pub use json::write_json;
pub use text::{deep_stacks, write_text};

use crate::error::bad_input;
use crate::moment::{Moment, load_at};
use crate::progress;
use crate::save::Destination;
use crate::text::Style;
use crate::trace_files;
use crate::trace_moment::TraceMoment;

/// Prints the reports of traces, or of a moment of them; as JSON, several come as an array. Nothing is printed if one of
/// them cannot be read. `scope`: whose lines are told; `None`: libraries' where the user's say nothing.
///
/// # Errors
///
/// If the file is no trace that can be read, or the output cannot be written.
pub fn run(files: &[PathBuf], at: Option<Moment>, json: bool, scope: Option<Scope>) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for named in named(files, at)? {
        let mut report = Vec::new();
        match (named, json) {
            ((file, Some(moment)), json) => {
                let mut looked = load_at(&file, moment, None, &mut ())?;
                looked.choose(scope);
                if json {
                    crate::export::json::write(&mut report, &file, &looked, None)?;
                } else {
                    write_text_at(&mut report, &file, &looked, Style::of_output())?;
                }
            }
            ((file, None), json) => {
                let mut loaded = progress::shown(|progress| load_whole(&file, progress))?;
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

/// The traces that are meant, each with the moment of it that is: `None`, the whole run.
fn named(files: &[PathBuf], at: Option<Moment>) -> anyhow::Result<Vec<(PathBuf, Option<Moment>)>> {
    if files.is_empty() {
        return Ok(trace_files::traces(files, false)?.into_iter().map(|file| (file, at)).collect());
    }
    let mut named = Vec::new();
    for file in files {
        // Whatever stands for a moment that is not given: that the path is not taken apart says so.
        let parsed = TraceMoment::parse(file, at.unwrap_or_default())?;
        let moment = if parsed.path == *file { at } else { Some(parsed.moment) };
        named.extend(trace_files::traces(&[parsed.path], false)?.into_iter().map(|file| (file, moment)));
    }
    Ok(named)
}

/// Writes the report of one trace, or of a moment of it, as a page to `out`; `-`: standard output. `scope` as for [`run`]: the
/// page has both.
///
/// # Errors
///
/// If there are several traces, `out` is one, the trace cannot be read, or the page cannot be written.
pub fn run_html(files: &[PathBuf], at: Option<Moment>, out: &Path, scope: Option<Scope>) -> anyhow::Result<()> {
    let files = named(files, at)?;
    let [(file, moment)] = &*files else {
        return Err(bad_input(format!(
            "--html writes one page for one trace, and {} were given: call it once for each, with a name of its own",
            files.len()
        )));
    };
    let destination = Destination::of(out);
    destination.check(file, true)?;
    if let Some(moment) = moment {
        let mut looked = load_at(file, *moment, None, &mut ())?;
        looked.choose(scope);
        progress::said("writing the page", || destination.write(|mut out| write_html_at(&mut out, file, &looked)))?;
    } else {
        let mut loaded = progress::shown(|progress| load_whole(file, progress))?;
        loaded.model.set_scope(scope);
        progress::said("writing the page", || destination.write(|mut out| write_html(&mut out, file, &loaded)))?;
    }
    if io::stderr().is_terminal() && destination != Destination::Output {
        eprintln!("memlab: {} → {}", file.display(), out.display());
    }
    Ok(())
}
