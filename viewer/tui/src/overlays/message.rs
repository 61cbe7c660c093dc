//! A text in a box: an error, or a question.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::context::{Context, HitTarget};
use crate::widgets::pane::{centered, clear, fact, frame, put, wrapped};

const COLUMNS: u16 = 76;

/// Draws an error.
pub fn draw(buffer: &mut Buffer, area: Rect, context: &Context, words: &str) {
    draw_box(buffer, area, context, "Failed", words, "any key: back", 0);
}

/// Draws a box with a text and some free rows below it; returns the inner area.
pub fn draw_box(
    buffer: &mut Buffer,
    area: Rect,
    context: &Context,
    title: &str,
    words: &str,
    how: &str,
    below: u16,
) -> Rect {
    let theme = &context.theme;
    let lines = wrapped(words, usize::from(COLUMNS.min(area.width).saturating_sub(4)));
    let place = centered(area, COLUMNS, lines.len() as u16 + 2 + below);
    clear(buffer, place, theme);
    context.hit_targets.put(place, HitTarget::Overlay);
    let facts = if how.is_empty() { Vec::new() } else { vec![fact(how, theme.dim)] };
    let inner = frame(buffer, place, title, facts, theme);
    for (y, line) in (inner.y..inner.bottom().saturating_sub(below)).zip(&lines) {
        put(buffer, inner.x + 1, y, inner.width.saturating_sub(1), line, theme.text, theme);
    }
    inner
}
