//! The keys, over the screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::pane::{centered, clear, fact, frame, put};
use crate::app::App;

const KEYS: [(&str, &str); 17] = [
    ("Tab, 1 2 3 4", "next screen, that screen"),
    ("j k, arrows, PgUp PgDn, g G", "move in the table"),
    ("h l", "overview: lines or layers"),
    ("Enter", "overview: open that table"),
    ("space", "pause the display; the program goes on"),
    ("p", "now, or the moment of the peak"),
    ("w", "chart: whole run, 5 min, 1 min, 10 s"),
    ("s  S", "sort by the next column, invert"),
    ("/", "show only what contains a text; Esc: all"),
    ("u", "units: fitting, MiB, GiB, bytes"),
    ("d  D", "next, previous device or rank"),
    ("T", "theme: dark, light, high contrast, none"),
    ("Ctrl-C", "interrupt the program (asks first)"),
    ("q", "leave"),
    ("", ""),
    ("allocated (alloc)", "handed out by PyTorch's caching allocator"),
    ("reserved (resv), used", "held by it; the whole device's use"),
];

/// Draws them.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let warnings = app.process().map(|process| process.warnings.as_slice()).unwrap_or_default();
    let rows = KEYS.len() + if warnings.is_empty() { 0 } else { warnings.len().min(4) + 1 };
    let place = centered(area, 76, rows as u16 + 2);
    clear(buffer, place, theme);
    let inner = frame(buffer, place, "Keys", vec![fact("any key: back", theme.dim)], theme);
    let mut y = inner.y;
    for (key, what) in KEYS {
        if y >= inner.bottom() {
            return;
        }
        put(buffer, inner.x + 1, y, 28.min(inner.width.saturating_sub(1)), key, theme.key, theme);
        put(buffer, inner.x + 30, y, inner.width.saturating_sub(30), what, theme.text, theme);
        y += 1;
    }
    y += 1;
    for warning in warnings.iter().rev().take(4) {
        if y >= inner.bottom() {
            return;
        }
        put(buffer, inner.x + 1, y, inner.width.saturating_sub(2), warning, theme.warn, theme);
        y += 1;
    }
}
