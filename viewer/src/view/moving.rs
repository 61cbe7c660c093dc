//! The question before a program is offloaded, how far that is, and what went wrong.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::pane::{centered, clear, fact, frame, put, put_spans, wrapped};
use crate::app::{App, Question, Spot};
use crate::format;
use crate::offload::control::OperationKind;
use crate::offload::operation;

const COLUMNS: u16 = 76;

/// Draws the question.
pub fn draw_question(buffer: &mut Buffer, area: Rect, app: &App, question: &Question) {
    let who = &question.order.who;
    let words = if question.order.by_driver {
        format!(
            "checkpoint {who} with the CUDA driver (--full)? all it has on the GPU goes to host memory, the CUDA context \
             too; it waits until you restore it. Started with `memlab run --offload` it would be faster."
        )
    } else {
        let bytes = question.bytes.map(|bytes| format!("{} of ", format::bytes(bytes, app.units))).unwrap_or_default();
        format!("offload {bytes}{who} to host memory? the program waits until you restore it")
    };
    let inner = draw_box(buffer, area, app, "Offload", &words, "", 2);
    let theme = &app.theme;
    let y = inner.bottom().saturating_sub(1);
    let choices = [
        Span::styled("y", theme.key),
        Span::styled(" offload   ", theme.text),
        Span::styled("n", theme.key),
        Span::styled(" leave it", theme.text),
    ];
    put_spans(buffer, inner.x + 1, y, inner.right(), &choices, theme);
}

/// Draws something to be read.
pub fn draw_told(buffer: &mut Buffer, area: Rect, app: &App, words: &str) {
    draw_box(buffer, area, app, "It did not work", words, "any key: back", 0);
}

/// A box with a text, and some rows below it.
fn draw_box(buffer: &mut Buffer, area: Rect, app: &App, title: &str, words: &str, how: &str, below: u16) -> Rect {
    let theme = &app.theme;
    let lines = wrapped(words, usize::from(COLUMNS.min(area.width).saturating_sub(4)));
    let place = centered(area, COLUMNS, lines.len() as u16 + 2 + below);
    clear(buffer, place, theme);
    app.spots.put(place, Spot::Overlay);
    let facts = if how.is_empty() { Vec::new() } else { vec![fact(how, theme.dim)] };
    let inner = frame(buffer, place, title, facts, theme);
    for (y, line) in (inner.y..inner.bottom().saturating_sub(below)).zip(&lines) {
        put(buffer, inner.x + 1, y, inner.width.saturating_sub(1), line, theme.text, theme);
    }
    inner
}

/// What stands in the last line while memory moves.
pub fn progress(app: &App, columns: u16) -> Option<String> {
    let process = app.moved_process()?;
    let about = app.whereabouts(process).filter(|about| about.is_busy())?;
    let what = match about.by_driver {
        Some(OperationKind::Restore) => {
            return Some("the CUDA driver brings the memory back to the device…".to_owned());
        }
        Some(_) => return Some("the CUDA driver moves the memory to the host…".to_owned()),
        None => about.moving.as_ref()?,
    };
    let bar = usize::from(columns.saturating_sub(60)).clamp(8, 40);
    let running = what.operation.as_ref().filter(|operation| !operation.phase.is_over())?;
    Some(operation::progress(running, bar, app.theme.glyphs.unicode))
}
