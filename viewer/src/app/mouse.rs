//! The mouse: what was drawn where, and what clicking, scrolling and dragging there does.

use std::cell::{Cell, RefCell};

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::{Position, Rect};

use super::{App, Focus, Overlay, Request, Screen};

/// Something on the screen that takes the mouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// A screen's tab.
    Tab(Screen),
    /// The heading of a table's column, by its place in the columns of that table.
    Heading(usize),
    /// A row of the table of the screen in front, by its index.
    Row(usize),
    /// A pane of the overview.
    Pane(Focus),
    /// A row of a pane of the overview.
    PaneRow(Focus, usize),
    /// A place in time: the scale is in [`Spots::time_scale`].
    Time,
    /// One moment: nanoseconds since the trace's start.
    Moment(u64),
    /// A device of a process, by its place in [`App::targets`].
    Target(usize),
    /// A piece of the memory map: the segment's and the piece's address.
    Block(u64, u64),
    /// What lies over the screen.
    Overlay,
}

/// Which time is drawn in which column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeScale {
    /// The first column.
    pub left: u16,
    /// Its time: nanoseconds since the trace's start.
    pub start: u64,
    /// How long a column is, in nanoseconds.
    pub width: u64,
}

impl TimeScale {
    /// The time at the end of a column.
    pub fn time_at(&self, column: u16) -> u64 {
        let columns = u64::from(column.saturating_sub(self.left)) + 1;
        self.start.saturating_add(self.width.saturating_mul(columns)).saturating_sub(1)
    }
}

/// What the mouse finds where. What is drawn later lies above what was drawn before.
///
/// Filled while the screen is drawn, where the app is only looked at: hence the cells.
#[derive(Debug, Default)]
pub struct Spots {
    spots: RefCell<Vec<(Rect, Spot)>>,
    time_scale: Cell<Option<TimeScale>>,
}

impl Spots {
    /// Forgets all: the screen is drawn anew.
    pub fn clear(&self) {
        self.spots.borrow_mut().clear();
    }

    /// Something was drawn at `area`.
    pub fn put(&self, area: Rect, spot: Spot) {
        if area.area() > 0 {
            self.spots.borrow_mut().push((area, spot));
        }
    }

    /// Time was drawn at `area`, to this scale.
    pub fn put_time(&self, area: Rect, scale: TimeScale) {
        self.time_scale.set(Some(scale));
        self.put(area, Spot::Time);
    }

    /// The scale time was last drawn to.
    pub fn time_scale(&self) -> Option<TimeScale> {
        self.time_scale.get()
    }

    /// What lies on top at a place.
    pub fn at(&self, column: u16, row: u16) -> Option<Spot> {
        let spots = self.spots.borrow();
        spots.iter().rev().find(|(area, _)| area.contains(Position::new(column, row))).map(|(_, spot)| *spot)
    }
}

/// Rows that one notch of the wheel moves.
const WHEEL: isize = 3;

impl App {
    /// The mouse was used.
    pub fn on_mouse(&mut self, event: MouseEvent) -> Option<Request> {
        let spot = self.spots.at(event.column, event.row);
        match event.kind {
            MouseEventKind::ScrollDown => self.on_wheel(spot, WHEEL),
            MouseEventKind::ScrollUp => self.on_wheel(spot, -WHEEL),
            MouseEventKind::Down(MouseButton::Left) => return self.on_click(spot, event.column),
            MouseEventKind::Drag(MouseButton::Left) if spot == Some(Spot::Time) => self.go_to_column(event.column),
            _ => {}
        }
        None
    }

    fn on_wheel(&mut self, spot: Option<Spot>, rows: isize) {
        if let Some(Spot::Pane(focus) | Spot::PaneRow(focus, _)) = spot {
            self.focus = focus;
        }
        match self.overlay {
            None => {
                self.scroll(|_| rows);
            }
            Some(Overlay::Help(row)) => {
                let to = row.saturating_add_signed(rows as i16).min(self.help_end.get());
                self.overlay = Some(Overlay::Help(to));
            }
            Some(_) => {}
        }
    }

    fn on_click(&mut self, spot: Option<Spot>, column: u16) -> Option<Request> {
        self.notice = None;
        if self.overlay.is_some() {
            // A click beside it takes away what lies over the screen, unless it is a question.
            if spot != Some(Spot::Overlay) && !matches!(self.overlay, Some(Overlay::Leave | Overlay::Move(_))) {
                self.overlay = None;
            }
            return None;
        }
        match spot? {
            Spot::Overlay => {}
            Spot::Tab(screen) => self.screen = screen,
            Spot::Heading(index) => self.sort_by(index),
            Spot::Row(index) => {
                if self.select(index) {
                    return self.on_enter();
                }
            }
            Spot::Pane(focus) => self.focus = focus,
            Spot::PaneRow(focus, row) => {
                let had_focus = std::mem::replace(&mut self.focus, focus) == focus;
                if self.select(row) && had_focus {
                    return self.on_enter();
                }
            }
            Spot::Time => self.go_to_column(column),
            Spot::Moment(time) => self.go_to_time(time),
            Spot::Target(target) => self.set_target(target),
            Spot::Block(segment, block) => self.segments.select(segment, block),
        }
        None
    }

    fn go_to_column(&mut self, column: u16) {
        if let Some(scale) = self.spots.time_scale() {
            self.go_to_time(scale.time_at(column));
        }
    }
}
