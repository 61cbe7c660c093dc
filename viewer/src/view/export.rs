//! What `e` offers, over the screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::pane::{centered, clear, fact, frame, put};
use crate::app::{App, Screen, Spot};

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let mut choices = Vec::new();
    // The overview and the output are pictures, not tables.
    if !matches!(app.screen, Screen::Overview | Screen::Output) {
        choices.push(("c", "the rows as CSV"));
        choices.push(("j", "the rows as JSON"));
    }
    choices.push(("s", "the screen as an SVG picture"));
    let place = centered(area, 48, choices.len() as u16 + 2);
    clear(buffer, place, theme);
    app.spots.put(place, Spot::Overlay);
    let inner = frame(buffer, place, "Write to a file", vec![fact("Esc: back", theme.dim)], theme);
    for (y, (key, what)) in (inner.y..inner.bottom()).zip(choices) {
        put(buffer, inner.x + 1, y, 2, key, theme.key, theme);
        put(buffer, inner.x + 4, y, inner.width.saturating_sub(4), what, theme.text, theme);
    }
}
