//! Advice on the program: computed by a separate thread, and shown when it is ready.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;

use memlab_predict::advice::AdviceReport;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::scrolled_lines::ScrolledLines;
use crate::context::Context;
use memlab_report::advice;
use memlab_report::report::{advised, tried};

/// Advice on a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdviceView {
    /// The advice once it is ready, or the reason for its absence.
    result: Arc<OnceLock<Result<AdviceReport, String>>>,
    /// True once the result has been drawn.
    is_shown: bool,
    /// Visible part.
    pub(super) scrolled: ScrolledLines,
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
        Self { result, is_shown: false, scrolled: ScrolledLines::default() }
    }

    /// True if it must be redrawn because the result is not on the screen yet.
    pub fn is_waiting(&self) -> bool {
        !self.is_shown
    }

    /// Draws the overlay over the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let result = self.result.get();
        self.is_shown = result.is_some();
        self.scrolled.draw(buffer, area, context, "Advice", |columns| match result {
            None => vec!["Trying changes on the recorded run…".to_owned()],
            Some(Err(reason)) => vec![reason.clone()],
            Some(Ok(advices)) => {
                let mut lines = advised(advices, columns);
                lines.push(String::new());
                lines.extend(tried(advices, columns));
                lines
            }
        });
    }
}
