//! The findings on a process in full: the verdict, and for each the memory, its holders and the cure.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use super::scrolled_lines::{ScrolledLine, ScrolledLines, ScrolledText};
use crate::context::Context;
use crate::widgets::pane::wrapped;
use memlab_base::findings::Finding;
use memlab_base::text::{self, clean};
use memlab_base::theme::Theme;

/// The findings on the process of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FindingsView {
    /// Visible part, and the finding under the cursor.
    pub(super) scrolled: ScrolledLines,
}

impl FindingsView {
    /// Handles a key press.
    pub fn on_key(&mut self, key: KeyCode) -> Answer {
        match key {
            KeyCode::Enter => Answer::GoToFinding(self.scrolled.item()),
            key => self.scrolled.on_key(key),
        }
    }

    /// Draws the overlay over the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let theme = &context.theme;
        let Some(process) = context.process() else { return };
        self.scrolled.draw(buffer, area, context, |columns| {
            let verdict = process.verdict.as_ref().map_or_else(String::new, |verdict| verdict.text());
            let mut lines: Vec<_> = ScrolledLine::plain(wrapped(&verdict, columns), theme.title).collect();
            for (index, finding) in process.findings.iter().enumerate() {
                lines.extend(ScrolledLine::plain(vec![String::new()], theme.text));
                lines.extend(of_finding(index, finding, columns, theme));
            }
            let keys = match (process.findings.is_empty(), theme.glyphs.unicode) {
                (true, _) => "",
                (false, true) => "⏎ its line and moment",
                (false, false) => "Enter: its line and moment",
            };
            ScrolledText { title: "Findings".to_owned(), keys, lines }
        });
    }
}

fn of_finding(index: usize, finding: &Finding, columns: usize, theme: &Theme) -> Vec<ScrolledLine> {
    let arrow = if theme.glyphs.unicode { "→" } else { "->" };
    let item = |mark: &str, words: &str, style| {
        ScrolledLine::of_item(index, text::wrapped(mark, &clean(words), columns), style)
    };
    let mut lines: Vec<_> = item("!", &finding.what.text(), theme.warn).collect();
    lines.extend(item(&format!("  {arrow}"), &finding.next, theme.text));
    // The sentence names the first one.
    for holder in finding.holders.iter().skip(1) {
        lines.extend(item("  also kept by", &holder.what.text(), theme.dim));
        lines.extend(item(&format!("    {arrow}"), &holder.cure, theme.text));
    }
    lines
}
