//! The source around a line, with the memory of each line in the margin.

use std::collections::HashMap;
use std::sync::Arc;

use crossterm::event::KeyCode;
use memlab_trace::Line;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::answer::Answer;
use crate::context::{Context, HitTarget, ShownMoment};
use crate::widgets::pane::{clear, fact, frame, put, put_right};
use memlab_base::source_file::{self, Source, SourceLine};
use memlab_base::text::place;
use memlab_follow::snapshot::{LineFigures, ProcessSnapshot};

/// The source around a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceView {
    /// The line at which it was opened.
    pub line: Arc<Line>,
    /// Number of the first visible line; `None`: the opened line is in the middle.
    pub top: Option<u32>,
    /// The file, or the reason why nothing can be shown.
    pub source: Result<Source, String>,
}

impl SourceView {
    /// Reads the file of a line.
    pub fn open(line: Arc<Line>, process: &ProcessSnapshot) -> Self {
        let source = source_file::open(&line.file, &process.sources, process.header.start_unix_ns);
        Self { line, top: None, source }
    }

    /// Scrolls; any other key closes the overlay.
    pub fn on_key(&mut self, key: KeyCode) -> Answer {
        let top = self.top.unwrap_or_else(|| self.line.line.unwrap_or(1).saturating_sub(10).max(1));
        let top = match key {
            KeyCode::Down | KeyCode::Char('j') => top.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => top.saturating_sub(1),
            KeyCode::PageDown => top.saturating_add(20),
            KeyCode::PageUp => top.saturating_sub(20),
            _ => return Answer::Close,
        };
        self.top = Some(top.max(1));
        Answer::Stay
    }

    /// Draws the overlay over the screen.
    pub fn draw(&self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let theme = &context.theme;
        let margin = if area.width > 60 { 3 } else { 0 };
        let outer = Rect { x: area.x + margin, width: area.width - 2 * margin, ..area };
        clear(buffer, outer, theme);
        context.hit_targets.put(outer, HitTarget::Overlay);
        let facts = vec![fact("j k scroll", theme.dim), fact("any other key: back", theme.dim)];
        let inner = frame(buffer, outer, &place(&self.line, ""), facts, theme);
        if inner.height == 0 || inner.width < 30 {
            return;
        }
        let source = match &self.source {
            Ok(source) => source,
            Err(reason) => {
                let words = format!("{}: {reason}", self.line.file);
                put(buffer, inner.x + 1, inner.y, inner.width - 2, &words, theme.warn, theme);
                return;
            }
        };
        let warning_rows = u16::from(source.warning.is_some());
        if let Some(warning) = &source.warning {
            put(buffer, inner.x + 1, inner.y, inner.width - 2, warning, theme.warn, theme);
        }
        let inner = Rect { y: inner.y + warning_rows, height: inner.height - warning_rows, ..inner };
        draw_lines(buffer, inner, context, self, &source.lines);
    }
}

fn draw_lines(buffer: &mut Buffer, area: Rect, context: &Context, view: &SourceView, lines: &[SourceLine]) {
    const BYTES: u16 = 11;
    const NUMBER: u16 = 6;
    let theme = &context.theme;
    let rows = usize::from(area.height);
    let wanted = view.line.line.unwrap_or(1);
    let place_of = |number: u32| lines.partition_point(|line| line.number < number);
    let first = view.top.map_or_else(|| place_of(wanted).saturating_sub(rows.saturating_sub(1) / 2), place_of);
    let first = first.min(lines.len().saturating_sub(rows));
    let held = held(context, &view.line);
    for (y, line) in (area.y..area.bottom()).zip(&lines[first..]) {
        if let Some(bytes) = held.get(&line.number).filter(|bytes| **bytes > 0) {
            put_right(buffer, area.x + BYTES, y, BYTES, &context.size(*bytes), theme.accent, theme);
        }
        let x = area.x + BYTES;
        put_right(buffer, x + NUMBER, y, NUMBER, &line.number.to_string(), theme.dim, theme);
        let x = x + NUMBER + 2;
        // Lines that may differ from the code that ran are dim.
        let style = if line.is_sure { theme.text } else { theme.dim };
        put(buffer, x, y, area.right().saturating_sub(x), &line.text.replace('\t', "    "), style, theme);
        if line.number == wanted {
            buffer.set_style(Rect { y, height: 1, ..area }, theme.selected);
        }
    }
}

/// Memory of the lines of the same file at the displayed moment.
fn held(context: &Context, line: &Line) -> HashMap<u32, u64> {
    let mut held = HashMap::new();
    for LineFigures { own, inclusive, .. } in context.device().map_or(&[][..], |device| &device.lines) {
        let Some(number) = own.line.as_ref().filter(|other| other.file == line.file).and_then(|line| line.line) else {
            continue;
        };
        let of = |live, at_peak| if context.moment == ShownMoment::Peak { at_peak } else { live };
        let bytes = match inclusive.filter(|_| context.inclusive) {
            Some(inclusive) => of(inclusive.live_bytes, inclusive.live_bytes_at_peak),
            None => of(own.live_bytes, own.live_bytes_at_peak),
        };
        let sum: &mut u64 = held.entry(number).or_default();
        *sum = sum.saturating_add(bytes);
    }
    held
}
