//! The report as text, in the order of a reader's questions.

use std::io::{self, Write};
use std::path::Path;

use memlab_predict::advice::AdviceReport;
use memlab_trace::{DeviceView, HOST, Loaded, MAX_STACK_DEPTH, Model, Skipped};

use super::advice::AdvicePart;
use super::names::ReportNames;
use super::{advice, gpu_time, sections, training};
use crate::advice::AdvisedTrace;
use memlab_base::findings::Kind;
use memlab_base::text::{Color, Style, clean, missing_events, short_command};
use memlab_base::{parallel, signals};
use memlab_units::format::{self, size};

/// Writes the report of a trace. No character in it controls the terminal, except the colours.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_text(out: &mut impl Write, path: &Path, run: &AdvisedTrace, style: Style) -> io::Result<()> {
    let columns = style.columns;
    let model = &run.trace.model;
    let names = ReportNames::new(model);
    let mut parts: Vec<Part> = vec![
        Vec::from(process(model)).into(),
        sections::findings(&names, columns).into(),
        training::epochs(model, columns).into(),
    ];
    for device in model.devices() {
        let title = "Driver memory outside PyTorch's allocator";
        let sections = [
            vec![device_title(&device, columns)],
            sections::ooms(&names, &device, columns),
            sections::peak(&device, model.steps_ended()),
            sections::memory(&names, &device, columns),
            sections::lines(&names, &device, columns),
            sections::layers(&names, &device, columns),
            sections::ranges(&names, &device, columns),
            gpu_time::gpu_time(&names, &device, columns),
            sections::growth(&names, &device, columns),
            sections::fragmentation(&names, &device),
            sections::graph_pools(&names, &device, columns),
            sections::driver(&names, device.index, title, columns),
        ];
        parts.extend(sections.map(Part::from));
    }
    if model.devices().is_empty() {
        parts.push(vec!["No GPU memory was allocated.".to_owned()].into());
    }
    parts.push(sections::driver(&names, HOST, "Pinned host memory", columns).into());
    parts.push(advice::chapter(run.advice.as_ref(), columns).into());
    parts.push(notes(path, &run.trace).into());
    write_parts(out, parts, style)
}

/// Writes the advice.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_advice(out: &mut impl Write, advices: &AdviceReport, style: Style) -> io::Result<()> {
    let parts = [advice::advised(advices, style.columns), advice::tried(advices, style.columns)];
    write_parts(out, parts.map(Part::from).into(), style)
}

/// First line of a device's part.
pub(super) fn device_title(device: &DeviceView, columns: usize) -> String {
    let memory = if device.total_bytes > 0 { format!(", {}", size(device.total_bytes)) } else { String::new() };
    let name = if device.name.is_empty() { "unknown" } else { &device.name };
    let title = format!("=== Device {}: {}{memory} ", device.index, clean(name));
    let rule = "=".repeat(columns.saturating_sub(memlab_base::text::width(&title)).min(100));
    format!("{title}{rule}")
}

/// Lines of a report with their colours; `None`: the colour follows from the beginning of the line.
#[derive(Clone, Debug, Default)]
pub(super) struct Part(pub Vec<(Option<Color>, String)>);

impl From<Vec<String>> for Part {
    fn from(lines: Vec<String>) -> Self {
        Self(lines.into_iter().map(|line| (None, line)).collect())
    }
}

impl From<Vec<(AdvicePart, String)>> for Part {
    fn from(lines: Vec<(AdvicePart, String)>) -> Self {
        Self(lines.into_iter().map(|(part, line)| (part.color(), line)).collect())
    }
}

/// Writes the non-empty parts, separated by empty lines.
pub(super) fn write_parts(out: &mut impl Write, mut parts: Vec<Part>, style: Style) -> io::Result<()> {
    parts.retain(|part| !part.0.is_empty());
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        for (color, line) in &part.0 {
            let line = clean(line);
            match color {
                _ if !style.colored => writeln!(out, "{line}")?,
                Some(color) => writeln!(out, "{}", color.paint(&line))?,
                None => writeln!(out, "{}", colored(&line))?,
            }
        }
    }
    Ok(())
}

