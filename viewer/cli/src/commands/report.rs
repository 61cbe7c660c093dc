//! `memlab report`: the memory of a recorded run.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use memlab_job::Job;
use memlab_trace::Scope;

use memlab_base::arguments::Libraries;
use memlab_base::error::bad_input;
use memlab_base::moment::{NamedMoment, load_at};
use memlab_base::save::Destination;
use memlab_base::text::Style;
use memlab_base::trace_moment::TraceMoment;
use memlab_base::{output, progress, trace_files};
use memlab_report::advice::AdvisedTrace;
use memlab_report::export;
use memlab_report::report::{
    write_brief, write_html, write_html_at, write_job_html, write_job_json, write_job_text, write_json, write_text,
    write_text_at,
};

/// Options of `memlab report`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Traces (.jsonl or .jsonl.zst), reported one after the other; the ranks of one job are reported as a job. Add @MOMENT
    /// to report the memory held at that moment. A folder means its newest trace, with the other ranks of the job [default:
    /// the current folder].
    #[arg(value_name = "FILE[@MOMENT]")]
    files: Vec<PathBuf>,
    /// Report the memory held at this moment instead of the whole run: the same as @MOMENT, for all traces.
    #[arg(long, value_name = "MOMENT")]
    at: Option<NamedMoment>,
    /// Print all sections of a trace's report: findings, memory by category, line, layer and range, growth, fragmentation,
    /// driver memory, pinned host memory, and advice with its code.
    #[arg(long, conflicts_with_all = ["json", "html"])]
    full: bool,
    /// Print JSON for scripts: one object for a trace or a job, an array for several traces.
    #[arg(long)]
    json: bool,
    /// Write a self-contained web page about one trace or job (- for standard output).
    #[arg(long, value_name = "OUT", conflicts_with = "json")]
    html: Option<PathBuf>,
    /// Attribute memory to library lines instead of your lines. Without =WHEN: always [default: auto].
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    libraries: Option<Libraries>,
}

/// Writes the reports.
///
/// # Errors
///
/// If a file is not a readable trace, or the output cannot be written.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let scope = Libraries::scope(options.libraries);
    let subjects = subjects(&options.files, options.at)?;
    match &options.html {
        Some(out) => write_page(&subjects, out, scope),
        None => print(&subjects, options, scope),
    }
}

/// The subject of a report.
enum Subject {
    /// The ranks of a job.
    Job(Vec<PathBuf>),
    /// One trace; `None`: the whole run.
    Trace(PathBuf, Option<NamedMoment>),
}

/// Resolves the arguments to a job or to traces.
fn subjects(files: &[PathBuf], at: Option<NamedMoment>) -> anyhow::Result<Vec<Subject>> {
    let mut named: Vec<(PathBuf, Option<NamedMoment>)> = Vec::new();
    for file in files {
        // An argument without a moment keeps the whole path, and gets no default moment.
        let parsed = TraceMoment::parse(file, at.unwrap_or_default())?;
        let moment = if parsed.path == *file { at } else { Some(parsed.moment) };
        named.push((parsed.path, moment));
    }
    if files.is_empty() {
        named.push((PathBuf::from("."), at));
    }
    // A moment needs a single trace, so a job has none.
    let is_whole = named.iter().all(|(_, moment)| moment.is_none());
    let mut traces = Vec::new();
    for (path, moment) in named {
        let found = trace_files::traces(&[path], is_whole)?;
        found.iter().try_for_each(|trace| trace_files::check_exists(trace, "report"))?;
        traces.extend(found.into_iter().map(|trace| (trace, moment)));
    }
    let paths: Vec<PathBuf> = traces.iter().map(|(path, _)| path.clone()).collect();
    if is_whole && let Some(ranks) = trace_files::job(&paths) {
        return Ok(vec![Subject::Job(ranks)]);
    }
    Ok(traces.into_iter().map(|(path, moment)| Subject::Trace(path, moment)).collect())
}

/// Prints the reports, several as a JSON array.
///
/// Prints nothing if one of them cannot be read.
fn print(subjects: &[Subject], options: &Options, scope: Option<Scope>) -> anyhow::Result<()> {
    let json = options.json;
    let mut reports = Vec::new();
    for subject in subjects {
        let mut report = Vec::new();
        match (subject, json) {
            (Subject::Job(traces), json) => {
                let job = read_job(traces, scope)?;
                if json {
                    write_job_json(&mut report, &job)?;
                } else {
                    write_job_text(&mut report, &job, Style::of_output())?;
                }
            }
            (Subject::Trace(file, Some(moment)), json) => {
                let mut loaded = load_at(file, *moment, None, &mut ())?;
                loaded.set_scope(scope);
                if json {
                    export::json::write(&mut report, file, &loaded, None)?;
                } else {
                    write_text_at(&mut report, file, &loaded, Style::of_output())?;
                }
            }
            (Subject::Trace(file, None), json) => {
                let run = progress::report(|progress| AdvisedTrace::read(file, scope, false, progress))?;
                if json {
                    write_json(&mut report, file, &run)?;
                } else if options.full {
                    write_text(&mut report, file, &run, Style::of_output())?;
                } else {
                    write_brief(&mut report, file, &run, Style::of_output())?;
                }
            }
        }
        reports.push(report);
    }
    let (before, between, after) = match (json, reports.len() > 1) {
        (true, true) => ("[\n", ",\n", "]\n"),
        _ => ("", "\n", ""),
    };
    let mut out = io::BufWriter::new(output::styled_stdout(Style::of_output()));
    out.write_all(before.as_bytes())?;
    out.write_all(&reports.join(between.as_bytes()))?;
    out.write_all(after.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn read_job(traces: &[PathBuf], scope: Option<Scope>) -> anyhow::Result<Job> {
    let what = format!("reading {} traces", traces.len());
    Ok(progress::announce(&what, || Job::read(traces, scope))?)
}

/// Writes the report of a trace, a moment or a job to `out` as a page; `-`: standard output.
///
/// The page includes library lines for every `scope`.
fn write_page(subjects: &[Subject], out: &Path, scope: Option<Scope>) -> anyhow::Result<()> {
    let [subject] = subjects else {
        return Err(bad_input(format!(
            "--html writes one page for one trace or job, but {} traces were given: run it once per trace",
            subjects.len()
        )));
    };
    let destination = Destination::of(out);
    let file = match subject {
        Subject::Trace(file, _) => file,
        Subject::Job(traces) => &traces[0],
    };
    destination.check_page(file)?;
    match subject {
        Subject::Job(traces) => {
            let job = read_job(traces, scope)?;
            progress::announce("writing the page", || destination.write(|mut out| write_job_html(&mut out, &job)))?;
        }
        Subject::Trace(_, Some(moment)) => {
            let mut loaded = load_at(file, *moment, None, &mut ())?;
            loaded.set_scope(scope);
            progress::announce("writing the page", || {
                destination.write(|mut out| write_html_at(&mut out, file, &loaded))
            })?;
        }
        Subject::Trace(_, None) => {
            let run = progress::report(|progress| AdvisedTrace::read(file, scope, true, progress))?;
            progress::announce("writing the page", || destination.write(|mut out| write_html(&mut out, file, &run)))?;
        }
    }
    if output::stderr_is_terminal() && destination != Destination::Output {
        output::note(format_args!("{} → {}", file.display(), out.display()));
    }
    Ok(())
}
