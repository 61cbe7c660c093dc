//! Tables as text.

use std::borrow::Cow;

use crate::text::{self, Color};

/// Spaces between columns.
const GAP: usize = 2;

/// Minimum widths of names.
///
/// Lines and layers get the first two, if leaving out the spare columns suffices. `MIN_ROOM` is kept in any case.
const ROOM_OF_LINES: usize = 44;
const ROOM_OF_LAYERS: usize = 30;
const MIN_ROOM: usize = 20;

/// Formats rows as lines, without the columns in `left_out`.
///
/// Each cell is padded to the widest of its column, on the right where `is_left`, or else on the left.
pub fn aligned(rows: &[Vec<String>], left_out: &[usize], is_left: impl Fn(usize) -> bool) -> Vec<String> {
    let columns = 0..rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = columns.map(|column| column_width(rows, column)).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate().filter(|(column, _)| !left_out.contains(column)) {
            let padding = " ".repeat(widths[column] - width(cell));
            let (before, after) = if is_left(column) { ("", padding.as_str()) } else { (padding.as_str(), "") };
            line += &format!("{before}{cell}{after}{:GAP$}", "");
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn column_width(rows: &[Vec<String>], column: usize) -> usize {
    rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0)
}

/// Width of a cell; its colours have none.
fn width(cell: &str) -> usize {
    if !cell.contains('\u{1b}') {
        return text::width(cell);
    }
    text::width(&Color::CODES.iter().fold(cell.to_owned(), |cell, code| cell.replace(code, "")))
}

/// A report's table under construction. Numbers are aligned right; the last column is text and takes the remaining
/// width.
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    is_of_layers: bool,
    /// Columns to leave out, in this order, when names have too little room.
    spare: &'static [usize],
}

impl Table {
    pub fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new(), is_of_layers: false, spare: &[] }
    }

    /// Allows leaving out these columns, one by one, when names have too little room. A note names the missing columns.
    pub fn sparing(self, columns: &'static [usize]) -> Self {
        Self { spare: columns, ..self }
    }

    /// A table of layers, whose names are cut in the middle.
    pub fn of_layers(head: &[&'static str]) -> Self {
        Self { is_of_layers: true, ..Self::new(head) }
    }

    /// Adds a row, with as many cells as the head.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table, indented by two and no wider than `columns`.
    ///
    /// A long text keeps its end, which distinguishes paths, or both ends, which distinguish layers.
    pub fn lines(&self, columns: usize) -> Vec<String> {
        let Some(last) = self.head.len().checked_sub(1) else { return Vec::new() };
        let head = self.head.iter().map(|&name| name.to_owned()).collect();
        let mut rows: Vec<Vec<String>> = std::iter::once(head).chain(self.rows.iter().cloned()).collect();
        let width = |column| column_width(&rows, column);
        let wanted = width(last).min(if self.is_of_layers { ROOM_OF_LAYERS } else { ROOM_OF_LINES });
        let room = |left_out: &[usize]| {
            let shown = (0..last).filter(|column| !left_out.contains(column));
            columns.saturating_sub(2 + shown.map(|column| width(column) + GAP).sum::<usize>())
        };
        let fits = |count: &usize| room(&self.spare[..*count]) >= wanted;
        let left_out = &self.spare[..(0..=self.spare.len()).find(fits).unwrap_or(self.spare.len())];
        let room = room(left_out).max(MIN_ROOM);
        for row in &mut rows {
            if let Some(name) = row.get_mut(last) {
                let fitted = if self.is_of_layers { layer(name, room) } else { text::fit_end(name, room, "…") };
                *name = fitted.into_owned();
            }
        }
        let lines = aligned(&rows, left_out, |column| column == last);
        let mut lines: Vec<String> = lines.into_iter().map(|line| format!("  {line}").trim_end().to_owned()).collect();
        let mut names: Vec<&str> = left_out
            .iter()
            .map(|column| self.head[*column])
            .map(|name| if name.is_empty() { "%" } else { name })
            .collect();
        names.sort_by_key(|name| self.head.iter().position(|head| head == name));
        if !names.is_empty() {
            let columns = if names.len() == 1 { "column" } else { "columns" };
            lines.push(format!("  (hidden {columns}: {})", names.join(", ")));
        }
        lines
    }
}

/// Cuts a layer's name in the middle; the text after the name is kept if it fits.
fn layer(cell: &str, room: usize) -> Cow<'_, str> {
    match cell.split_once("  ") {
        Some((name, _)) if text::width(cell) > room => text::fit_middle(name, room, "…"),
        _ => text::fit_middle(cell, room, "…"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_give_way_to_names_and_headers_stay_whole() {
        // GIVEN a table with two spare columns
        let mut table = Table::new(&["at the peak", "", "in backward", "most at once", "line"]).sparing(&[3, 2]);
        let name = "a/folder/of/mine/train.py:12  Trainer.training_step";
        table.row(["1.00 GiB", "50 %", "1.00 MiB", "2.00 GiB", name].map(str::to_owned).to_vec());
        let at = |columns| table.lines(columns).join("\n");
        // WHEN the room suffices THEN all columns are shown
        assert!(at(200).contains("most at once") && at(200).contains(name));
        // AND with less room names stay whole while spare columns remain, and a note names the missing ones
        let narrow = [(82, "in backward  line", "most at once"), (70, "%  line", "in backward, most at once")];
        for (columns, head, missing) in narrow {
            let text = at(columns);
            assert!(text.contains("(hidden column") && text.contains(&format!(": {missing})")), "{text}");
            assert!(text.lines().next().unwrap().ends_with(head.trim_start_matches('%')), "{text}");
        }
        for columns in [50, 70, 82, 200] {
            assert!(table.lines(columns).iter().all(|line| text::width(line) <= columns), "{}", at(columns));
            assert!(at(columns).lines().next().unwrap().ends_with("line"));
        }
    }

    #[test]
    fn colours_take_no_columns() {
        let rows = [["ok", "a", "1"], ["cannot", "bb", "22"]].map(|row| row.map(str::to_owned).to_vec());
        let painted = rows.clone().map(|row| vec![Color::Red.paint(&row[0]), row[1].clone(), row[2].clone()]);
        let lines = |rows: &[Vec<String>]| aligned(rows, &[1], |column| column == 0);
        assert_eq!(lines(&rows), ["ok       1", "cannot  22"]);
        assert_eq!(lines(&painted), ["\u{1b}[31mok\u{1b}[0m       1", "\u{1b}[31mcannot\u{1b}[0m  22"]);
    }
}
