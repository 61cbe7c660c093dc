//! Facts in running text, and the stack of an allocation, for the panes about one block or event.

use memlab_trace::{Line, WorkTotals};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

use super::pane::{Fact, put, put_spans};
use memlab_base::text;
use memlab_base::theme::Theme;
use memlab_follow::snapshot::{GpuTime, ProcessSnapshot};
use memlab_units::format;

/// Columns between facts.
const FACT_GAP: u16 = 3;

/// Row and column of each fact. A fact that does not fit into the rest of a row moves to the next row.
fn places(facts: &[Fact], width: u16) -> Vec<(u16, u16)> {
    let mut places = Vec::with_capacity(facts.len());
    let (mut row, mut column) = (0, 0);
    for fact in facts {
        let columns = fact.iter().map(|span| text::width(&text::clean(&span.content))).sum::<usize>();
        let columns = u16::try_from(columns).unwrap_or(u16::MAX);
        if column > 0 && columns.saturating_add(column) > width {
            (row, column) = (row + 1, 0);
        }
        places.push((row, column));
        column = column.saturating_add(columns).saturating_add(FACT_GAP);
    }
    places
}

/// Number of rows that facts need at this width.
pub fn rows(facts: &[Fact], width: u16) -> u16 {
    places(facts, width).last().map_or(0, |(row, _)| row + 1)
}

/// Puts facts in sequence, as far as they fit, with `separator` between those of a row.
pub fn flow(buffer: &mut Buffer, area: Rect, facts: &[Fact], separator: &str, theme: &Theme) {
    for (fact, (row, column)) in facts.iter().zip(places(facts, area.width)) {
        if row >= area.height || column >= area.width {
            continue;
        }
        let (x, y) = (area.x + column, area.y + row);
        if column > 0 {
            put(buffer, x - FACT_GAP, y, FACT_GAP, separator, theme.border, theme);
        }
        put_spans(buffer, x, y, area.right(), fact, theme);
    }
}

/// A fact: a dim label, and its value.
pub fn labelled(label: &str, words: impl AsRef<str>, theme: &Theme) -> Fact {
    vec![
        Span::styled(format!("{label} "), theme.dim),
        Span::styled(text::clean(words.as_ref()).into_owned(), theme.text),
    ]
}

/// GPU time of a line or layer, in words.
pub fn gpu_time_words(time: &GpuTime) -> String {
    let WorkTotals { calls, nanoseconds, .. } = time.totals;
    if calls == 0 {
        return "no GPU work".to_owned();
    }
    let backward = match time.backward_nanoseconds {
        0 => String::new(),
        backward => format!(", {} of it in backward", format::time_spent(backward)),
    };
    format!(
        "{}, {} of all GPU time{backward}; {} {}, {} each",
        format::time_spent(nanoseconds),
        format::percent(nanoseconds, time.device_nanoseconds),
        format::grouped(calls),
        if calls == 1 { "launch" } else { "launches" },
        format::time_spent(nanoseconds / calls),
    )
}

/// Frames to show: those of the scope, innermost first; if it has none, all frames.
fn frames(process: &ProcessSnapshot, stack: u32) -> Vec<&Line> {
    let Some(stack) = process.names.stacks.get(&stack) else { return Vec::new() };
    let told: Vec<&Line> =
        stack.iter().filter(|frame| process.scope.shows(frame.origin)).map(|frame| &*frame.line).collect();
    if told.is_empty() { stack.iter().map(|frame| &*frame.line).collect() } else { told }
}

/// From this width on the stack is beside the facts.
const SIDE_BY_SIDE_COLUMNS: u16 = 110;

/// Draws facts, with the stack of the allocation beside or below them.
pub fn draw_with_stack(
    buffer: &mut Buffer,
    area: Rect,
    facts: &[Fact],
    process: &ProcessSnapshot,
    stack: u32,
    theme: &Theme,
) {
    let beside = if area.width >= SIDE_BY_SIDE_COLUMNS {
        let left = area.width / 2 - 1;
        flow(buffer, Rect { width: left, ..area }, facts, theme.glyphs.separator, theme);
        Rect { x: area.x + left + 2, width: area.width - left - 2, ..area }
    } else {
        // One row is reserved for the innermost line.
        let rows = rows(facts, area.width).min(area.height.saturating_sub(1));
        flow(buffer, Rect { height: rows, ..area }, facts, theme.glyphs.separator, theme);
        Rect { y: area.y + rows, height: area.height - rows, ..area }
    };
    draw_stack(buffer, beside, process, stack, theme);
}

/// Draws the frames of a stack, innermost first.
fn draw_stack(buffer: &mut Buffer, area: Rect, process: &ProcessSnapshot, stack: u32, theme: &Theme) {
    if area.height == 0 || area.width < 8 {
        return;
    }
    let frames = frames(process, stack);
    if frames.is_empty() {
        let words = "no Python frame: a library's thread, or before Python was detected";
        put(buffer, area.x, area.y, area.width, words, theme.dim, theme);
        return;
    }
    let room = usize::from(area.height);
    let shown = if frames.len() > room { room.saturating_sub(1).max(1) } else { frames.len() };
    let places: Vec<String> = frames[..shown].iter().map(|line| process.file_names.place(line)).collect();
    let widest = places.iter().map(|place| text::width(&text::clean(place))).max().unwrap_or(0);
    let columns = (widest as u16).min((area.width - 3) * 3 / 5);
    for (index, (line, place)) in frames.iter().zip(&places).enumerate() {
        let y = area.y + index as u16;
        let (sign, style) = if index == 0 { ("at", theme.text) } else { ("by", theme.dim) };
        put(buffer, area.x, y, 2, sign, theme.dim, theme);
        let place = text::clean(place);
        put(
            buffer,
            area.x + 3,
            y,
            columns,
            &text::fit_end(&place, usize::from(columns), theme.glyphs.ellipsis),
            style,
            theme,
        );
        let x = area.x + 4 + columns;
        put(buffer, x, y, area.right().saturating_sub(x), &line.function, function_style(index, theme), theme);
    }
    if shown < frames.len() && room > shown {
        let words = format!("{} {} outer frames", theme.glyphs.ellipsis, frames.len() - shown);
        put(buffer, area.x, area.y + shown as u16, area.width, &words, theme.dim, theme);
    }
}

fn function_style(index: usize, theme: &Theme) -> Style {
    if index == 0 { theme.accent } else { theme.dim }
}
