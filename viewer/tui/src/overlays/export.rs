//! Menu for writing the screen to a file.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use crate::context::{Context, HitTarget};
use crate::widgets::pane::{centered, clear, fact, frame, put};
use memlab_follow::request::{ExportKind, UiRequest};

/// Menu of formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportMenu {
    /// True if the screen is a table.
    pub has_rows: bool,
}

/// Handles a key press.
pub fn on_key(key: KeyCode) -> Answer {
    match key {
        KeyCode::Char('c') => Answer::Request(UiRequest::Export(ExportKind::Csv)),
        KeyCode::Char('j') => Answer::Request(UiRequest::Export(ExportKind::Json)),
        KeyCode::Char('s') => Answer::Request(UiRequest::Export(ExportKind::Svg)),
        _ => Answer::Close,
    }
}

impl ExportMenu {
    /// Draws the menu.
    pub fn draw(&self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let theme = &context.theme;
        let mut choices = Vec::new();
        if self.has_rows {
            choices.push(("c", "the rows as CSV"));
            choices.push(("j", "the rows as JSON"));
        }
        choices.push(("s", "the screen as an SVG picture"));
        let place = centered(area, 48, choices.len() as u16 + 2);
        clear(buffer, place, theme);
        context.hit_targets.put(place, HitTarget::Overlay);
        let inner = frame(buffer, place, "Write to a file", vec![fact("Esc: back", theme.dim)], theme);
        for (y, (key, what)) in (inner.y..inner.bottom()).zip(choices) {
            put(buffer, inner.x + 1, y, 2, key, theme.key, theme);
            put(buffer, inner.x + 4, y, inner.width.saturating_sub(4), what, theme.text, theme);
        }
    }
}
