//! The findings on a process in full: the verdict, and for each the memory, its holders and the cure.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::scrolled_lines::ScrolledLines;
use crate::context::Context;
use crate::widgets::pane::wrapped;
use memlab_base::findings::Finding;
use memlab_base::text::{self, clean};

/// The findings on the process of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FindingsView {
    /// Visible part.
    pub(super) scrolled: ScrolledLines,
}

impl FindingsView {
    /// Draws the overlay over the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        self.scrolled.draw(buffer, area, context, "Findings", |columns| {
            let Some(process) = context.process() else { return Vec::new() };
            let verdict =
                process.verdict.as_ref().map_or_else(String::new, |verdict| clean(&verdict.text()).into_owned());
            let mut lines = wrapped(&verdict, columns);
            for finding in &process.findings {
                lines.push(String::new());
                lines.extend(of_finding(finding, columns));
            }
            lines
        });
    }
}

fn of_finding(finding: &Finding, columns: usize) -> Vec<String> {
    let mut lines = text::wrapped("!", &clean(&finding.what.text()), columns);
    lines.extend(text::wrapped("  →", &clean(&finding.next), columns));
    // The sentence names the first one.
    for holder in finding.holders.iter().skip(1) {
        lines.extend(text::wrapped("  also kept by", &clean(&holder.what.text()), columns));
        lines.extend(text::wrapped("    →", &clean(&holder.cure), columns));
    }
    lines
}
