//! The report in about fifteen lines: the verdict, the findings, the memory at the peak, and the best advice.

use std::cmp::Reverse;
use std::io::{self, Write};
use std::path::Path;

use memlab_predict::advice::AdviceReport;
use memlab_trace::{Category, DeviceView, Model};
use memlab_units::format::{self, counted, size};

use super::names::ReportNames;
use super::text::{self, Part};
use super::{advice, sections};
use crate::advice::AdvisedTrace;
use memlab_base::category::category_names;
use memlab_base::findings;
use memlab_base::table::Table;
use memlab_base::text::{Style, typed_path, wrapped};

/// Maximum numbers of what is shown.
const FINDINGS: usize = 3;
const CATEGORIES: usize = 4;
const LINES: usize = 5;
const ADVICE: usize = 3;

/// Writes the short report of a trace. No character in it controls the terminal, except the colours.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_brief(out: &mut impl Write, path: &Path, run: &AdvisedTrace, style: Style) -> io::Result<()> {
    let (model, columns) = (&run.trace.model, style.columns);
    let names = ReportNames::new(model);
    let mut parts: Vec<Part> = vec![process(model).into(), found(model, columns).into()];
    let devices = model.devices();
    match findings::fullest(&devices) {
        Some(device) => parts.push(peak(&names, device, devices.len(), columns).into()),
        None => parts.push(vec!["No GPU memory was allocated.".to_owned()].into()),
    }
    parts.extend(run.advice.as_ref().map(|advices| best(advices, columns).into()));
    parts.push(text::notes(path, &run.trace).into());
    parts.push(more(path, run.advice.as_ref()).into());
    text::write_parts(out, parts, style)
}

fn process(model: &Model) -> Vec<String> {
    let [title, facts, end] = text::process(model);
    vec![title, format!("{facts} · {}", end.trim_start())]
}

/// The verdict, and the findings.
fn found(model: &Model, columns: usize) -> Vec<String> {
    let found = findings::of(model);
    let Some(verdict) = findings::verdict(model, &found) else { return Vec::new() };
    let mut lines = sections::verdict(&verdict, columns);
    for finding in found.iter().take(FINDINGS) {
        lines.extend(sections::finding(finding, columns));
    }
    if let Some(more) = found.len().checked_sub(FINDINGS).filter(|more| *more > 0) {
        lines.push(format!("  and {}", counted(more as u64, "more finding")));
    }
    lines
}

/// Memory of a device at its peak: the figures, the largest categories and the largest lines.
fn peak(names: &ReportNames<'_>, device: &DeviceView, devices: usize, columns: usize) -> Vec<String> {
    let mut text = format!("Peak of cuda:{}", device.index);
    if devices > 1 {
        text += &format!(", the fullest of {devices} devices");
    }
    text += &format!(": {} allocated, {} in use", size(device.peak_allocated_bytes), size(device.used_bytes_at_peak));
    if device.total_bytes > 0 {
        text += &format!(" of {}", size(device.total_bytes));
    }
    let steps = names.model.steps_ended();
    if steps > 0 {
        text += &format!(", {}", format::step_during(device.peak_step, steps));
    }
    let mut lines = vec![text];
    if device.allocations == 0 {
        lines.push("  PyTorch allocated nothing on this device.".to_owned());
        return lines;
    }
    let mut held: Vec<(Category, u64)> =
        names.model.categories(device.index).map(|view| (view.category, view.bytes_at_peak)).into();
    held.retain(|(_, bytes)| *bytes > 0);
    held.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let in_use = held.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let share = |(category, bytes): &(Category, u64)| {
        format!("{} {} ({})", category_names(*category).0, size(*bytes), format::percent(*bytes, in_use))
    };
    let mut shares: Vec<String> = held.iter().take(CATEGORIES).map(share).collect();
    let others = held.iter().skip(CATEGORIES).fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    if others > 0 {
        shares.push(format!("others {} ({})", size(others), format::percent(others, in_use)));
    }
    lines.extend(wrapped(" ", &format!("in use: {}", shares.join("; ")), columns));
    let mut table = Table::new(&[
        "at the peak",
        sections::share_title(device.peak_allocated_bytes, device.attributed_bytes_at_peak()),
        "line",
    ]);
    let largest = names.model.lines(device.index);
    for line in largest.iter().filter(|line| line.live_bytes_at_peak > 0).take(LINES) {
        table.row(vec![
            size(line.live_bytes_at_peak),
            format::percent(line.live_bytes_at_peak, device.attributed_bytes_at_peak()),
            names.line(line.line.as_ref()),
        ]);
    }
    lines.extend(table.lines(columns));
    lines
}

/// The first advice, without its code.
fn best(advices: &AdviceReport, columns: usize) -> Vec<String> {
    if advices.advice.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![advice::title(advices)];
    for (index, advice) in advices.advice.iter().take(ADVICE).enumerate() {
        lines.extend(advice::heading(index, advice, columns));
    }
    lines
}

/// The commands that show more.
fn more(path: &Path, advices: Option<&AdviceReport>) -> Vec<String> {
    let path = typed_path(path);
    let mut lines = vec![format!("  All sections:    memlab report --full {path}")];
    if advices.is_some_and(|advices| !advices.advice.is_empty()) {
        lines.push(format!("  Code to paste:   memlab advise {path}"));
    }
    lines
}
