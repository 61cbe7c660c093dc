//! State and key handling of the Lines screen.

use std::collections::HashSet;
use std::sync::Arc;

use crossterm::event::KeyCode;
use memlab_trace::Line;

use super::columns::LineColumn;
use super::item::{LineItem, LineKey};
use crate::context::Context;
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use crate::widgets::columns::{Column, TableControl, TableState};
use crate::widgets::rows::rows_of;
use memlab_base::query::HeldMemory;
use memlab_base::text::place;
use memlab_report::export::rows::Rows;

/// Screen of the lines.
#[derive(Clone, Debug)]
pub struct LinesScreen {
    /// Order and cursor.
    pub table: TableState<LineColumn>,
    /// True if the call tree is shown instead of the table.
    pub is_tree: bool,
    /// Rows whose open state the user toggled.
    pub(super) toggled: HashSet<LineKey>,
    /// Line that the cursor goes to.
    wanted: Option<Arc<Line>>,
}

impl Default for LinesScreen {
    fn default() -> Self {
        Self { table: TableState::new(LineColumn::Now), is_tree: false, toggled: HashSet::new(), wanted: None }
    }
}

impl ScreenState for LinesScreen {
    fn on_key(&mut self, key: KeyCode, context: &mut Context) {
        match key {
            KeyCode::Char('l' | '+') => self.set_open(true, context),
            KeyCode::Char('h' | '-') => self.set_open(false, context),
            KeyCode::Char('c') => self.toggle_tree(),
            _ => {}
        }
    }

    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        let items = self.items(context);
        match items.get(self.table.selected).and_then(LineItem::line) {
            Some(line) => Some(Action::OpenSource(line.clone())),
            None => {
                context.notice = Some("no Python line to show".to_owned());
                None
            }
        }
    }

    fn table(&mut self) -> Option<&mut dyn TableControl> {
        Some(&mut self.table)
    }

    fn footer_keys(&self, context: &Context) -> FooterKeys {
        let tree = if self.is_tree { "table" } else { "call tree" };
        let inclusive = if context.inclusive { "own" } else { "inclusive" };
        let first = footer_keys(&[("⏎", "source"), ("l", "callers"), ("H", "holders"), ("c", tree), ("i", inclusive)]);
        FooterKeys { first, ..FooterKeys::default() }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "Memory by Python line",
            keys: &[
                ("Enter", "the source around the line, with bytes in the margin"),
                ("l  h", "open its callers, close"),
                ("H", "what keeps the memory of the line alive; a running program is searched"),
                ("c", "the call tree from the outermost call, and back"),
            ],
        }
    }

    fn held_row(&self, context: &Context) -> Option<(HeldMemory, String)> {
        let items = self.items(context);
        let line = items.get(self.table.selected)?.line()?;
        Some((HeldMemory::Line(line.clone()), context.place(line)))
    }

    fn rows(&self, context: &Context) -> Option<Rows> {
        let mut rows = rows_of::<LineColumn>(&self.items(context), &["function"], |row| {
            let line = row.line();
            let place = line.map(|line| place(line, ""));
            (place, vec![line.map(|line| line.function.to_string()).into()])
        });
        if !self.has_gpu_time(context) {
            rows.remove(LineColumn::GpuTime.title());
        }
        Some(rows)
    }
}

impl LinesScreen {
    /// Puts the cursor on a line when the table has it.
    pub fn select_line(&mut self, line: Arc<Line>) {
        self.is_tree = false;
        self.wanted = Some(line);
    }

    /// Puts the cursor on the wanted line. Its row changes until the displayed moment has arrived.
    pub(super) fn follow_wanted(&mut self, rows: &[LineItem], context: &Context) {
        let Some(wanted) = &self.wanted else { return };
        let row = rows.iter().position(|item| item.line() == Some(wanted));
        self.table.selected = row.unwrap_or(self.table.selected);
        if !context.is_seeking {
            self.wanted = None;
        }
    }

    /// True if rows have GPU time, which is known for lines but not for their calls.
    pub(super) fn has_gpu_time(&self, context: &Context) -> bool {
        context.has_gpu_time() && !self.is_tree
    }

    fn toggle_tree(&mut self) {
        self.is_tree = !self.is_tree;
        self.toggled.clear();
        self.table.selected = 0;
    }

    /// Opens the row under the cursor, or closes it or its parent.
    fn set_open(&mut self, open: bool, context: &Context) {
        let items = self.items(context);
        let Some(item) = items.get(self.table.selected) else { return };
        let starts_open = self.starts_open(item, context);
        match item.is_open {
            Some(is_open) if is_open != open => {
                if open == starts_open {
                    self.toggled.remove(&item.key);
                } else {
                    self.toggled.insert(item.key.clone());
                }
            }
            // Closing a closed row moves to its parent row.
            _ if !open && item.depth > 0 => {
                let parent = &item.key[..item.key.len() - 1];
                if let Some(row) = items.iter().position(|other| other.key == parent) {
                    self.table.selected = row;
                }
            }
            _ => {}
        }
    }
}
