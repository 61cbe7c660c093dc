//! The summary after a run: the program's end, the peak, and its largest holders.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use memlab_trace::{ReadError, Replay, load};

use super::ending::{append_end, is_ended};
use super::launch::{ExitOutcome, lock};
use super::traces::{FoundTrace, TraceFinder, is_gone};
use super::untraced::{why_cut, without_trace};
use memlab_base::clock::{now_unix_ns, patience};
use memlab_base::output;
use memlab_base::progress;
use memlab_base::query::Detail;
use memlab_base::text;
use memlab_base::trace_files::job;
use memlab_follow::snapshot::{DeviceSnapshot, ProcessSnapshot, ProcessState};
use memlab_units::format::{self, size};

/// Longest time to read the traces for the summary.
const SUMMARY_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines of code listed for each device.
const MAX_LINES: usize = 3;
/// Findings shown for each process.
const MAX_FINDINGS: usize = 3;

/// Ends the traces of killed processes, and prints the summary on standard error.
pub fn finish(finder: &Mutex<TraceFinder>, command: &[OsString], ended: ExitOutcome) {
    // Standard error may be a file that has reached its size limit. memlab must still end as the program did.
    // SAFETY: ignores a signal of this process, which starts no other any more.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut finder = lock(finder);
    let program = finder.program();
    finder.scan();
    if finder.found().iter().all(|trace| !trace.path.exists()) {
        output::note(without_trace(&mut finder, command, ended));
        return;
    }
    for deleted in finder.take_deleted() {
        output::note(format_args!("the trace {} was deleted", text::typed_path(&deleted.path)));
    }
    let traces = finder.found();
    let started = Instant::now();
    for trace in traces {
        // An exit code belongs to the program alone; a signal may have ended its children too.
        let is_program = program == Some(trace.header.pid);
        let known = (is_program || matches!(ended, ExitOutcome::Signal(_))) && is_gone(trace.header.pid);
        let is_missing = known && !is_ended(&trace.path).unwrap_or(true);
        let missing = is_missing.then(|| (ended, now_unix_ns().saturating_sub(trace.header.start_unix_ns)));
        let note = missing.and_then(|(ended, time)| noted(trace, ended, time));
        let left = patience(SUMMARY_TIMEOUT).saturating_sub(started.elapsed());
        let summary = of_trace(trace, missing, left, traces.len() > 4);
        let _ = write!(output::stderr(), "{summary}{}", note.unwrap_or_default());
    }
    let all = typed(traces);
    let _ = writeln!(output::stderr(), "  report:     memlab report {all}\n  dashboard:  memlab view {all}");
}

/// Returns the traces as a user would type them: the folder of a job's traces, unless it is the working directory, else
/// the paths.
fn typed(traces: &[FoundTrace]) -> String {
    let paths: Vec<PathBuf> = traces.iter().map(|trace| trace.path.clone()).collect();
    let folder = paths[0].parent().filter(|folder| {
        std::env::current_dir().is_ok_and(|here| *folder != here)
            && paths.iter().all(|path| path.parent() == Some(folder))
    });
    match folder.filter(|_| job(&paths).is_some()) {
        Some(folder) => text::typed_path(folder),
        None => paths.iter().map(|path| text::typed_path(path)).collect::<Vec<_>>().join(" "),
    }
}

/// Records the end of a trace's process.
///
/// Returns a line for the summary if that failed or the trace was cut.
fn noted(trace: &FoundTrace, ended: ExitOutcome, time: u64) -> Option<String> {
    let failure = append_end(&trace.path, ended, time).err();
    let cut = || {
        let written = std::fs::metadata(&trace.path).map_or(0, |file| file.len());
        format!("  {}", why_cut(trace.path.parent().unwrap_or(&trace.path), written))
    };
    match (ended, failure) {
        (ExitOutcome::Signal(_), None) => None,
        (ExitOutcome::Signal(_), Some(error)) => {
            Some(format!("  the signal could not be written to the trace: {error}\n"))
        }
        (ExitOutcome::Code(_), None) => Some(format!("{}\n", cut())),
        (ExitOutcome::Code(_), Some(error)) => Some(format!("{}; its end could not be written: {error}\n", cut())),
    }
}