/// Colours a line of the report: titles, and problems in a stronger colour.
fn colored(line: &str) -> String {
    if line.starts_with("OUT OF MEMORY") {
        return Color::Bad.paint(line);
    }
    if let Some(found) = line.strip_prefix("  ! ") {
        // Subject, up to the colon or the verb.
        let end = Kind::ALL.iter().find_map(|kind| found.starts_with(kind.title()).then(|| kind.title().len()));
        let (title, rest) = found.split_at(end.unwrap_or(0));
        let color = if title == Kind::OutOfMemory.title() { Color::Bad } else { Color::Warn };
        return format!("  {}{rest}", color.paint(&format!("! {title}")));
    }
    match line.chars().next() {
        Some(' ') | None => line.to_owned(),
        Some(_) if line.starts_with("Note:") => Color::Dim.paint(line),
        Some(_) => Color::Title.paint(line),
    }
}

/// Description of the process, and its end.
pub(super) fn process(model: &Model) -> [String; 3] {
    let header = model.header().cloned().unwrap_or_default();
    let mut facts = vec![format!("pid {}", header.pid)];
    match (header.rank, header.world_size) {
        (Some(rank), Some(size)) => facts.push(format!("rank {rank} of {size}")),
        (Some(rank), None) => facts.push(format!("rank {rank}")),
        (None, _) => {}
    }
    if !header.host.is_empty() {
        facts.push(format!("on {}", clean(&header.host)));
    }
    facts.extend(parallel::facts(model));
    facts.push(format::duration(model.time()));
    match model.steps_ended() {
        0 => {}
        1 => facts.push("1 step".to_owned()),
        steps => facts.push(format!("{} steps", format::grouped(steps))),
    }
    facts.push(format!("{} events", format::grouped(model.events())));
    [
        format!("memlab report: {}", short_command(&header.command)),
        format!("  {}", facts.join(" · ")),
        format!("  {}", ending(model)),
    ]
}

/// End of the process.
pub(super) fn ending(model: &Model) -> String {
    match model.end().map(|end| (end.code, end.signal)) {
        None => "no end was recorded (running, or killed)".to_owned(),
        Some((_, Some(signal))) => signals::describe(signal),
        Some((Some(code), None)) => format!("ended with exit code {code}"),
        Some((None, None)) => "ended".to_owned(),
    }
}

/// Notes on the trace itself.
pub(super) fn notes(path: &Path, loaded: &Loaded) -> Vec<String> {
    let mut lines = Vec::new();
    for note in notes_on(loaded) {
        let mut parts = note.into_iter();
        lines.extend(parts.next().map(|first| format!("Note: {first}")));
        lines.extend(parts.map(|more| format!("  {more}")));
    }
    if !lines.is_empty() {
        lines.insert(0, format!("About the trace {}", clean(&path.display().to_string())));
    }
    lines
}

/// Notes on the trace itself, each with its details.
pub(super) fn notes_on(loaded: &Loaded) -> Vec<Vec<String>> {
    notes_of(&loaded.model, &loaded.skipped, loaded.truncated)
}

/// Notes on the trace from the summary of its reading.
pub(super) fn notes_of(model: &Model, skipped: &Skipped, truncated: bool) -> Vec<Vec<String>> {
    let mut notes: Vec<Vec<String>> =
        model.warnings().iter().map(|warning| vec![clean(warning).into_owned()]).collect();
    notes.extend(missing_events(model.lost_events()).map(|note| vec![note]));
    let Skipped { count, first } = skipped;
    if *count > 0 {
        let lines = if *count == 1 { "line was" } else { "lines were" };
        let mut note = vec![format!("{} garbled {lines} skipped:", format::grouped(*count))];
        note.extend(
            first.iter().map(|line| format!("line {} (at byte {}): {}", line.line, line.offset, clean(&line.reason))),
        );
        notes.push(note);
    }
    if truncated {
        notes.push(vec!["the trace is cut short; the report covers the readable part.".to_owned()]);
    }
    notes.extend(deep_stacks(model).map(|note| vec![format!("{note}.")]));
    let anomalies = model.anomalies();
    if anomalies.total() > 0 {
        notes.push(vec![format!(
            "{} inconsistent events were left out (see trace.anomalies in --json).",
            format::grouped(anomalies.total())
        )]);
    }
    notes
}

/// Note on stacks that are too deep to be shown whole.
pub fn deep_stacks(model: &Model) -> Option<String> {
    let count = model.deep_stacks();
    let stacks = if count == 1 { "stack is" } else { "stacks are" };
    (count > 0).then(|| {
        format!(
            "{} {stacks} more than {MAX_STACK_DEPTH} calls deep: the outermost calls are left out",
            format::grouped(count as u64)
        )
    })
}
