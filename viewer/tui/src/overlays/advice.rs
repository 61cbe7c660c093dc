//! What to change in the program: tried by a thread of its own, and shown when it is done.

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
    /// What came of it, once it is there; or why there is nothing to say.
    result: Arc<OnceLock<Result<AdviceReport, String>>>,
    /// Whether that was drawn.
    is_shown: bool,
    row: usize,
    /// How many rows did not fit when it was drawn last.
    hidden_rows: usize,
}

impl AdviceView {
    /// Begins to try changes on the run in a trace.
    pub fn open(trace: &Path) -> Self {
        let result = Arc::new(OnceLock::new());
        let (trace, told) = (trace.to_owned(), Arc::clone(&result));
        thread::spawn(move || {
            told.get_or_init(|| advice::of(&trace, None, None).map_err(|error| error.to_string()));
        });
        Self::of(result)
    }

    /// Shows what is, or will be, there.
    pub fn of(result: Arc<OnceLock<Result<AdviceReport, String>>>) -> Self {
        Self { result, is_shown: false, row: 0, hidden_rows: 0 }
    }

    /// Whether it has to be drawn again: what came of it is not on the screen yet.
    pub fn is_waiting(&self) -> bool {
        !self.is_shown
    }

    /// Scrolls; any other key closes it.
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

    /// Scrolls by some rows.
    pub fn scroll(&mut self, rows: isize) {
        self.row = self.row.saturating_add_signed(rows).min(self.hidden_rows);
    }

    /// Draws it over the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let theme = &context.theme;
        clear(buffer, area, theme);
        context.hit_targets.put(area, HitTarget::Overlay);
        let facts = vec![fact("j k scroll", theme.dim), fact("any other key: back", theme.dim)];
        let inner = frame(buffer, area, "Advice", facts, theme);
        let columns = inner.width.saturating_sub(2);
        self.is_shown = self.result.get().is_some();
        let lines = match self.result.get() {
            None => vec!["Trying changes on what was recorded …".to_owned()],
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
