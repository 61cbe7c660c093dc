//! Tables: their columns, and what is sorted by which.

use std::cmp::Ordering;

use memlab_trace::{LayerView, LineView};

use super::Moment;
use crate::format::{self, Units};

/// A column of a table whose rows are `Row`s.
pub trait Column<Row>: Copy + PartialEq + 'static {
    /// All of them, as they are shown from left to right.
    const ALL: &'static [Self];
    /// Its heading.
    fn title(self) -> &'static str;
    /// Its width.
    fn columns(self) -> u16;
    /// The width of the table from which there is room for it.
    fn shown_from(self) -> u16;
    /// What a row is sorted by; `None`: by its name.
    fn figure(self, row: &Row) -> Option<u64>;
    /// The name of a row, for sorting by it and between equals.
    fn compare_names(a: &Row, b: &Row) -> Ordering;
    /// The column of a moment.
    fn of_moment(moment: Moment) -> Self;
    /// Whether its figures are sizes, not counts.
    fn is_size(self) -> bool {
        true
    }
    /// The figure as it is shown.
    fn text(self, row: &Row, units: Units) -> String {
        match self.figure(row) {
            Some(0) => "–".to_owned(),
            Some(figure) if self.is_size() => format::bytes(figure, units),
            Some(figure) => format::count(figure),
            None => String::new(),
        }
    }
}

/// How a table is sorted and where its cursor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableState<C> {
    /// The column it is sorted by.
    pub sort: C,
    /// Whether the smallest comes first.
    pub ascending: bool,
    /// The row under the cursor.
    pub selected: usize,
    /// The first row on the screen.
    pub offset: usize,
    /// How many rows fit on the screen; set when drawn.
    pub page: usize,
}

impl<C: Copy + PartialEq + 'static> TableState<C> {
    /// A table sorted by `sort`, the largest first.
    pub fn new(sort: C) -> Self {
        Self { sort, ascending: false, selected: 0, offset: 0, page: 1 }
    }

    /// Puts `rows` in order.
    pub fn sorted<'a, Row>(&self, mut rows: Vec<&'a Row>, moment: Moment) -> Vec<&'a Row>
    where
        C: Column<Row>,
    {
        let tie_breaker = C::of_moment(moment);
        rows.sort_by(|a, b| {
            let names = C::compare_names(a, b);
            let order = match (self.sort.figure(a), self.sort.figure(b)) {
                (Some(a), Some(b)) => b.cmp(&a),
                _ => names,
            };
            let order = if self.ascending { order.reverse() } else { order };
            order.then(tie_breaker.figure(b).cmp(&tie_breaker.figure(a))).then(names)
        });
        rows
    }

    /// Sorts by the next column.
    pub fn sort_by_next<Row>(&mut self)
    where
        C: Column<Row>,
    {
        let index = C::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = C::ALL[(index + 1) % C::ALL.len()];
        self.ascending = false;
        self.selected = 0;
    }

    /// Moves the cursor.
    pub fn step(&mut self, rows: isize) {
        self.selected = self.selected.saturating_add_signed(rows);
    }

    /// Keeps the cursor on one of `rows` rows, and the row under it among the `page` ones shown.
    pub fn settle(&mut self, rows: usize, page: usize) {
        self.page = page.max(1);
        self.selected = self.selected.min(rows.saturating_sub(1));
        self.offset = self.offset.clamp((self.selected + 1).saturating_sub(self.page), self.selected);
        self.offset = self.offset.min(rows.saturating_sub(self.page));
    }
}

/// The columns of the table of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineColumn {
    /// Live now.
    Now,
    /// Live at the device's peak.
    AtPeak,
    /// The most this line ever held.
    Most,
    /// The part of what is live at the peak that was allocated in backward.
    Backward,
    /// Blocks live now.
    Blocks,
    /// Blocks handed out over the run.
    Allocations,
    /// Bytes handed out over the run.
    Total,
    /// File and line.
    Place,
}

impl Column<LineView> for LineColumn {
    const ALL: &'static [Self] = &[
        Self::Now,
        Self::AtPeak,
        Self::Most,
        Self::Backward,
        Self::Blocks,
        Self::Allocations,
        Self::Total,
        Self::Place,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::AtPeak => "at peak",
            Self::Most => "its most",
            Self::Backward => "backward",
            Self::Blocks => "blocks",
            Self::Allocations => "allocs",
            Self::Total => "in total",
            Self::Place => "line",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Blocks | Self::Allocations => 7,
            Self::Place => 0,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Now | Self::AtPeak | Self::Place => 0,
            Self::Most => 70,
            Self::Blocks => 86,
            Self::Backward => 96,
            Self::Allocations | Self::Total => 116,
        }
    }

    fn figure(self, row: &LineView) -> Option<u64> {
        Some(match self {
            Self::Now => row.live_bytes,
            Self::AtPeak => row.live_bytes_at_peak,
            Self::Most => row.peak_live_bytes,
            Self::Backward => row.backward_bytes_at_peak,
            Self::Blocks => row.live_blocks,
            Self::Allocations => row.allocations,
            Self::Total => row.allocated_bytes,
            Self::Place => return None,
        })
    }

    fn compare_names(a: &LineView, b: &LineView) -> Ordering {
        a.line.cmp(&b.line)
    }

    fn of_moment(moment: Moment) -> Self {
        match moment {
            Moment::Now => Self::Now,
            Moment::Peak => Self::AtPeak,
        }
    }

    fn is_size(self) -> bool {
        !matches!(self, Self::Blocks | Self::Allocations)
    }
}

