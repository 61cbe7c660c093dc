//! Question about leaving while the program still runs.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use crate::context::Context;
use crate::widgets::pane::{centered, clear, frame, put};
use memlab_follow::request::UiRequest;

const CHOICES: [(&str, &str); 4] = [
    ("d", "detach: close this view; the program continues in this terminal"),
    ("i", "interrupt it, as Ctrl-C does; or press Ctrl-C again"),
    ("t", "ask it to terminate (SIGTERM)"),
    ("Esc", "stay"),
];

/// Handles a key press.
pub fn on_key(key: KeyCode, program_runs: bool) -> Answer {
    match key {
        KeyCode::Char('i') => Answer::Request(UiRequest::Interrupt),
        KeyCode::Char('t') => Answer::Request(UiRequest::Terminate),
        KeyCode::Char('d') => Answer::Request(UiRequest::Detach),
        KeyCode::Char('q') if !program_runs => Answer::Request(UiRequest::Quit),
        KeyCode::Esc | KeyCode::Char('n' | 'q') => Answer::Close,
        _ => Answer::Stay,
    }
}

/// Draws the question.
pub fn draw(buffer: &mut Buffer, area: Rect, context: &Context) {
    let theme = &context.theme;
    let place = centered(area, 74, CHOICES.len() as u16 + 4);
    clear(buffer, place, theme);
    let inner = frame(buffer, place, "The program is still running", Vec::new(), theme);
    for (y, (key, what)) in (inner.y + 1..inner.bottom()).zip(CHOICES) {
        put(buffer, inner.x + 2, y, 4.min(inner.width), key, theme.key, theme);
        put(buffer, inner.x + 7, y, inner.width.saturating_sub(8), what, theme.text, theme);
    }
}
