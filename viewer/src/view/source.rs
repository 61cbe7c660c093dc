//! The source around a line, with what each line holds in the margin.

use std::collections::HashMap;

use memlab_trace::Line;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::pane::{clear, fact, frame, put, put_right};
use crate::app::{App, Moment, SourceView, Spot};
use crate::format;
use crate::snapshot::LineRow;
use crate::source_file::SourceLine;
use crate::text::place;

/// Draws it over the screen.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App, view: &SourceView) {
    let theme = &app.theme;
    let margin = if area.width > 60 { 3 } else { 0 };
    let outer = Rect { x: area.x + margin, width: area.width - 2 * margin, ..area };
    clear(buffer, outer, theme);
    app.spots.put(outer, Spot::Overlay);
    let facts = vec![fact("j k scroll", theme.dim), fact("any other key: back", theme.dim)];
    let inner = frame(buffer, outer, &place(&view.line, ""), facts, theme);
    if inner.height == 0 || inner.width < 30 {
        return;
    }
    let source = match &view.source {
        Ok(source) => source,
        Err(reason) => {
            let words = format!("{}: {reason}", view.line.file);
            put(buffer, inner.x + 1, inner.y, inner.width - 2, &words, theme.warn, theme);
            return;
        }
    };
    let warning_rows = u16::from(source.warning.is_some());
    if let Some(warning) = &source.warning {
        put(buffer, inner.x + 1, inner.y, inner.width - 2, warning, theme.warn, theme);
    }
    let inner = Rect { y: inner.y + warning_rows, height: inner.height - warning_rows, ..inner };
    draw_lines(buffer, inner, app, view, &source.lines);
}

fn draw_lines(buffer: &mut Buffer, area: Rect, app: &App, view: &SourceView, lines: &[SourceLine]) {
    const BYTES: u16 = 11;
    const NUMBER: u16 = 6;
    let theme = &app.theme;
    let rows = usize::from(area.height);
    let wanted = view.line.line.unwrap_or(1);
    let place_of = |number: u32| lines.partition_point(|line| line.number < number);
    let first = view.top.map_or_else(|| place_of(wanted).saturating_sub(rows.saturating_sub(1) / 2), place_of);
    let first = first.min(lines.len().saturating_sub(rows));
    let held = held(app, &view.line);
    for (y, line) in (area.y..area.bottom()).zip(&lines[first..]) {
        if let Some(bytes) = held.get(&line.number).filter(|bytes| **bytes > 0) {
            put_right(buffer, area.x + BYTES, y, BYTES, &format::bytes(*bytes, app.units), theme.accent, theme);
        }
        let x = area.x + BYTES;
        put_right(buffer, x + NUMBER, y, NUMBER, &line.number.to_string(), theme.dim, theme);
        let x = x + NUMBER + 2;
        // What may not have run stands back.
        let style = if line.is_sure { theme.text } else { theme.dim };
        put(buffer, x, y, area.right().saturating_sub(x), &line.text.replace('\t', "    "), style, theme);
        if line.number == wanted {
            buffer.set_style(Rect { y, height: 1, ..area }, theme.selected);
        }
    }
}

/// What the lines of the same file hold at the moment shown.
fn held(app: &App, line: &Line) -> HashMap<u32, u64> {
    let mut held = HashMap::new();
    for LineRow { own, inclusive, .. } in app.device().map_or(&[][..], |device| &device.lines) {
        let Some(number) = own.line.as_ref().filter(|other| other.file == line.file).and_then(|line| line.line) else {
            continue;
        };
        let of = |live, at_peak| if app.moment == Moment::Peak { at_peak } else { live };
        let bytes = match inclusive.filter(|_| app.inclusive) {
            Some(inclusive) => of(inclusive.live_bytes, inclusive.live_bytes_at_peak),
            None => of(own.live_bytes, own.live_bytes_at_peak),
        };
        let sum: &mut u64 = held.entry(number).or_default();
        *sum = sum.saturating_add(bytes);
    }
    held
}
