//! Tables of a report: numbers to the right, the last column is text and takes what room is left.

use std::borrow::Cow;

use memlab_base::text;

/// Spaces between columns.
const GAP: usize = 2;

/// What names of lines and of layers are to have at least, if that costs no more than columns that can be spared; and
/// what they have in any case.
const ROOM_OF_LINES: usize = 44;
const ROOM_OF_LAYERS: usize = 30;
const MIN_ROOM: usize = 20;

/// A table under construction.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    is_of_layers: bool,
    /// The columns that go first where there is too little room for the names, in that order.
    spare: &'static [usize],
}

impl Table {
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new(), is_of_layers: false, spare: &[] }
    }

    /// The same, of which these columns are left out, one by one and said to be, where names would have too little
    /// room.
    pub(crate) fn sparing(self, columns: &'static [usize]) -> Self {
        Self { spare: columns, ..self }
    }

    /// The same of layers, whose names are cut in the middle.
    pub(crate) fn of_layers(head: &[&'static str]) -> Self {
        Self { is_of_layers: true, ..Self::new(head) }
    }

    /// Adds a row of as many cells as the head has.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines of the table, each indented by two and no wider than `columns`. A text too long keeps its end, which
    /// distinguishes paths, or both ends, which distinguish layers.
    pub(crate) fn lines(&self, columns: usize) -> Vec<String> {
        let Some(last) = self.head.len().checked_sub(1) else { return Vec::new() };
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| text::width(cell));
            cells.chain([text::width(self.head[column])]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..last).map(width).collect();
        let wanted = width(last).min(if self.is_of_layers { ROOM_OF_LAYERS } else { ROOM_OF_LINES });
        let room = |left_out: &[usize]| {
            let shown = (0..last).filter(|column| !left_out.contains(column));
            columns.saturating_sub(2 + shown.map(|column| widths[column] + GAP).sum::<usize>())
        };
        let fits = |count: &usize| room(&self.spare[..*count]) >= wanted;
        let left_out = &self.spare[..(0..=self.spare.len()).find(fits).unwrap_or(self.spare.len())];
        let room = room(left_out).max(MIN_ROOM);
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = " ".repeat(2);
            for (column, cell) in cells.enumerate().filter(|(column, _)| !left_out.contains(column)) {
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
        let mut lines: Vec<String> = std::iter::once(head).chain(rows).collect();
        let mut names: Vec<&str> = left_out
            .iter()
            .map(|column| self.head[*column])
            .map(|name| if name.is_empty() { "%" } else { name })
            .collect();
        names.sort_by_key(|name| self.head.iter().position(|head| head == name));
        if !names.is_empty() {
            lines.push(format!("  (too narrow for: {})", names.join(", ")));
        }
        lines
    }
}

/// A layer's name, cut in the middle, and what comes after it where there is room.
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
        // GIVEN a table of which two columns can be spared
        let mut table = Table::new(&["at the peak", "", "in backward", "most at once", "line"]).sparing(&[3, 2]);
        let name = "a/folder/of/mine/train.py:12  Trainer.training_step";
        table.row(["1.00 GiB", "50 %", "1.00 MiB", "2.00 GiB", name].map(str::to_owned).to_vec());
        let at = |columns| table.lines(columns).join("\n");
        // WHEN there is room THEN all is shown
        assert!(at(200).contains("most at once") && at(200).contains(name));
        // AND with less of it names keep theirs, as long as there is something to spare, and what is missing is said
        let narrow = [(82, "in backward  line", "most at once"), (70, "%  line", "in backward, most at once")];
        for (columns, head, missing) in narrow {
            let text = at(columns);
            assert!(text.contains(&format!("(too narrow for: {missing})")), "{text}");
            assert!(text.lines().next().unwrap().ends_with(head.trim_start_matches('%')), "{text}");
        }
        for columns in [50, 70, 82, 200] {
            assert!(table.lines(columns).iter().all(|line| text::width(line) <= columns), "{}", at(columns));
            assert!(at(columns).lines().next().unwrap().ends_with("line"));
        }
    }
}
