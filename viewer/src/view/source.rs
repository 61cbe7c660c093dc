//! The source around a line, with what each line holds in the margin.

use std::collections::HashMap;

use memlab_trace::Line;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::lines::place;
use super::pane::{clear, fact, frame, put, put_right};
use crate::app::{App, Moment, SourceView, Spot};
use crate::format;
use crate::snapshot::LineRow;

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
    let wanted = view.line.line.unwrap_or(1) as usize;
    let centered = wanted.saturating_sub(usize::from(inner.height) / 2);
    let last_top = source.len().saturating_sub(usize::from(inner.height)) + 1;
    let top = view.top.map_or(centered, |top| top as usize).clamp(1, last_top.max(1));
    let held = held(app, &view.line);
    let bytes_width = 11;
    let number_width = 6;
    for (y, number) in (inner.y..inner.bottom()).zip(top..) {
        let Some(text) = source.get(number - 1) else { break };
        if let Some(bytes) = u32::try_from(number).ok().and_then(|number| held.get(&number)).filter(|bytes| **bytes > 0)
        {
            put_right(
                buffer,
                inner.x + bytes_width,
                y,
                bytes_width,
                &format::bytes(*bytes, app.units),
                theme.accent,
                theme,
            );
        }
        let x = inner.x + bytes_width;
        put_right(buffer, x + number_width, y, number_width, &number.to_string(), theme.dim, theme);
        let x = x + number_width + 2;
        put(buffer, x, y, inner.right().saturating_sub(x), &text.replace('\t', "    "), theme.text, theme);
        if number == wanted {
            buffer.set_style(Rect { y, height: 1, ..inner }, theme.selected);
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
