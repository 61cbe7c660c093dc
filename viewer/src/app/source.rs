//! The source around a line, over the screen.

use std::sync::Arc;

use crossterm::event::KeyCode;
use memlab_trace::Line;

use super::{App, Overlay, Request};
use crate::source_file::{self, Source};

/// The source around a line, over the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceView {
    /// The line it was opened at.
    pub line: Arc<Line>,
    /// The number of the first line shown; `None`: so that the line is in the middle.
    pub top: Option<u32>,
    /// The file, or why there is nothing to show.
    pub source: Result<Source, String>,
}

impl App {
    /// Reads the file that a line is of, and lays it over the screen.
    pub(super) fn open_source(&mut self, line: Arc<Line>) {
        let Some(process) = self.process() else { return };
        let source = source_file::open(&line.file, &process.sources, process.header.start_unix_ns);
        self.overlay = Some(Overlay::Source(SourceView { source, line, top: None }));
    }

    /// What the trace has of the text of a line.
    pub fn recorded_text(&self, line: &Line) -> Option<&Arc<str>> {
        self.process()?.sources.line(&line.file, line.line?)
    }

    pub(super) fn on_source_key(&mut self, key: KeyCode) -> Option<Request> {
        let Some(Overlay::Source(source)) = &mut self.overlay else { return None };
        let top = source.top.unwrap_or_else(|| source.line.line.unwrap_or(1).saturating_sub(10).max(1));
        let top = match key {
            KeyCode::Down | KeyCode::Char('j') => top.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => top.saturating_sub(1),
            KeyCode::PageDown => top.saturating_add(20),
            KeyCode::PageUp => top.saturating_sub(20),
            _ => {
                self.overlay = None;
                return None;
            }
        };
        source.top = Some(top.max(1));
        None
    }
}
