//! Lines of text over a screen, scrolled to a row, and the item under the cursor if the lines are a list.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::answer::Answer;
use crate::context::{Context, HitTarget};
use crate::widgets::pane::{clear, fact, frame, put};
use memlab_base::theme::Theme;

/// A line over a screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrolledLine {
    pub words: String,
    pub style: Style,
    /// Index of the item that the line belongs to; `None`: to none.
    pub item: Option<usize>,
}

impl ScrolledLine {
    /// Lines of no item.
    pub fn plain(words: Vec<String>, style: Style) -> impl Iterator<Item = Self> {
        words.into_iter().map(move |words| Self { words, style, item: None })
    }

    /// Lines of an item.
    pub fn of_item(item: usize, words: Vec<String>, style: Style) -> impl Iterator<Item = Self> {
        words.into_iter().map(move |words| Self { words, style, item: Some(item) })
    }
}

/// Title, keys and lines of a frame.
pub struct ScrolledText {
    pub title: String,
    /// Keys beside those that scroll: `⏎ goes there`.
    pub keys: &'static str,
    pub lines: Vec<ScrolledLine>,
}

/// The first visible row, the item under the cursor, and the rows that are out of sight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrolledLines {
    row: usize,
    /// Number of rows that did not fit in the last frame.
    hidden_rows: usize,
    /// Number of rows on the screen in the last frame.
    page: usize,
    /// The item under the cursor.
    item: usize,
    /// First and last row of each item in the last frame.
    items: Vec<(usize, usize)>,
}

impl ScrolledLines {
    /// Index of the item under the cursor.
    pub fn item(&self) -> usize {
        self.item
    }

