//! Details of a rank: its differences from the others with the next step, followed by facts on the process.

use memlab_job::{ComparedMemory, Job};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::item::RankItem;
use super::style::state_style;
use crate::context::Context;
use crate::widgets::pane::{frame, put, put_right};
use memlab_base::text;
use memlab_base::theme::Theme;
use memlab_follow::snapshot::{ProcessSnapshot, ProcessState};
use memlab_report::report::{JobFinding, RankNames};
use memlab_units::format::{self, size};

/// Columns of the label before each fact of a process.
const WORDS: u16 = 11;

/// Maximum number of rows of a fact.
const MAX_FACT_ROWS: u16 = 3;

/// Maximum number of differing lines, layers and categories shown for a rank.
const MAX_DIFFERENCES: usize = 4;

/// One fact of a process.
pub(super) struct Detail {
    what: &'static str,
    words: String,
    style: Style,
}

impl Detail {
    /// Rows of the fact in a pane of this width, at most three.
    pub(super) fn rows(&self, width: u16) -> u16 {
        let room = usize::from(width.saturating_sub(WORDS + 5)).max(1);
        let (mut rest, mut rows) = (self.words.as_str(), 1);
        while rows < MAX_FACT_ROWS && text::width(rest) > room {
            rest = &rest[leading(rest, room).len()..];
            rows += 1;
        }
        rows
    }
}

pub(super) fn details(context: &Context, item: &RankItem, found: &[JobFinding]) -> Vec<Detail> {
    let theme = &context.theme;
    let Some(process) = context.snapshot.processes.get(item.of.process) else { return Vec::new() };
    let device = item.of.device;
    let header = &process.header;
    let mut details = Vec::new();
    let mut tell = |what, words: String, style| {
        details.push(Detail { what, words: text::clean(&words).into_owned(), style });
    };
    tell("state", state_words(process, item, context), state_style(process.state, theme));
    for (what, words, style) in comparison(context, process, found) {
        tell(what, words, style);
    }
    if let Some(words) = context.memory_location_words(process) {
        tell("memory", words, theme.warn);
    }
    for warning in process.failure.iter().chain(process.warnings.iter().rev().take(3)) {
        tell("warning", warning.clone(), theme.warn);
    }
    if process.skipped_lines > 0 {
        tell(
            "skipped",
            format!("{} of the trace could not be read", format::counted(process.skipped_lines, "line")),
            theme.warn,
        );
    }
    if let Some(device) = device.and_then(|device| process.devices.get(device)) {
        tell("device", device_words(&device.totals, context), theme.text);
    }
    tell("command", header.command.join(" "), theme.text);
    tell("directory", header.directory.clone(), theme.text);
    let parent = if header.parent_pid > 0 { format!(", parent {}", header.parent_pid) } else { String::new() };
    tell("host", format!("{}, pid {}{parent}", header.host, header.pid), theme.text);
    tell("trace", process.path.display().to_string(), theme.text);
    tell("started", started_words(process, context.now_unix_ns), theme.text);
    details
}

/// Differences of a rank, with the next step.
fn comparison(
    context: &Context,
    process: &ProcessSnapshot,
    found: &[JobFinding],
) -> Vec<(&'static str, String, Style)> {
    let theme = &context.theme;
    if process.header.rank.is_none() {
        return Vec::new();
    }
    let Some(job) = &context.snapshot.job else { return Vec::new() };
    let Some(at) = job.ranks.iter().position(|rank| rank.path == process.path) else {
        return vec![("compared", "no: not read yet, or from another job".to_owned(), theme.dim)];
    };
    let mut told = Vec::new();
    for finding in found.iter().filter(|finding| finding.ranks.contains(&at)) {
        told.push(("finding", finding.what.text(), theme.warn));
        told.push(("do", finding.next.clone(), theme.key));
    }
    told.extend(differences(job, at).into_iter().map(|words| ("differs", words, theme.text)));
    if told.is_empty() {
        told.push(("compared", "no difference from the other ranks at the peak".to_owned(), theme.dim));
    }
    told
}

