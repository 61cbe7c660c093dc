//! Tables of a report: numbers to the right, the last column is text and takes what room is left.

use std::borrow::Cow;

use crate::text;

/// Spaces between columns.
const GAP: usize = 2;

/// A table under construction.
pub(super) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    is_of_layers: bool,
}

impl Table {
    pub(super) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new(), is_of_layers: false }
    }

    /// The same of layers, whose names are cut in the middle.
    pub(super) fn of_layers(head: &[&'static str]) -> Self {
        Self { is_of_layers: true, ..Self::new(head) }
    }

    /// Adds a row of as many cells as the head has.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines of the table, each indented by two and no wider than `columns`. A text too long keeps its end, which tells
    /// paths apart, or both ends, which tell layers apart.
    pub(super) fn lines(&self, columns: usize) -> Vec<String> {
        let Some(last) = self.head.len().checked_sub(1) else { return Vec::new() };
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| text::width(cell));
            cells.chain([text::width(self.head[column])]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..last).map(width).collect();
        let used: usize = 2 + widths.iter().map(|width| width + GAP).sum::<usize>();
        let room = columns.saturating_sub(used).max(20);
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = " ".repeat(2);
            for (column, cell) in cells.enumerate() {
                match widths.get(column) {
                    Some(width) => {
                        line += &" ".repeat(width - text::width(cell));
                        line += cell;
                        line += &" ".repeat(GAP);
                    }
                    None if self.is_of_layers => line += &layer(cell, room),
                    None => line += &text::fit_end(cell, room, "…"),
                }
            }
            line.trim_end().to_owned()
        };
        let head = line(&mut self.head.iter().copied());
        let rows = self.rows.iter().map(|row| line(&mut row.iter().map(String::as_str)));
        std::iter::once(head).chain(rows).collect()
    }
}

/// A layer's name, cut in the middle, and what comes after it where there is room.
fn layer(cell: &str, room: usize) -> Cow<'_, str> {
    match cell.split_once("  ") {
        Some((name, _)) if text::width(cell) > room => text::fit_middle(name, room, "…"),
        _ => text::fit_middle(cell, room, "…"),
    }
}
