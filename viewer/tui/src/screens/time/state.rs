//! State and keys of the GPU time screen.

use crossterm::event::KeyCode;

use super::copy_columns::CopyColumn;
use super::kernel_columns::KernelColumn;
use super::kernel_item::KernelItem;
use super::layer_columns::LayerTimeColumn;
use crate::context::Context;
use crate::screen::TimeTable;
use crate::screens::layers::{LayerItem, OpenLayers};
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use crate::widgets::columns::{Column, TableControl, TableState};
use crate::widgets::rows::rows_of;
use memlab_base::kernels::KernelKind;
use memlab_report::export::rows::Rows;

/// GPU time screen: three tables.
#[derive(Clone, Debug)]
pub struct TimeScreen {
    /// The table that the keys move.
    pub focus: TimeTable,
    /// Order and cursor of the layers.
    pub layers: TableState<LayerTimeColumn>,
    /// Order and cursor of the kernels.
    pub kernels: TableState<KernelColumn>,
    /// Order and cursor of the copies and fills.
    pub copies: TableState<CopyColumn>,
    tree: OpenLayers,
}

impl Default for TimeScreen {
    fn default() -> Self {
        Self {
            focus: TimeTable::Layers,
            layers: TableState::new(LayerTimeColumn::GpuTime),
            kernels: TableState::new(KernelColumn::GpuTime),
            copies: TableState::new(CopyColumn::GpuTime),
            tree: OpenLayers::default(),
        }
    }
}

impl ScreenState for TimeScreen {
    fn on_key(&mut self, key: KeyCode, context: &mut Context) {
        let opens = self.focus == TimeTable::Layers;
        match key {
            KeyCode::Char('c') => self.focus = self.focus.next(),
            KeyCode::Char('l' | '+') if opens => self.set_open(true, context),
            KeyCode::Char('h' | '-') if opens => self.set_open(false, context),
            KeyCode::Char('z') if opens => self.tree.toggle_all(),
            _ => {}
        }
    }

    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        if self.focus == TimeTable::Layers
            && let Some(item) = self.layer_items(context).get(self.layers.selected)
        {
            self.tree.toggle(item);
        }
        None
    }

    fn table(&mut self) -> Option<&mut dyn TableControl> {
        Some(match self.focus {
            TimeTable::Layers => &mut self.layers,
            TimeTable::Kernels => &mut self.kernels,
            TimeTable::Copies => &mut self.copies,
        })
    }

    fn footer_keys(&self, _context: &Context) -> FooterKeys {
        let mut first = footer_keys(&[("c", self.focus.next().title())]);
        if self.focus == TimeTable::Layers {
            first.extend(footer_keys(&[("⏎", "open"), ("z", "all")]));
        }
        FooterKeys { first, ..FooterKeys::default() }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "GPU time up to now",
            keys: &[
                ("c", "select the table of kernels, of copies, of layers; or click"),
                ("Enter, l  h", "open a module, close it"),
                ("z", "open all, close all"),
            ],
        }
    }

    /// The rows of the table that the keys move.
    fn rows(&self, context: &Context) -> Option<Rows> {
        Some(match self.focus {
            TimeTable::Layers => rows_of::<LayerTimeColumn>(&self.layer_items(context), &["class"], |row| {
                (row.key.1.clone(), vec![row.class().into()])
            }),
            TimeTable::Kernels => rows_of::<KernelColumn>(&self.kernel_items(context), &["whole name"], |row| {
                (Some(row.kernel.name.clone()), vec![row.kernel.whole_name.clone().into()])
            }),
            TimeTable::Copies => {
                rows_of::<CopyColumn>(&self.copy_items(context), &[], |row| (Some(row.kernel.name.clone()), Vec::new()))
            }
        })
    }
}

impl TimeScreen {
    /// Rows of the layers with GPU work.
    pub fn layer_items(&self, context: &Context) -> Vec<LayerItem> {
        let mut items = self.tree.items(context, &|a, b| self.layers.compare(a, b, context.moment));
        items.retain(|item| item.times.is_some_and(|(_, inclusive)| inclusive.totals.calls > 0));
        items
    }

    /// Kernels that pass the filter.
    pub fn kernel_items(&self, context: &Context) -> Vec<KernelItem> {
        items(context, &self.kernels, |kind| kind == KernelKind::Kernel)
    }

    /// Copies and fills that pass the filter.
    pub fn copy_items(&self, context: &Context) -> Vec<KernelItem> {
        items(context, &self.copies, |kind| kind != KernelKind::Kernel)
    }

    fn set_open(&mut self, open: bool, context: &Context) {
        let items = self.layer_items(context);
        self.layers.selected = self.tree.set_open(open, &items, self.layers.selected);
    }
}

/// Rows of one of the tables of GPU work.
fn items<C: Column<Item = KernelItem>>(
    context: &Context,
    table: &TableState<C>,
    belongs: impl Fn(KernelKind) -> bool,
) -> Vec<KernelItem> {
    let Some((device, times)) = context.device().and_then(|device| Some((device, device.times.as_ref()?))) else {
        return Vec::new();
    };
    let (device_nanoseconds, link_bytes_per_second) = (times.total.nanoseconds, device.totals.link_bytes_per_second);
    let mut items: Vec<KernelItem> = (times.kernels.iter())
        .filter(|kernel| belongs(kernel.kind))
        .map(|kernel| KernelItem { kernel: kernel.clone(), device_nanoseconds, link_bytes_per_second })
        .filter(|item| context.filter.passes(item))
        .collect();
    items.sort_by(|a, b| table.compare(a, b, context.moment));
    items
}
