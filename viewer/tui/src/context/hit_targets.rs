//! Targets of the mouse on the screen.

use std::cell::RefCell;
use std::rc::Rc;

use crossterm::event::KeyCode;
use ratatui::layout::{Position, Rect};

use crate::screen::{Screen, TablePane};

/// A target of the mouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitTarget {
    /// Tab of a screen.
    Tab(Screen),
    /// Heading of a table's column, by its index among the columns of that table.
    Heading(Option<TablePane>, usize),
    /// Row of the table of the screen in front, by its index.
    Row(usize),
    /// A table beside others.
    Pane(TablePane),
    /// Row of such a table.
    PaneRow(TablePane, usize),
    /// A point in time, on the scale [`HitTargets::time_scale`].
    Time,
    /// A moment: nanoseconds since the trace's start.
    Moment(u64),
    /// A device of a process, by its index in [`super::Context::targets`].
    Device(usize),
    /// A piece of the memory map: the addresses of its segment and of the piece.
    Block(u64, u64),
    /// The overlay.
    Overlay,
    /// The findings in short.
    Findings,
    /// A key of the footer.
    Key(KeyCode),
}

/// Times of the columns of a time axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeScale {
    /// First column.
    pub left: u16,
    /// Starts of the columns and end of the last, in nanoseconds since the trace's start.
    pub edges: Rc<[u64]>,
}

impl TimeScale {
    /// Columns of equal times. `start`: of the first; `width`: of each, in nanoseconds.
    pub fn even(left: u16, start: u64, width: u64, columns: u16) -> Self {
        let edge = |column: u16| start.saturating_add(width.max(1).saturating_mul(u64::from(column)));
        Self { left, edges: (0..=columns).map(edge).collect() }
    }

    /// Columns for intervals of equal width, such as steps. `knots`: starts of the intervals and end of the last.
    pub fn of_intervals(left: u16, knots: &[u64], columns: u16) -> Self {
        let intervals = knots.len().saturating_sub(1) as u64;
        let edge = |column: u16| {
            let place = u64::from(column) * intervals;
            let (interval, part) = (place / u64::from(columns.max(1)), place % u64::from(columns.max(1)));
            let from = knots.get(interval as usize).copied().unwrap_or(0);
            let to = knots.get(interval as usize + 1).copied().unwrap_or(from);
            let part = u128::from(to.saturating_sub(from)) * u128::from(part) / u128::from(columns.max(1));
            from.saturating_add(part as u64)
        };
        Self { left, edges: (0..=columns).map(edge).collect() }
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.edges.len().saturating_sub(1)
    }

    /// Time at the end of a column of the screen.
    pub fn time_at(&self, column: u16) -> u64 {
        let index = usize::from(column.saturating_sub(self.left)) + 1;
        self.edges.get(index).or(self.edges.last()).map_or(0, |edge| edge.saturating_sub(1))
    }

    /// Index of the column that contains a time; `None`: before the first.
    pub fn index_of(&self, time: u64) -> Option<usize> {
        self.edges.partition_point(|edge| *edge <= time).checked_sub(1)
    }

    /// Time of the same place some columns further on. Beyond the axis, its first or last column repeats.
    pub fn moved(&self, time: u64, columns: i64) -> u64 {
        let (mut time, step) = (time, columns.signum());
        for _ in 0..columns.unsigned_abs().min(MAX_MOVED_COLUMNS) {
            let index = self.index_of(time).map_or(-1, |index| index as i64);
            let ((from, length), (to, new_length)) = (self.span(index), self.span(index + step));
            let part =
                u128::from(time.saturating_sub(from).min(length)) * u128::from(new_length) / u128::from(length.max(1));
            time = to.saturating_add(part as u64);
        }
        time
    }

    /// Start and length of a column; beyond the axis, those of a repeated first or last column.
    fn span(&self, index: i64) -> (u64, u64) {
        let last = self.columns() as i64 - 1;
        let inside = index.clamp(0, last.max(0));
        let [from, to] = match self.edges.get(inside as usize..inside as usize + 2) {
            Some([from, to]) => [*from, *to],
            _ => return (0, 0),
        };
        let length = to.saturating_sub(from);
        let beyond = (index - inside).unsigned_abs().saturating_mul(length);
        (if index < inside { from.saturating_sub(beyond) } else { from.saturating_add(beyond) }, length)
    }
}

/// A movement has at most this many columns.
const MAX_MOVED_COLUMNS: u64 = 1000;

/// Targets of one frame. A target drawn later covers those drawn before.
///
/// Cells, because drawing fills them through an immutable borrow of the context.
#[derive(Debug, Default)]
pub struct HitTargets {
    targets: RefCell<Vec<(Rect, HitTarget)>>,
    time_scale: RefCell<Option<TimeScale>>,
}

impl HitTargets {
    /// Removes all targets before a new frame.
    pub fn clear(&self) {
        self.targets.borrow_mut().clear();
    }

    /// Adds a target at `area`.
    pub fn put(&self, area: Rect, target: HitTarget) {
        if area.area() > 0 {
            self.targets.borrow_mut().push((area, target));
        }
    }

    /// Adds a time axis at `area`.
    pub fn put_time(&self, area: Rect, scale: TimeScale) {
        self.time_scale.replace(Some(scale));
        self.put(area, HitTarget::Time);
    }

    /// Scale of the time axis drawn last.
    pub fn time_scale(&self) -> Option<TimeScale> {
        self.time_scale.borrow().clone()
    }

    /// Topmost target at a position.
    pub fn at(&self, column: u16, row: u16) -> Option<HitTarget> {
        let targets = self.targets.borrow();
        targets.iter().rev().find(|(area, _)| area.contains(Position::new(column, row))).map(|(_, target)| *target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_any_length_take_equal_columns() {
        // GIVEN steps of 10, 30 and 100 ns on six columns
        let scale = TimeScale::of_intervals(5, &[0, 10, 40, 140], 6);
        assert_eq!(*scale.edges, [0, 5, 10, 25, 40, 90, 140]);
        // THEN times and columns correspond
        assert_eq!((scale.time_at(5), scale.time_at(10), scale.time_at(99)), (4, 139, 139));
        assert_eq!([0, 9, 10, 100, 500].map(|time| scale.index_of(time)), [0, 1, 2, 5, 6].map(Some));
        // AND a movement by columns keeps the place in the column, also beyond the axis
        assert_eq!(
            (scale.moved(25, 1), scale.moved(30, 2), scale.moved(30, -9), scale.moved(100, 2)),
            (40, 106, 1, 200)
        );
    }

    #[test]
    fn many_steps_share_columns_and_no_steps_do_no_harm() {
        let knots: Vec<u64> = (0..=100).map(|step| step * 10).collect();
        assert_eq!(*TimeScale::of_intervals(0, &knots, 4).edges, [0, 250, 500, 750, 1000]);
        assert_eq!(*TimeScale::of_intervals(0, &[], 2).edges, [0, 0, 0]);
        let even = TimeScale::even(3, 100, 10, 4);
        assert_eq!((even.time_at(3), even.moved(105, 2), even.index_of(99)), (109, 125, None));
    }
}
