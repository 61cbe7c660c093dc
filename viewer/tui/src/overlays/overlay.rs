//! All overlays.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::advice::AdviceView;
use super::answer::Answer;
use super::export::ExportMenu;
use super::findings::FindingsView;
use super::help::Help;
use super::holders::HoldersView;
use super::offload::OffloadQuestion;
use super::source::SourceView;
use super::{leave, message};
use crate::context::Context;

/// An overlay over the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlay {
    /// The keys.
    Help(Help),
    /// Question about leaving while the program still runs.
    Leave,
    /// Menu for writing the screen to a file.
    Export(ExportMenu),
    /// The source around a line.
    Source(SourceView),
    /// Question before offloading a program.
    Offload(OffloadQuestion),
    /// The findings in full.
    Findings(FindingsView),
    /// Advice on the program.
    Advice(AdviceView),
    /// Holders of the memory of a line or layer.
    Holders(HoldersView),
    /// An error in full.
    Message(String),
}

impl Overlay {
    /// Handles a key press.
    pub fn on_key(&mut self, key: KeyCode, program_runs: bool) -> Answer {
        match self {
            Self::Help(help) => help.on_key(key),
            Self::Leave => leave::on_key(key, program_runs),
            Self::Export(_) => super::export::on_key(key),
            Self::Source(source) => source.on_key(key),
            Self::Offload(question) => question.on_key(key),
            Self::Findings(view) => view.on_key(key),
            Self::Advice(view) => view.on_key(key),
            Self::Holders(view) => view.scrolled.on_key(key),
            Self::Message(_) => Answer::Close,
        }
    }

    /// Handles a turn of the wheel.
    pub fn scroll(&mut self, rows: isize) {
        match self {
            Self::Help(help) => help.scroll(rows),
            Self::Findings(view) => view.scrolled.scroll(rows),
            Self::Advice(view) => view.scrolled.scroll(rows),
            Self::Holders(view) => view.scrolled.scroll(rows),
            _ => {}
        }
    }

    /// True if it waits for its content, and must be redrawn until that is on the screen.
    pub fn is_waiting(&self) -> bool {
        match self {
            Self::Advice(view) => view.is_waiting(),
            Self::Holders(view) => view.is_waiting(),
            _ => false,
        }
    }

    /// True if a click beside it closes it, because it asks nothing.
    pub fn closes_on_click(&self) -> bool {
        !matches!(self, Self::Leave | Self::Offload(_))
    }

    /// Draws it over `area`, or over `body` if it belongs to a screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, body: Rect, context: &Context) {
        match self {
            Self::Help(help) => help.draw(buffer, area, context),
            Self::Leave => leave::draw(buffer, area, context),
            Self::Export(menu) => menu.draw(buffer, area, context),
            Self::Source(source) => source.draw(buffer, body, context),
            Self::Offload(question) => question.draw(buffer, area, context),
            Self::Findings(view) => view.draw(buffer, body, context),
            Self::Advice(view) => view.draw(buffer, body, context),
            Self::Holders(view) => view.draw(buffer, body, context),
            Self::Message(words) => message::draw(buffer, area, context, words),
        }
    }
}