/// Returns the summary of a trace; `ended`: the end and time of its process, where the trace lacked it.
fn of_trace(trace: &FoundTrace, ended: Option<(ExitOutcome, u64)>, longest: Duration, short: bool) -> String {
    let started = Instant::now();
    let in_time = |_| if started.elapsed() < longest { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let path = text::typed_path(&trace.path);
    let loaded = progress::report(|progress| {
        load(&trace.path, &mut |read| if progress(read).is_break() { ControlFlow::Break(()) } else { in_time(read) })
    });
    match loaded {
        Ok(loaded) if loaded.cancelled => format!("memlab: {path}: too long to summarize here\n"),
        Ok(mut loaded) => {
            loaded.model.set_scope(None);
            let end = loaded.model.end();
            let state = match (ended, end) {
                (Some((ExitOutcome::Code(code), _)), _) => ProcessState::Ended { code: Some(code), signal: None },
                (Some((ExitOutcome::Signal(signal), _)), _) => ProcessState::Ended { code: None, signal: Some(signal) },
                (None, Some(end)) => ProcessState::Ended { code: end.code, signal: end.signal },
                (None, None) => ProcessState::Killed,
            };
            let mut process =
                ProcessSnapshot::of(&Replay::from_model(loaded.model, 0), &trace.path, state, Detail::None);
            process.time = process.time.max(ended.map_or(0, |(_, time)| time));
            summary(&process, &path, short)
        }
        Err(error) => format!("memlab: {}\n", text::clean(&unreadable(&error))),
    }
}

fn unreadable(error: &ReadError) -> String {
    format!("the trace cannot be read: {error}")
}

/// Returns a few lines about one process; `short`: one line for each device.
fn summary(process: &ProcessSnapshot, path: &str, short: bool) -> String {
    let mut words = String::new();
    let header = &process.header;
    let rank = header.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
    let end = match process.state {
        ProcessState::Ended { signal: Some(signal), .. } => format!(", {}", memlab_base::signals::describe(signal)),
        ProcessState::Ended { code: Some(code), .. } if code != 0 => format!(", exit code {code}"),
        ProcessState::Ended { .. } => String::new(),
        _ => ", end not recorded".to_owned(),
    };
    let command = text::short_command(&header.command);
    let command = text::fit(&command, 60, "…");
    let _ = writeln!(
        words,
        "memlab: {command} (pid {}{rank}) {}{end} → {path}",
        header.pid,
        format::duration(process.time)
    );
    for device in &process.devices {
        of_device(&mut words, process, device, if short { 0 } else { MAX_LINES });
    }
    for finding in process.findings.iter().take(if short { 1 } else { MAX_FINDINGS }) {
        put(&mut words, "  !", &finding.what.text());
        put(&mut words, "    →", &finding.next);
    }
    words
}

/// Appends a text after a mark, wrapped on a terminal; later lines are indented equally.
fn put(words: &mut String, mark: &str, text: &str) {
    let indent = " ".repeat(text::width(mark) + 1);
    let lines = text::filled(vec![mark.to_owned()], &text::clean(text), &indent, output::stderr_columns());
    lines.iter().for_each(|line| _ = writeln!(words, "{line}"));
}

fn of_device(words: &mut String, process: &ProcessSnapshot, device: &DeviceSnapshot, lines: usize) {
    let totals = &device.totals;
    let name = if totals.name.is_empty() { String::new() } else { format!(" {}", text::clean(&totals.name)) };
    let of_total = if totals.total_bytes > 0 { format!(" of {}", size(totals.total_bytes)) } else { String::new() };
    let step = match process.steps_ended {
        _ if device.steps.is_empty() => String::new(),
        steps => format!(", {}", format::step_during(totals.peak_step, steps)),
    };
    if totals.allocations == 0 && totals.peak_used_bytes == 0 {
        let _ = writeln!(words, "  cuda:{}{name}: nothing was allocated", totals.index);
        return;
    }
    if totals.allocations == 0 {
        let _ = writeln!(
            words,
            "  cuda:{}{name}: peak {} in use{of_total} at {}; PyTorch allocated nothing",
            totals.index,
            size(totals.peak_used_bytes),
            format::duration(totals.peak_time),
        );
        return;
    }
    let peak = format!(
        "{}{name}: peak {} allocated at {}{step}; at most {} reserved, {} in use{of_total}",
        totals.index,
        size(totals.peak_allocated_bytes),
        format::duration(totals.peak_time),
        size(totals.peak_reserved_bytes),
        size(totals.peak_used_bytes),
    );
    put(words, " ", &format!("cuda:{peak}"));
    if let Some(limit) = totals.limit_bytes {
        let _ = writeln!(words, "    limited to {}", size(limit));
    }
    if totals.peak_host_bytes > 0 {
        let _ = writeln!(words, "    at most {} in host memory", size(totals.peak_host_bytes));
    }
    let mut top: Vec<_> = device.lines.iter().filter(|line| line.own.live_bytes_at_peak > 0).collect();
    top.sort_by_key(|line| std::cmp::Reverse(line.own.live_bytes_at_peak));
    for line in top.into_iter().take(lines) {
        let (place, function) = match &line.own.line {
            Some(found) => (process.file_names.place(found), found.function.to_string()),
            None => (text::NO_LINE.to_owned(), String::new()),
        };
        let _ = writeln!(
            words,
            "  {:>10}  {}",
            size(line.own.live_bytes_at_peak),
            text::clean(format!("{place} {function}").trim_end())
        );
    }
}
