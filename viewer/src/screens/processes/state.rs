//! The state and the keys of the processes.

use super::columns::ProcessColumn;
use super::item::ProcessItem;
use super::items::device_items;
use crate::context::Context;
use crate::export::rows::Rows;
use crate::screen::Screen;
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use crate::snapshot::ProcessSnapshot;
use crate::widgets::columns::{TableControl, TableState};
use crate::widgets::rows::rows_of;

/// The screen of the processes.
#[derive(Clone, Debug)]
pub struct ProcessesScreen {
    /// Order and cursor.
    pub table: TableState<ProcessColumn>,
}

impl Default for ProcessesScreen {
    fn default() -> Self {
        Self { table: TableState::new(ProcessColumn::Process) }
    }
}

impl ScreenState for ProcessesScreen {
    /// Shows the device under the cursor on the overview.
    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        let target = self.items(context).get(self.table.selected)?.target;
        context.set_target(target);
        Some(Action::Show(Screen::Overview))
    }

    fn table(&mut self) -> Option<&mut dyn TableControl> {
        Some(&mut self.table)
    }

    fn footer_keys(&self, _context: &Context) -> FooterKeys {
        FooterKeys { first: footer_keys(&[("⏎", "show")]), ..FooterKeys::default() }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "Ranks and children",
            keys: &[("Enter", "show that device"), ("o  r", "offload, restore the process under the cursor")],
        }
    }

    fn rows(&self, context: &Context) -> Option<Rows> {
        Some(rows_of::<ProcessColumn>(&self.items(context), &["host"], |row| {
            (Some(row.command.clone()), vec![row.host.clone().into()])
        }))
    }
}

impl ProcessesScreen {
    /// The rows of the table, sorted.
    pub fn items(&self, context: &Context) -> Vec<ProcessItem> {
        let mut items = device_items(context);
        items.retain(|item| context.filter.passes(item));
        items.sort_by(|a, b| self.table.compare(a, b, context.moment));
        items
    }

    /// The process under the cursor.
    pub fn selected_process<'c>(&self, context: &'c Context) -> Option<&'c ProcessSnapshot> {
        let target = self.items(context).get(self.table.selected)?.target;
        let target = *context.targets().get(target)?;
        context.snapshot.processes.get(target.process)
    }
}
