//! Targets of the mouse on the screen.

use std::cell::{Cell, RefCell};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeScale {
    /// First column.
    pub left: u16,
    /// Start of the first column: nanoseconds since the trace's start.
    pub start: u64,
    /// Length of a column, in nanoseconds.
    pub width: u64,
}

impl TimeScale {
    /// Time at the end of a column.
    pub fn time_at(&self, column: u16) -> u64 {
        let columns = u64::from(column.saturating_sub(self.left)) + 1;
        self.start.saturating_add(self.width.saturating_mul(columns)).saturating_sub(1)
    }
}

/// Targets of one frame. A target drawn later covers those drawn before.
///
/// Cells, because drawing fills them through an immutable borrow of the context.
#[derive(Debug, Default)]
pub struct HitTargets {
    targets: RefCell<Vec<(Rect, HitTarget)>>,
    time_scale: Cell<Option<TimeScale>>,
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
        self.time_scale.set(Some(scale));
        self.put(area, HitTarget::Time);
    }

    /// Scale of the time axis drawn last.
    pub fn time_scale(&self) -> Option<TimeScale> {
        self.time_scale.get()
    }

    /// Topmost target at a position.
    pub fn at(&self, column: u16, row: u16) -> Option<HitTarget> {
        let targets = self.targets.borrow();
        targets.iter().rev().find(|(area, _)| area.contains(Position::new(column, row))).map(|(_, target)| *target)
    }
}
