//! The question what is to become of a program that still runs.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::pane::{centered, clear, frame, put};
use crate::app::App;

const CHOICES: [(&str, &str); 4] = [
    ("d", "detach: leave this view, the program goes on in this terminal"),
    ("i", "interrupt it, as Ctrl-C does (Ctrl-C again does the same)"),
    ("t", "ask it to terminate (SIGTERM)"),
    ("Esc", "stay"),
];

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let place = centered(area, 74, CHOICES.len() as u16 + 4);
    clear(buffer, place, theme);
    let inner = frame(buffer, place, "The program is still running", Vec::new(), theme);
    for (y, (key, what)) in (inner.y + 1..inner.bottom()).zip(CHOICES) {
        put(buffer, inner.x + 2, y, 4.min(inner.width), key, theme.key, theme);
        put(buffer, inner.x + 7, y, inner.width.saturating_sub(8), what, theme.text, theme);
    }
}
