//! Tables: their columns, order and cursor.

use std::cmp::Ordering;

use crate::context::ShownMoment;
use crate::size_units::Units;
use memlab_units::format;

/// A column of a table whose rows are [`Column::Item`]s.
pub trait Column: Copy + PartialEq + 'static {
    /// Type of a row.
    type Item;
    /// All columns, from left to right.
    const ALL: &'static [Self];
    /// Heading.
    fn title(self) -> &'static str;
    /// Width; 0: the remaining width. Exactly one column of a table has this.
    fn columns(self) -> u16;
    /// Minimum width of the table that shows the column.
    fn shown_from(self) -> u16;
    /// Sort key of a row; `None`: its name.
    fn figure(self, row: &Self::Item) -> Option<f64>;
    /// Order of names, for sorting by name and between equal rows.
    fn compare_names(a: &Self::Item, b: &Self::Item) -> Ordering;
    /// Order of rows without a figure, before their names.
    fn compare_texts(self, _a: &Self::Item, _b: &Self::Item) -> Ordering {
        Ordering::Equal
    }
    /// The figure as text.
    fn text(self, row: &Self::Item, units: Units) -> String;
    /// Length of a row's bar, in bytes or nanoseconds; `None`: rows have no bar.
    fn bar(_row: &Self::Item, _moment: ShownMoment) -> Option<u64> {
        None
    }
    /// The column that requires GPU time, if the table has one.
    const GPU_TIME: Option<Self> = None;
    /// The column of the memory at a moment, if the table has one.
    fn of_moment(_moment: ShownMoment) -> Option<Self> {
        None
    }
}

/// Bytes in a table; zero is a dash.
pub fn bytes_text(bytes: u64, units: Units) -> String {
    if bytes == 0 { "–".to_owned() } else { units.size(bytes) }
}

/// Width of a column of GPU time.
pub const GPU_TIME_COLUMNS: u16 = 15;

/// GPU time with its share in a table; zero is a dash.
pub fn gpu_time_text(nanoseconds: u64, device_nanoseconds: u64) -> String {
    match nanoseconds {
        0 => "–".to_owned(),
        _ => format!("{} {:>6}", format::time_spent(nanoseconds), format::percent(nanoseconds, device_nanoseconds)),
    }
}

/// Order and cursor of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableState<C> {
    /// Column by which it is sorted.
    pub sort: C,
    /// True if the smallest comes first.
    pub ascending: bool,
    /// The row under the cursor.
    pub selected: usize,
    /// The first row on the screen.
    pub offset: usize,
    /// Number of rows that fit on the screen; set when drawn.
    pub page: usize,
}

impl<C: Column> TableState<C> {
    /// Makes a table sorted by `sort`, largest first.
    pub fn new(sort: C) -> Self {
        Self { sort, ascending: false, selected: 0, offset: 0, page: 1 }
    }

    /// Compares two rows in the table's order.
    pub fn compare(&self, a: &C::Item, b: &C::Item, moment: ShownMoment) -> Ordering {
        let names = C::compare_names(a, b);
        let order = match (self.sort.figure(a), self.sort.figure(b)) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            _ => self.sort.compare_texts(a, b).then(names),
        };
        let order = if self.ascending { order.reverse() } else { order };
        let of_moment = |row| C::of_moment(moment).and_then(|column| column.figure(row)).unwrap_or(0.0);
        order.then_with(|| of_moment(b).total_cmp(&of_moment(a))).then(names)
    }

    /// Sorts by the new moment's column if the table was sorted by the old one's.
    pub fn follow(&mut self, old: ShownMoment, new: ShownMoment) {
        if Some(self.sort) == C::of_moment(old)
            && let Some(column) = C::of_moment(new)
        {
            self.sort = column;
        }
    }

    /// Keeps the cursor on one of `rows` rows, and its row within the displayed page of `page` rows.
    pub fn settle(&mut self, rows: usize, page: usize) {
        self.page = page.max(1);
        self.selected = self.selected.min(rows.saturating_sub(1));
        self.offset = self.offset.clamp((self.selected + 1).saturating_sub(self.page), self.selected);
        self.offset = self.offset.min(rows.saturating_sub(self.page));
    }
}

/// Actions of the keys and the mouse on a table, independent of its columns.
pub trait TableControl {
    /// Sorts by the next displayed column.
    fn sort_by_next(&mut self, has_gpu_time: bool);
    /// Sorts by a column, or reverses the order if it is sorted by it already.
    fn sort_by(&mut self, column: usize);
    /// Reverses the order.
    fn invert_sort(&mut self);
    /// Puts the cursor on a row; returns true if it has not moved.
    fn select(&mut self, row: usize) -> bool;
    /// Moves the cursor by rows; `by` receives the number of rows on a page.
    fn scroll(&mut self, by: &dyn Fn(isize) -> isize);
}

impl<C: Column> TableControl for TableState<C> {
    fn sort_by_next(&mut self, has_gpu_time: bool) {
        let index = C::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        let after = C::ALL.iter().cycle().skip(index + 1).take(C::ALL.len());
        let next = after.copied().find(|column| has_gpu_time || Some(*column) != C::GPU_TIME);
        self.sort = next.unwrap_or(self.sort);
        self.ascending = false;
        self.selected = 0;
    }

    fn sort_by(&mut self, column: usize) {
        let Some(column) = C::ALL.get(column) else { return };
        self.ascending = self.sort == *column && !self.ascending;
        self.sort = *column;
    }

    fn invert_sort(&mut self) {
        self.ascending = !self.ascending;
    }

    fn select(&mut self, row: usize) -> bool {
        std::mem::replace(&mut self.selected, row) == row
    }

    fn scroll(&mut self, by: &dyn Fn(isize) -> isize) {
        self.selected = self.selected.saturating_add_signed(by(self.page as isize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screens::lines::LineColumn;

    #[test]
    fn the_cursor_stays_in_the_table() {
        let mut state = TableState::new(LineColumn::Now);
        state.scroll(&|_| -3);
        state.settle(0, 0);
        assert_eq!((state.selected, state.offset), (0, 0));
        state.scroll(&|_| 50);
        state.settle(20, 5);
        assert_eq!((state.selected, state.offset), (19, 15));
        state.scroll(&|_| -10);
        state.settle(20, 5);
        assert_eq!((state.selected, state.offset), (9, 9));
    }

    #[test]
    fn a_heading_sorts_and_turns_round() {
        let mut state = TableState::new(LineColumn::Now);
        state.sort_by(1);
        assert_eq!((state.sort, state.ascending), (LineColumn::ALL[1], false));
        state.sort_by(1);
        assert!(state.ascending);
        state.sort_by(99);
        assert_eq!(state.sort, LineColumn::ALL[1]);
    }
}
