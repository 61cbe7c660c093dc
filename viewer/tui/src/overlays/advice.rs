//! Advice on the program: computed by a separate thread, and shown when it is ready.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;

use crossterm::event::KeyCode;
use memlab_predict::advice::{AdviceReport, Kind};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use super::scrolled_lines::{ScrolledLine, ScrolledLines, ScrolledText};
use crate::context::Context;
use crate::widgets::pane::wrapped;
use memlab_base::text;
use memlab_base::theme::Theme;
use memlab_report::advice;
use memlab_report::report::{AdvicePart, advised, tried};

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

    /// Handles a key press. `y` copies the code of the change under the cursor.
    pub fn on_key(&mut self, key: KeyCode) -> Answer {
        let advice = self.result.get().and_then(|result| result.as_ref().ok());
        match (key, advice.and_then(|advices| advices.advice.get(self.scrolled.item()))) {
            (KeyCode::Char('y'), Some(advice)) if advice.kind != Kind::Leak => Answer::Copy(advice.how.clone()),
            // The cure of a leak is a sentence.
            (KeyCode::Char('y'), Some(_)) => Answer::Stay,
            (key, _) => self.scrolled.on_key(key),
        }
    }

    /// True if it must be redrawn because the result is not on the screen yet.
    pub fn is_waiting(&self) -> bool {
        !self.is_shown
    }

    /// Draws the overlay over the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let result = self.result.get();
        let theme = &context.theme;
        self.is_shown = result.is_some();
        self.scrolled.draw(buffer, area, context, |columns| {
            let plain = |words: &str| ScrolledLine::plain(wrapped(words, columns), theme.text).collect();
            let (keys, lines) = match result {
                None => ("", plain("Trying changes on the recorded run…")),
                Some(Err(reason)) => ("", plain(reason)),
                Some(Ok(advices)) => {
                    let keys = if advices.advice.is_empty() { "" } else { "y copies the code" };
                    (keys, advice_lines(advices, columns, theme))
                }
            };
            ScrolledText { title: "Advice".to_owned(), keys, lines }
        });
    }
}

fn advice_lines(advices: &AdviceReport, columns: usize, theme: &Theme) -> Vec<ScrolledLine> {
    let mut lines = advised(advices, columns);
    lines.push((AdvicePart::Note, String::new()));
    lines.extend(tried(advices, columns));
    let mut item = None;
    let of_line = |(part, words): (AdvicePart, String)| {
        let style = match part {
            AdvicePart::Title => theme.title,
            AdvicePart::Change(_) => theme.key,
            AdvicePart::Reason => theme.dim,
            AdvicePart::Code => theme.accent,
            AdvicePart::Note => theme.text,
        };
        item = match part {
            AdvicePart::Change(index) => Some(index),
            AdvicePart::Reason | AdvicePart::Code => item,
            AdvicePart::Title | AdvicePart::Note => None,
        };
        let item = item;
        let words = if part == AdvicePart::Code { code(&words, columns) } else { vec![words] };
        words.into_iter().map(move |words| ScrolledLine { words, style, item })
    };
    lines.into_iter().flat_map(of_line).collect()
}

/// A line of code on rows of at most `columns`. Later rows are indented further.
fn code(line: &str, columns: usize) -> Vec<String> {
    if text::width(line) <= columns {
        return vec![line.to_owned()];
    }
    let indent = line.len() - line.trim_start().len();
    let (first, later) = (" ".repeat(indent.saturating_sub(1)), " ".repeat(indent + 4));
    text::filled(vec![first], line.trim_start(), &later, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_code_is_wrapped_between_words() {
        let line = "        register(lambda optimizer, *_: optimizer.zero_grad(set_to_none=True))";
        let rows = code(line, 50);
        assert!(rows.iter().all(|row| text::width(row) <= 50), "{rows:?}");
        assert_eq!(
            rows,
            ["        register(lambda optimizer, *_:", "            optimizer.zero_grad(set_to_none=True))"]
        );
        assert_eq!(code("       import torch", 50), ["       import torch"]);
    }
}
