//! Question before offloading a program, with the consequences.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::answer::Answer;
use super::message::draw_box;
use crate::context::Context;
use crate::widgets::pane::put_spans;
use memlab_follow::offload::mover::MoveOrder;
use memlab_follow::request::UiRequest;

/// Question before offloading a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadQuestion {
    /// Order to carry out after `y`.
    pub order: MoveOrder,
    /// Bytes to move; `None`: not known.
    pub bytes: Option<u64>,
}

impl OffloadQuestion {
    /// Handles a key press.
    pub fn on_key(&mut self, key: KeyCode) -> Answer {
        match key {
            KeyCode::Char('y') => Answer::Request(UiRequest::Move(self.order.clone())),
            KeyCode::Char('n' | 'q' | 'o') | KeyCode::Esc => Answer::Close,
            _ => Answer::Stay,
        }
    }

    /// Draws the question.
    pub fn draw(&self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let who = &self.order.who;
        let words = if self.order.by_driver {
            format!(
                "checkpoint {who} with the CUDA driver (--full)? all its GPU memory moves to the host, with the CUDA context; \
                 it waits until you restore it. Programs started with `memlab run --offload` move faster."
            )
        } else {
            let bytes = self.bytes.map(|bytes| format!("{} of ", context.size(bytes))).unwrap_or_default();
            format!("offload {bytes}{who} to host memory? the program waits until you restore it")
        };
        let inner = draw_box(buffer, area, context, "Offload", &words, "", 2);
        let theme = &context.theme;
        let y = inner.bottom().saturating_sub(1);
        let choices = [
            Span::styled("y", theme.key),
            Span::styled(" offload   ", theme.text),
            Span::styled("n", theme.key),
            Span::styled(" cancel", theme.text),
        ];
        put_spans(buffer, inner.x + 1, y, inner.right(), &choices, theme);
    }
}
