//! The ranges that the program names, in place of the layers.

mod columns;
mod draw;
mod item;
mod items;

use std::collections::HashSet;

use memlab_trace::RangePath;

use crate::context::Context;
use crate::widgets::columns::TableState;
use crate::widgets::rows::rows_of;
use columns::RangeColumn;
use memlab_report::export::rows::Rows;

/// Table of the ranges.
#[derive(Clone, Debug)]
pub(super) struct RangeTable {
    /// Order and cursor.
    pub(super) table: TableState<RangeColumn>,
    /// Ranges closed by the user.
    closed: HashSet<RangePath>,
}

impl Default for RangeTable {
    fn default() -> Self {
        Self { table: TableState::new(RangeColumn::Now), closed: HashSet::new() }
    }
}

impl RangeTable {
    /// Opens the row under the cursor if it is closed, and closes it if it is open.
    pub(super) fn toggle(&mut self, context: &Context) {
        let items = self.items(context);
        let Some(item) = items.get(self.table.selected) else { return };
        if item.is_open.is_some() && !self.closed.remove(item.path()) {
            self.closed.insert(item.path().clone());
        }
    }

    /// Opens the row under the cursor, or closes it or its parent.
    pub(super) fn set_open(&mut self, open: bool, context: &Context) {
        let items = self.items(context);
        let row = self.table.selected;
        let Some(item) = items.get(row) else { return };
        match item.is_open {
            Some(is_open) if is_open != open => self.toggle(context),
            _ if !open && item.depth > 0 => {
                if let Some(around) = items[..row].iter().rposition(|other| other.depth < item.depth) {
                    self.table.selected = around;
                }
            }
            _ => {}
        }
    }

    /// Opens all ranges, or closes all.
    pub(super) fn toggle_all(&mut self, context: &Context) {
        if self.closed.is_empty() {
            let items = self.items(context);
            self.closed = items.iter().filter(|item| item.is_open.is_some()).map(|item| item.path().clone()).collect();
        } else {
            self.closed.clear();
        }
    }

    /// Displayed rows, for a file.
    pub(super) fn rows(&self, context: &Context) -> Rows {
        rows_of::<RangeColumn>(&self.items(context), &[], |item| (Some(item.name()), Vec::new()))
    }
}
