//! State and keys of the layers.

use crossterm::event::KeyCode;

use super::columns::LayerColumn;
use super::item::LayerItem;
use super::ranges::RangeTable;
use super::tree::{OpenLayers, grouped_items};
use crate::context::{Context, ShownMoment};
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use crate::widgets::columns::{Column, TableControl, TableState};
use crate::widgets::rows::rows_of;
use memlab_base::query::HeldMemory;
use memlab_report::export::rows::Rows;

/// Screen of the layers.
#[derive(Clone, Debug)]
pub struct LayersScreen {
    /// Order and cursor.
    pub table: TableState<LayerColumn>,
    pub(super) tree: OpenLayers,
    /// Ranges, shown in place of the layers.
    pub(super) ranges: RangeTable,
    pub(super) shows_ranges: bool,
}

impl Default for LayersScreen {
    fn default() -> Self {
        Self {
            table: TableState::new(LayerColumn::Now),
            tree: OpenLayers::default(),
            ranges: RangeTable::default(),
            shows_ranges: false,
        }
    }
}

impl ScreenState for LayersScreen {
    fn on_key(&mut self, key: KeyCode, context: &mut Context) {
        match key {
            KeyCode::Char('a') => self.shows_ranges = !self.shows_ranges,
            KeyCode::Char('l' | '+') if self.shows_ranges => self.ranges.set_open(true, context),
            KeyCode::Char('h' | '-') if self.shows_ranges => self.ranges.set_open(false, context),
            KeyCode::Char('z') if self.shows_ranges => self.ranges.toggle_all(context),
            KeyCode::Char('l' | '+') => self.set_open(true, context),
            KeyCode::Char('h' | '-') => self.set_open(false, context),
            KeyCode::Char('z') => self.tree.toggle_all(),
            _ => {}
        }
    }

    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        match self.shows_ranges {
            true => self.ranges.toggle(context),
            false => self.toggle(context),
        }
        None
    }

    fn table(&mut self) -> Option<&mut dyn TableControl> {
        if self.shows_ranges { Some(&mut self.ranges.table) } else { Some(&mut self.table) }
    }

    fn footer_keys(&self, context: &Context) -> FooterKeys {
        let mut first = footer_keys(&[("⏎", "open"), ("z", "all")]);
        if !self.shows_ranges {
            first.insert(1, ("H", "holders".to_owned()));
        }
        // Offers the ranges only if the program names some.
        if self.shows_ranges || context.device().is_some_and(|device| !device.ranges.is_empty()) {
            first.push(("a", if self.shows_ranges { "layers" } else { "ranges" }.to_owned()));
        }
        FooterKeys { first, ..FooterKeys::default() }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "Memory by layer: the tree of modules",
            keys: &[
                ("Enter, l  h", "open a module, close it"),
                ("H", "what keeps the memory of the layer alive; a running program is searched"),
                ("z", "open all, close all"),
                ("a", "memory by named range (memlab.annotate, NVTX), or by layer"),
            ],
        }
    }

    fn held_row(&self, context: &Context) -> Option<(HeldMemory, String)> {
        let items = self.items(context);
        let item = items.get(self.table.selected).filter(|_| !self.shows_ranges)?;
        let name = match item.root_name().filter(|_| item.is_root()) {
            Some(root) => format!("layer {root}"),
            None if item.key.1.is_none() => item.name().to_owned(),
            None => format!("layer {}", item.name()),
        };
        Some((item.held_memory()?, name))
    }

    fn rows(&self, context: &Context) -> Option<Rows> {
        if self.shows_ranges {
            return Some(self.ranges.rows(context));
        }
        let mut rows = rows_of::<LayerColumn>(&self.items(context), &["class"], |row| {
            (row.key.1.clone(), vec![row.class().into()])
        });
        if !context.has_gpu_time() {
            rows.remove(LayerColumn::GpuTime.title());
        }
        Some(rows)
    }
}

impl LayersScreen {
    /// Follows a change of the moment: a table sorted by the old moment's column is then sorted by the new one's.
    pub fn follow(&mut self, old: ShownMoment, new: ShownMoment) {
        self.table.follow(old, new);
        self.ranges.table.follow(old, new);
    }

    /// Rows: the tree, or with a filter the layers that pass it.
    pub fn items(&self, context: &Context) -> Vec<LayerItem> {
        self.tree.items(context, &|a, b| self.table.compare(a, b, context.moment))
    }

    /// Layers that pass the filter, each without those inside it. Those that differ only in a number are one row.
    pub fn flat_items(&self, context: &Context) -> Vec<LayerItem> {
        grouped_items(context, &|a, b| self.table.compare(a, b, context.moment))
    }

    /// Opens the row under the cursor, or closes it or its parent.
    fn set_open(&mut self, open: bool, context: &Context) {
        let items = self.items(context);
        self.table.selected = self.tree.set_open(open, &items, self.table.selected);
    }

    /// Opens the row under the cursor if it is closed, and closes it if it is open.
    fn toggle(&mut self, context: &Context) {
        if let Some(item) = self.items(context).get(self.table.selected) {
            self.tree.toggle(item);
        }
    }
}