/// Lines, layers and categories in which a rank differs from the median rank, largest difference first.
fn differences(job: &Job, at: usize) -> Vec<String> {
    let names = RankNames::new(job);
    let mut rows: Vec<(u64, String)> = Vec::new();
    for difference in job.differences.iter().filter(|difference| difference.held != ComparedMemory::Peak) {
        let Some(rank) = difference.ranks.iter().find(|rank| rank.at == at) else { continue };
        let by = rank.bytes.abs_diff(difference.median_bytes);
        let sign = if difference.is_more() { '+' } else { '-' };
        let (kind, name) = names.held(&difference.held);
        let words = format!(
            "{sign}{} {kind} {name} ({}, the median is {})",
            size(by),
            size(rank.bytes),
            size(difference.median_bytes)
        );
        rows.push((by, words));
    }
    rows.sort_by_key(|(by, _)| std::cmp::Reverse(*by));
    rows.truncate(MAX_DIFFERENCES);
    rows.into_iter().map(|(_, words)| words).collect()
}

fn state_words(process: &ProcessSnapshot, item: &RankItem, context: &Context) -> String {
    let how = match process.state {
        ProcessState::Ended { code: Some(code), signal: None } => format!("ended with exit code {code}"),
        ProcessState::Killed => "killed: the trace has no end record".to_owned(),
        state => state.short(),
    };
    let lasted = format::duration(process.until(context.now_unix_ns));
    let mut words = format!("{how} {} {lasted}", if process.state.is_over() { "after" } else { "for" });
    if process.steps_ended > 0 {
        words += &format!("{}{}", context.theme.glyphs.separator, format::counted(item.steps_ended, "step"));
    }
    if process.oom_count > 0 {
        words += &format!("{}{} out of memory", context.theme.glyphs.separator, format::grouped(process.oom_count));
    }
    words + &format!("{}{}", context.theme.glyphs.separator, format::counted(process.events_read, "event"))
}

fn device_words(totals: &memlab_trace::DeviceView, context: &Context) -> String {
    let name = if totals.name.is_empty() { "device" } else { &totals.name };
    let mut words = format!("cuda:{} {name}", totals.index);
    if totals.total_bytes > 0 {
        words += &format!(", {}", context.size(totals.total_bytes));
    }
    if totals.peak_allocated_bytes > 0 {
        let at = format::duration(totals.peak_time);
        words +=
            &format!("{}peak {} at {at}", context.theme.glyphs.separator, context.size(totals.peak_allocated_bytes));
    }
    words + &format!("{}at most {} in use", context.theme.glyphs.separator, context.size(totals.peak_used_bytes))
}

fn started_words(process: &ProcessSnapshot, now_unix_ns: u64) -> String {
    let start = process.header.start_unix_ns;
    let ago = now_unix_ns.checked_sub(start).map(|ago| format!(", {} ago", format::duration(ago))).unwrap_or_default();
    format!("{}{ago}", format::date(start))
}

pub(super) fn draw_details(buffer: &mut Buffer, area: Rect, title: &str, details: &[Detail], theme: &Theme) {
    let inner = frame(buffer, area, title, Vec::new(), theme);
    if inner.width < WORDS + 4 {
        return;
    }
    let room = inner.width - WORDS - 3;
    let mut y = inner.y;
    for detail in details {
        if y >= inner.bottom() {
            return;
        }
        put_right(buffer, inner.x + WORDS, y, WORDS - 1, detail.what, theme.dim, theme);
        // A long text continues in the next rows; the last row is cut.
        let rows = detail.rows(area.width).min(inner.bottom() - y);
        let mut rest = detail.words.as_str();
        for row in 0..rows {
            let here = if row + 1 == rows { rest } else { leading(rest, usize::from(room)) };
            put(buffer, inner.x + WORDS + 2, y, room, here, detail.style, theme);
            rest = &rest[here.len()..];
            y += 1;
        }
    }
}

/// The beginning of a text that fits into `columns`, up to a space if one is near.
fn leading(text: &str, columns: usize) -> &str {
    const MAX_CUT_BYTES: usize = 24;
    let fits = |end: &usize| text::width(&text[..*end]) <= columns;
    let ends = text.char_indices().map(|(index, character)| index + character.len_utf8());
    let leading = &text[..ends.take_while(fits).last().unwrap_or(0)];
    match leading.rfind(' ') {
        Some(space) if leading.len() < text.len() && leading.len() - space <= MAX_CUT_BYTES => &leading[..=space],
        _ => leading,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_that_fits() {
        assert_eq!(leading("模型 model", 5), "模型 ");
        assert_eq!(leading("a few words", 8), "a few ");
        assert_eq!([leading("abc", 0), leading("abc", 2), leading("abc", 9)], ["", "ab", "abc"]);
    }
}
