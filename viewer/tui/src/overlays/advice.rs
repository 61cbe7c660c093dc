//! Advice on the program: computed by a separate thread, and shown when it is ready.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;

use crossterm::event::KeyCode;
use memlab_predict::advice::AdviceReport;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use crate::context::{Context, HitTarget};
use crate::widgets::pane::{clear, fact, frame, put};
use memlab_report::advice;
use memlab_report::report::{advised, tried};

/// Advice on a process, scrolled to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdviceView {
    /// The advice once it is ready, or the reason for its absence.
    result: Arc<OnceLock<Result<AdviceReport, String>>>,
    /// True once the result has been drawn.
    is_shown: bool,
    row: usize,
    /// Number of rows that did not fit in the last frame.
    hidden_rows: usize,
}

impl AdviceView {
    /// Starts to try changes on the run in a trace.
    pub fn open(trace: &Path) -> Self {
        let result = Arc::new(OnceLock::new());
        let (trace, told) = (trace.to_owned(), Arc::clone(&result));
        thread::spawn(move || {
            told.get_or_init(|| advice::of(&trace, None, None).map_err(|error| error.to_string()));
        });
        Self::of(result)
    }

    /// Shows a result, once it is ready.
    pub fn of(result: Arc<OnceLock<Result<AdviceReport, String>>>) -> Self {
        Self { result, is_shown: false, row: 0, hidden_rows: 0 }
    }

    /// True if it must be redrawn because the result is not on the screen yet.
    pub fn is_waiting(&self) -> bool {
        !self.is_shown
    }

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

    /// Draws the overlay over the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let theme = &context.theme;
        clear(buffer, area, theme);
        context.hit_targets.put(area, HitTarget::Overlay);
        let facts = vec![fact("j k scroll", theme.dim), fact("any other key: back", theme.dim)];
        let inner = frame(buffer, area, "Advice", facts, theme);
        let columns = inner.width.saturating_sub(2);
        self.is_shown = self.result.get().is_some();
        let lines = match self.result.get() {
            None => vec!["Trying changes on the recorded run…".to_owned()],
            Some(Err(reason)) => vec![reason.clone()],
            Some(Ok(advices)) => {
                let mut lines = advised(advices, usize::from(columns));
                lines.push(String::new());
                lines.extend(tried(advices, usize::from(columns)));
                lines
            }
        };
        self.hidden_rows = lines.len().saturating_sub(usize::from(inner.height));
        for (y, line) in (inner.y..inner.bottom()).zip(lines.iter().skip(self.row.min(self.hidden_rows))) {
            let style = if line.starts_with(' ') { theme.text } else { theme.key };
            put(buffer, inner.x + 1, y, columns, line, style, theme);
        }
    }
}
