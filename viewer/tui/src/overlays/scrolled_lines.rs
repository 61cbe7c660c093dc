//! Lines of text over a screen, scrolled to a row.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use crate::context::{Context, HitTarget};
use crate::widgets::pane::{clear, fact, frame, put};

/// The first visible row, and the rows that are out of sight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrolledLines {
    row: usize,
    /// Number of rows that did not fit in the last frame.
    hidden_rows: usize,
}

impl ScrolledLines {
    /// Scrolls; any other key closes the overlay.
    pub fn on_key(&mut self, key: KeyCode) -> Answer {
        const PAGE: usize = 10;
        let row = match key {
            KeyCode::Down | KeyCode::Char('j') => self.row + 1,
            KeyCode::Up | KeyCode::Char('k') => self.row.saturating_sub(1),
            KeyCode::PageDown => self.row + PAGE,
            KeyCode::PageUp => self.row.saturating_sub(PAGE),
            _ => return Answer::Close,
        };
        self.row = row.min(self.hidden_rows);
        Answer::Stay
    }

    /// Scrolls by rows.
    pub fn scroll(&mut self, rows: isize) {
        self.row = self.row.saturating_add_signed(rows).min(self.hidden_rows);
    }

    /// Draws lines made for the width of the frame. Lines that begin a block are bright.
    pub fn draw(
        &mut self,
        buffer: &mut Buffer,
        area: Rect,
        context: &Context,
        title: &str,
        lines: impl FnOnce(usize) -> Vec<String>,
    ) {
        let theme = &context.theme;
        clear(buffer, area, theme);
        context.hit_targets.put(area, HitTarget::Overlay);
        let facts = vec![fact("j k scroll", theme.dim), fact("any other key: back", theme.dim)];
        let inner = frame(buffer, area, title, facts, theme);
        let columns = inner.width.saturating_sub(2);
        let lines = lines(usize::from(columns));
        self.hidden_rows = lines.len().saturating_sub(usize::from(inner.height));
        for (y, line) in (inner.y..inner.bottom()).zip(lines.iter().skip(self.row.min(self.hidden_rows))) {
            let style = if line.starts_with(' ') { theme.text } else { theme.key };
            put(buffer, inner.x + 1, y, columns, line, style, theme);
        }
    }
}