/// The columns of the table of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerColumn {
    /// Live now.
    Now,
    /// Live at the device's peak.
    AtPeak,
    /// The most its parameters took.
    Parameters,
    /// The most their gradients took.
    Gradients,
    /// The most the optimizer kept for it.
    Optimizer,
    /// The most its activations took.
    Activations,
    /// Handed out in forward over the run.
    Forward,
    /// Handed out in backward over the run.
    Backward,
    /// Its qualified name.
    Name,
}

impl Column<LayerView> for LayerColumn {
    const ALL: &'static [Self] = &[
        Self::Now,
        Self::AtPeak,
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Activations,
        Self::Forward,
        Self::Backward,
        Self::Name,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::AtPeak => "at peak",
            Self::Parameters => "params",
            Self::Gradients => "grads",
            Self::Optimizer => "optim",
            Self::Activations => "activ",
            Self::Forward => "Σ forward",
            Self::Backward => "Σ backwd",
            Self::Name => "layer",
        }
    }

    fn columns(self) -> u16 {
        if self == Self::Name { 0 } else { 10 }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Now | Self::AtPeak | Self::Name => 0,
            Self::Parameters | Self::Activations => 72,
            Self::Gradients | Self::Optimizer => 96,
            Self::Forward | Self::Backward => 124,
        }
    }

    fn figure(self, row: &LayerView) -> Option<u64> {
        Some(match self {
            Self::Now => row.live_bytes,
            Self::AtPeak => row.live_bytes_at_peak,
            Self::Parameters => row.parameter_bytes,
            Self::Gradients => row.gradient_bytes,
            Self::Optimizer => row.optimizer_state_bytes,
            Self::Activations => row.activation_bytes,
            Self::Forward => row.forward_bytes,
            Self::Backward => row.backward_bytes,
            Self::Name => return None,
        })
    }

    fn compare_names(a: &LayerView, b: &LayerView) -> Ordering {
        (a.root, natural(a.name.as_deref())).cmp(&(b.root, natural(b.name.as_deref())))
    }

    fn of_moment(moment: Moment) -> Self {
        match moment {
            Moment::Now => Self::Now,
            Moment::Peak => Self::AtPeak,
        }
    }
}

/// A key that puts `h.2` before `h.10`.
fn natural(name: Option<&str>) -> Option<Vec<(u64, &str)>> {
    Some(name?.split('.').map(|part| (part.parse().unwrap_or(u64::MAX), part)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(name: &str, bytes: u64) -> LayerView {
        LayerView { root: 1, name: Some(name.into()), live_bytes: bytes, ..LayerView::default() }
    }

    #[test]
    fn layers_sort_by_number_then_name() {
        // GIVEN layers out of order
        let rows = [layer("h.10", 1), layer("h.2", 5), layer("head", 5)];
        let names = |state: TableState<LayerColumn>| {
            state
                .sorted(rows.iter().collect(), Moment::Now)
                .iter()
                .map(|row| row.name.clone().unwrap())
                .collect::<Vec<_>>()
        };
        // WHEN sorted by name
        let state = TableState::new(LayerColumn::Name);
        // THEN numbers count as numbers
        assert_eq!(names(state), ["h.2", "h.10", "head"].map(Into::into));
        // WHEN sorted by size, the smallest first, THEN equals stay in order of name
        let state = TableState { ascending: true, ..TableState::new(LayerColumn::Now) };
        assert_eq!(names(state), ["h.10", "h.2", "head"].map(Into::into));
    }

    #[test]
    fn the_cursor_stays_in_the_table() {
        let mut state = TableState::new(LineColumn::Now);
        state.step(-3);
        state.settle(0, 0);
        assert_eq!((state.selected, state.offset), (0, 0));
        state.step(50);
        state.settle(20, 5);
        assert_eq!((state.selected, state.offset), (19, 15));
        state.step(-10);
        state.settle(20, 5);
        assert_eq!((state.selected, state.offset), (9, 9));
    }
}
