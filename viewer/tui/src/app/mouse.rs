//! Handles clicks, the wheel and drags.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

use super::state::App;
use crate::context::HitTarget;
use crate::screen::TablePane;
use memlab_follow::request::UiRequest;

/// Number of rows per notch of the wheel.
const WHEEL_ROWS: isize = 3;

impl App {
    /// Handles a mouse event.
    pub fn on_mouse(&mut self, event: MouseEvent) -> Option<UiRequest> {
        let target = self.context.hit_targets.at(event.column, event.row);
        if let (MouseEventKind::Down(MouseButton::Left), Some(HitTarget::Key(key)), None) =
            (event.kind, target, &self.overlay)
        {
            return self.on_key(key.into());
        }
        self.change_moment(|app| match event.kind {
            MouseEventKind::ScrollDown => app.on_wheel(target, WHEEL_ROWS),
            MouseEventKind::ScrollUp => app.on_wheel(target, -WHEEL_ROWS),
            MouseEventKind::Down(MouseButton::Left) => app.on_click(target, event.column),
            MouseEventKind::Drag(MouseButton::Left) if target == Some(HitTarget::Time) => {
                app.go_to_column(event.column);
            }
            _ => {}
        });
        None
    }

    fn on_wheel(&mut self, target: Option<HitTarget>, rows: isize) {
        if let Some(HitTarget::Pane(pane) | HitTarget::PaneRow(pane, _)) = target {
            self.focus_on(pane);
        }
        match &mut self.overlay {
            Some(overlay) => overlay.scroll(rows),
            None => self.scroll(&|_| rows),
        }
    }

    fn on_click(&mut self, target: Option<HitTarget>, column: u16) {
        self.context.notice = None;
        if let Some(overlay) = &self.overlay {
            if target != Some(HitTarget::Overlay) && overlay.closes_on_click() {
                self.overlay = None;
            }
            return;
        }
        match target {
            None | Some(HitTarget::Overlay | HitTarget::Key(_)) => {}
            Some(HitTarget::Findings) => self.show_findings(),
            Some(HitTarget::Tab(screen)) => self.screen = screen,
            Some(HitTarget::Heading(pane, column)) => {
                if let Some(pane) = pane {
                    self.focus_on(pane);
                }
                if let Some(table) = self.screen_mut(self.table_screen()).0.table() {
                    table.sort_by(column);
                }
            }
            Some(HitTarget::Row(row)) => {
                if self.select(row) {
                    self.on_enter();
                }
            }
            Some(HitTarget::Pane(pane)) => _ = self.focus_on(pane),
            Some(HitTarget::PaneRow(pane, row)) => {
                let had_focus = self.focus_on(pane);
                if self.select(row) && had_focus {
                    self.on_enter();
                }
            }
            Some(HitTarget::Time) => self.go_to_column(column),
            Some(HitTarget::Moment(time)) => self.context.go_to_time(time),
            Some(HitTarget::Device(target)) => self.context.set_target(target),
            Some(HitTarget::Block(segment, block)) => self.segments.select(segment, block),
        }
    }

    /// Directs the keys to a table; returns true if they went there already.
    fn focus_on(&mut self, pane: TablePane) -> bool {
        match pane {
            TablePane::Overview(table) => std::mem::replace(&mut self.overview.focus, table) == table,
            TablePane::Time(table) => std::mem::replace(&mut self.time.focus, table) == table,
        }
    }

    /// Puts the cursor on a row; returns true if it has not moved.
    fn select(&mut self, row: usize) -> bool {
        self.screen_mut(self.table_screen()).0.table().is_some_and(|table| table.select(row))
    }

    fn go_to_column(&mut self, column: u16) {
        if let Some(scale) = self.context.hit_targets.time_scale() {
            self.context.go_to_time(scale.time_at(column));
        }
    }
}
