//! State and keys of the events: the latest ones before the displayed moment, one by one.

use memlab_trace::EventView;
use serde_json::json;

use super::columns::EventColumn;
use super::item::EventItem;
use crate::context::Context;
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use crate::widgets::columns::{TableControl, TableState};
use crate::widgets::rows::rows_of;
use memlab_base::text::place;
use memlab_report::export::rows::Rows;

/// Screen of the events.
///
/// A cursor on the first row stays there, to show the newest events. Elsewhere it stays on its event while others
/// arrive above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventsScreen {
    /// Order and cursor.
    pub table: TableState<EventColumn>,
    /// Row where the cursor was put last.
    row: usize,
    /// Number of the event there; `None`: the first row, whatever its event.
    number: Option<u64>,
}

impl Default for EventsScreen {
    fn default() -> Self {
        Self { table: TableState::new(EventColumn::Number), row: 0, number: None }
    }
}

impl ScreenState for EventsScreen {
    /// Shows the moment of the event under the cursor.
    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        let items = self.items(context);
        self.follow(&items);
        if let Some(item) = items.get(self.table.selected) {
            context.go_to_event(item.event.number, item.event.time);
        }
        None
    }

    fn table(&mut self) -> Option<&mut dyn TableControl> {
        Some(&mut self.table)
    }

    fn footer_keys(&self, _context: &Context) -> FooterKeys {
        FooterKeys { first: footer_keys(&[("⏎", "go there")]), ..FooterKeys::default() }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "The latest events before the moment shown",
            keys: &[
                ("Enter", "show that moment on every screen"),
                ("g", "follow the newest event; on other rows the cursor stays on its event"),
            ],
        }
    }

    fn rows(&self, context: &Context) -> Option<Rows> {
        Some(rows_of::<EventColumn>(&self.items(context), &["layer", "time_ns"], |row| {
            (Some(row.line().to_owned()), vec![row.layer().into(), json!(row.event.time)])
        }))
    }
}

impl EventsScreen {
    /// Rows of the table: the events that pass the filter, latest first unless sorted otherwise.
    pub fn items(&self, context: &Context) -> Vec<EventItem> {
        let Some(process) = context.process() else { return Vec::new() };
        let line = |event: &EventView| process.names.lines.get(&event.stack);
        let item = |event: &EventView| EventItem {
            event: event.clone(),
            names: process.names.clone(),
            device: if event.device < 0 { "host".to_owned() } else { event.device.to_string() },
            line: line(event).map_or_else(String::new, |line| place(line, &process.header.directory)),
        };
        let mut items: Vec<_> = process.events.iter().map(item).filter(|item| context.filter.passes(item)).collect();
        items.sort_by(|a, b| self.table.compare(a, b, context.moment));
        items
    }

    /// Puts the cursor on its row among `items`: its event, plus any movement since the last call.
    pub fn follow(&mut self, items: &[EventItem]) {
        let was_moved = self.table.selected != self.row;
        let is_at_top = self.table.selected == 0 && was_moved;
        let here = self.number.filter(|_| !is_at_top).map_or(0, |number| row_of(items, number));
        // The rows on the screen keep their places.
        let came = here as isize - self.row as isize;
        self.table.offset = self.table.offset.saturating_add_signed(came);
        let moved = self.table.selected as i128 - self.row as i128;
        let row = (here as i128 + moved).clamp(0, items.len().saturating_sub(1) as i128);
        self.table.selected = if is_at_top { 0 } else { row as usize };
        if was_moved {
            self.number =
                items.get(self.table.selected).filter(|_| self.table.selected > 0).map(|item| item.event.number);
        }
        self.row = self.table.selected;
    }

    /// True if the event under the cursor is no longer among `items`.
    pub fn has_lost(&self, items: &[EventItem]) -> bool {
        self.number.is_some_and(|number| items.get(self.table.selected).is_none_or(|item| item.event.number != number))
    }

    /// True if the cursor stays on the first row.
    pub fn follows(&self) -> bool {
        self.number.is_none()
    }
}

/// Row of an event, or of the event closest to it.
fn row_of(items: &[EventItem], number: u64) -> usize {
    let distance = |item: &EventItem| item.event.number.abs_diff(number);
    (0..items.len()).min_by_key(|row| distance(&items[*row])).unwrap_or(0)
}