    /// Scrolls, or moves the cursor to the next item; any other key closes the overlay.
    pub fn on_key(&mut self, key: KeyCode) -> Answer {
        match key {
            KeyCode::Down | KeyCode::Char('j') => self.turn(1),
            KeyCode::Up | KeyCode::Char('k') => self.turn(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll(self.page as isize),
            KeyCode::PageUp => self.scroll(-(self.page as isize)),
            KeyCode::Home | KeyCode::Char('g') => self.turn(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.turn(isize::MAX),
            _ => return Answer::Close,
        }
        Answer::Stay
    }

    /// Scrolls by rows.
    pub fn scroll(&mut self, rows: isize) {
        self.row = self.row.saturating_add_signed(rows).min(self.hidden_rows);
        // The cursor stays in sight.
        let is_seen = |(first, _): &(usize, usize)| *first >= self.row && *first < self.row + self.page;
        if self.items.get(self.item).is_none_or(|item| !is_seen(item))
            && let Some(item) = self.items.iter().position(is_seen)
        {
            self.item = item;
        }
    }

    /// Moves the cursor to the next or previous item, and scrolls to it. An item taller than the page scrolls first;
    /// beyond the first and the last item, and without items, rows scroll.
    fn turn(&mut self, by: isize) {
        let Some((first, end)) = self.items.get(self.item).copied() else { return self.scroll(by) };
        let last = self.items.len() - 1;
        match by {
            isize::MIN => (self.item, self.row) = (0, 0),
            isize::MAX => (self.item, self.row) = (last, self.hidden_rows),
            1.. if end >= self.row + self.page || self.item == last => self.row = (self.row + 1).min(self.hidden_rows),
            ..=-1 if first < self.row || self.item == 0 => self.row = self.row.saturating_sub(1),
            _ => {
                self.item = self.item.saturating_add_signed(by).min(last);
                let (first, end) = self.items[self.item];
                self.row = self.row.max((end + 1).saturating_sub(self.page)).min(first).min(self.hidden_rows);
            }
        }
    }

    /// Draws lines made for the width of the frame, and a mark beside the item under the cursor.
    pub fn draw(
        &mut self,
        buffer: &mut Buffer,
        area: Rect,
        context: &Context,
        text: impl FnOnce(usize) -> ScrolledText,
    ) {
        let theme = &context.theme;
        clear(buffer, area, theme);
        context.hit_targets.put(area, HitTarget::Overlay);
        let columns = usize::from(area.width).saturating_sub(5);
        let ScrolledText { title, keys, lines } = text(columns);
        let mut facts = vec![fact("j k scroll", theme.dim), fact("any other key: back", theme.dim)];
        if !keys.is_empty() {
            facts.insert(0, fact(keys, theme.key));
        }
        let inner = frame(buffer, area, &title, facts, theme);
        self.page = usize::from(inner.height);
        self.hidden_rows = lines.len().saturating_sub(self.page);
        self.row = self.row.min(self.hidden_rows);
        self.items = spans(&lines);
        for (y, line) in (inner.y..inner.bottom()).zip(lines.iter().skip(self.row)) {
            if line.item == Some(self.item) && self.items.len() > 1 {
                put(buffer, inner.x, y, 1, cursor(theme), theme.accent, theme);
            }
            put(buffer, inner.x + 2, y, inner.width.saturating_sub(3), &line.words, line.style, theme);
        }
    }
}

fn cursor(theme: &Theme) -> &'static str {
    if theme.glyphs.unicode { "▌" } else { "|" }
}

/// First and last row of each item.
fn spans(lines: &[ScrolledLine]) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (row, line) in lines.iter().enumerate() {
        let Some(item) = line.item else { continue };
        match spans.get_mut(item) {
            Some(span) => span.1 = row,
            None => spans.push((row, row)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: usize, rows: usize, page: usize) -> ScrolledLines {
        let spans = (0..items).map(|item| (1 + item * rows, item * rows + rows)).collect();
        ScrolledLines { hidden_rows: (1 + items * rows).saturating_sub(page), page, items: spans, ..Default::default() }
    }

    #[test]
    fn the_item_under_the_cursor_is_on_the_screen() {
        // GIVEN five items of four rows below a title, on a page of ten rows
        let mut lines = list(5, 4, 10);
        let mut seen = Vec::new();
        // WHEN the cursor moves down to the end, and up again
        for key in std::iter::repeat_n('j', 7).chain(std::iter::repeat_n('k', 12)) {
            lines.on_key(KeyCode::Char(key));
            let (first, last) = lines.items[lines.item];
            assert!(lines.row <= first && last < lines.row + lines.page, "{lines:?}");
            seen.push(lines.item);
        }
        // THEN it visits each, and ends at the top with the title in sight
        seen.dedup();
        assert_eq!((seen, lines.row), (vec![1, 2, 3, 4, 3, 2, 1, 0], 0));
    }

    #[test]
    fn an_item_taller_than_the_page_is_read_to_its_end() {
        // GIVEN two items of twenty rows on a page of eight
        let mut lines = list(2, 20, 8);
        let rows: Vec<_> = (0..40).map(|_| (lines.on_key(KeyCode::Char('j')), lines.row, lines.item).1).collect();
        // THEN every row comes into sight, one after the other
        assert!(rows.windows(2).all(|pair| pair[1] <= pair[0] + 8) && rows.contains(&13), "{rows:?}");
        assert_eq!((lines.row, lines.item), (lines.hidden_rows, 1));
        lines.on_key(KeyCode::Char('g'));
        assert_eq!((lines.row, lines.item), (0, 0));
        lines.on_key(KeyCode::Char('G'));
        assert_eq!((lines.row, lines.item), (lines.hidden_rows, 1));
    }

    #[test]
    fn a_page_takes_the_cursor_along() {
        let mut lines = list(5, 4, 10);
        lines.on_key(KeyCode::PageDown);
        assert_eq!((lines.row, lines.item), (10, 3));
        lines.on_key(KeyCode::PageUp);
        assert_eq!((lines.row, lines.item), (0, 0));
    }

    #[test]
    fn text_without_items_scrolls_by_rows() {
        let mut lines = ScrolledLines { hidden_rows: 3, page: 10, ..Default::default() };
        for _ in 0..5 {
            lines.on_key(KeyCode::Down);
        }
        assert_eq!(lines.row, 3);
        lines.on_key(KeyCode::Home);
        assert_eq!((lines.row, lines.on_key(KeyCode::Esc)), (0, Answer::Close));
    }
}
