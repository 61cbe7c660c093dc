//! All overlays.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::advice::AdviceView;
use super::answer::Answer;
use super::export::ExportMenu;
use super::help::Help;
use super::offload::OffloadQuestion;
use super::source::SourceView;
use super::{leave, message};
use crate::context::Context;

/// What is drawn over the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlay {
    /// The keys.
    Help(Help),
    /// How to leave while the program still runs.
    Leave,
    /// What of the screen to write to a file.
    Export(ExportMenu),
    /// The source around a line.
    Source(SourceView),
    /// Whether to offload a program.
    Offload(OffloadQuestion),
    /// What to change in the program.
    Advice(AdviceView),
    /// What went wrong, in full.
    Message(String),
}

impl Overlay {
    /// A key was pressed.
    pub fn on_key(&mut self, key: KeyCode, program_runs: bool) -> Answer {
        match self {
            Self::Help(help) => help.on_key(key),
            Self::Leave => leave::on_key(key, program_runs),
            Self::Export(_) => super::export::on_key(key),
            Self::Source(source) => source.on_key(key),
            Self::Offload(question) => question.on_key(key),
            Self::Advice(view) => view.on_key(key),
            Self::Message(_) => Answer::Close,
        }
    }

    /// The wheel was turned.
    pub fn scroll(&mut self, rows: isize) {
        match self {
            Self::Help(help) => help.scroll(rows),
            Self::Advice(view) => view.scroll(rows),
            _ => {}
        }
    }

    /// Whether a click beside it closes it: it asks nothing.
    pub fn closes_on_click(&self) -> bool {
        !matches!(self, Self::Leave | Self::Offload(_))
    }

    /// Draws it over `area`, or, if it belongs to a screen, over its `body`.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, body: Rect, context: &Context) {
        match self {
            Self::Help(help) => help.draw(buffer, area, context),
            Self::Leave => leave::draw(buffer, area, context),
            Self::Export(menu) => menu.draw(buffer, area, context),
            Self::Source(source) => source.draw(buffer, body, context),
            Self::Offload(question) => question.draw(buffer, area, context),
            Self::Advice(view) => view.draw(buffer, body, context),
            Self::Message(words) => message::draw(buffer, area, context, words),
        }
    }
}
