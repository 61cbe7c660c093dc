//! Draws the GPU time screen: a summary, the layers beside the kernels, the copies below.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::kernel_item::KernelItem;
use super::state::TimeScreen;
use crate::context::{Context, HitTarget};
use crate::screen::{TablePane, TimeTable};
use crate::screens::layers::LayerItem;
use crate::widgets::columns::{Column, TableState};
use crate::widgets::facts::{flow, gpu_time_words, labelled};
use crate::widgets::pane::{Fact, fact, frame, put, wrapped};
use crate::widgets::table::{self, Label, TableStyle};
use memlab_base::text;
use memlab_follow::snapshot::GpuTimes;
use memlab_units::format;

/// Message without GPU time, with the command to record it.
const NOT_RECORDED: &str = "No GPU time was recorded: start the program with `memlab run --time`.";

/// From this width on layers and kernels are side by side, from this height on one below the other.
const SIDE_BY_SIDE_COLUMNS: u16 = 116;
const STACKED_ROWS: u16 = 34;

/// Maximum number of rows of copies beside other tables.
const MAX_COPY_ROWS: u16 = 6;

/// Rows of text about the row under the cursor.
const WORDS: u16 = 2;

/// Areas of the tables. Tables without an area are not drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PaneAreas {
    layers: Rect,
    kernels: Rect,
    copies: Rect,
}

fn areas(area: Rect, focus: TimeTable, copies: usize) -> PaneAreas {
    let copy_rows = (copies as u16).clamp(1, MAX_COPY_ROWS) + 3;
    let is_split = area.width >= SIDE_BY_SIDE_COLUMNS || area.height >= STACKED_ROWS;
    let below = if area.height >= copy_rows + 9 { copy_rows } else { 0 };
    let none = Rect::default();
    if focus == TimeTable::Copies && below == 0 {
        return PaneAreas { layers: none, kernels: none, copies: area };
    }
    let copies = Rect { y: area.bottom() - below, height: below, ..area };
    let above = Rect { height: area.height - below, ..area };
    if is_split {
        let (left, top) = (above.width * 11 / 20, above.height.div_ceil(2));
        let (layers, kernels) = if area.width >= SIDE_BY_SIDE_COLUMNS {
            (Rect { width: left, ..above }, Rect { x: above.x + left, width: above.width - left, ..above })
        } else {
            (Rect { height: top, ..above }, Rect { y: above.y + top, height: above.height - top, ..above })
        };
        return PaneAreas { layers, kernels, copies };
    }
    match focus {
        TimeTable::Kernels => PaneAreas { layers: none, kernels: above, copies },
        TimeTable::Layers | TimeTable::Copies => PaneAreas { layers: above, kernels: none, copies },
    }
}

impl TimeScreen {
    /// Draws the screen, or the message without GPU time.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let theme = &context.theme;
        let Some(times) = context.device().and_then(|device| device.times.as_ref()) else {
            let width = (text::width(NOT_RECORDED) as u16).min(area.width);
            let x = area.x + (area.width - width) / 2;
            put(buffer, x, area.y + area.height / 2, width, NOT_RECORDED, theme.dim, theme);
            return;
        };
        let top = Rect { x: area.x + 1, width: area.width - 2, height: area.height.min(1), ..area };
        flow(buffer, top, &summary(times, context), theme.glyphs.separator, theme);
        let (layers, kernels, copies) =
            (self.layer_items(context), self.kernel_items(context), self.copy_items(context));
        let rest = Rect { y: area.y + 1, height: area.height - 1, ..area };
        let tables = Rect { height: rest.height.saturating_sub(WORDS), ..rest };
        let areas = areas(tables, self.focus, copies.len());
        let focus = self.focus;
        let pane_style = |table: TimeTable| PaneStyle { context, table, has_focus: focus == table };
        let layer_label = |row: &LayerItem| layer_label(row, context);
        draw_pane(buffer, areas.layers, &pane_style(TimeTable::Layers), &mut self.layers, &layers, layer_label);
        let kernel_label = |row: &KernelItem| kernel_label(row, context);
        draw_pane(buffer, areas.kernels, &pane_style(TimeTable::Kernels), &mut self.kernels, &kernels, kernel_label);
        draw_pane(buffer, areas.copies, &pane_style(TimeTable::Copies), &mut self.copies, &copies, kernel_label);
        let told = match focus {
            TimeTable::Layers => layers.get(self.layers.selected).map(layer_words),
            TimeTable::Kernels => kernels.get(self.kernels.selected).map(|row| row.kernel.whole_name.clone()),
            TimeTable::Copies => copies.get(self.copies.selected).map(copy_words),
        };
        let below = Rect { y: tables.bottom(), height: rest.height - tables.height, ..rest };
        let lines = wrapped(&told.unwrap_or_default(), usize::from(below.width.saturating_sub(2)));
        for (y, line) in (below.y..below.bottom()).zip(lines) {
            put(buffer, below.x + 1, y, below.width.saturating_sub(2), &line, theme.dim, theme);
        }
    }
}

/// Shares of busy time, and total GPU time, in a row.
fn summary(times: &GpuTimes, context: &Context) -> Vec<Fact> {
    let theme = &context.theme;
    let mut facts = Vec::new();
    let whole = times.busy.total();
    if whole > 0 {
        facts.push(labelled("GPU busy", format::percent(times.busy.busy, whole), theme));
        facts.push(labelled("waits for the host", format::percent(times.busy.waiting, whole), theme));
    }
    facts.push(labelled("GPU time", format::time_spent(times.total.nanoseconds), theme));
    facts.push(fact(format!("{} kernels, copies and fills", format::grouped(times.total.calls)), theme.dim));
    facts.push(fact(format!("of {}", times.part), theme.dim));
    facts
}

/// Style of a table.
struct PaneStyle<'a> {
    context: &'a Context,
    table: TimeTable,
    has_focus: bool,
}

fn draw_pane<C: Column>(
    buffer: &mut Buffer,
    area: Rect,
    pane: &PaneStyle<'_>,
    state: &mut TableState<C>,
    rows: &[C::Item],
    label: impl Fn(&C::Item) -> Label,
) {
    if area.height < 3 {
        return;
    }
    let (context, theme) = (pane.context, &pane.context.theme);
    let title = match pane.table {
        TimeTable::Layers => "Layers",
        TimeTable::Kernels => "Kernels",
        TimeTable::Copies => "Copies and fills",
    };
    let inner = frame(buffer, area, title, vec![fact(rows.len().to_string(), theme.dim)], theme);
    let pane_of_table = TablePane::Time(pane.table);
    context.hit_targets.put(area, HitTarget::Pane(pane_of_table));
    let columns = table::columns_that_fit::<C>(inner.width);
    let style = TableStyle { context, columns: &columns, pane: Some(pane_of_table), has_focus: pane.has_focus };
    table::draw(buffer, inner, &style, state, rows, label);
}

fn layer_label(row: &LayerItem, context: &Context) -> Label {
    let time = row.time().unwrap_or_default();
    let share = share(time.totals.nanoseconds, time.device_nanoseconds);
    let is_flat = !context.filter.is_empty();
    Label {
        depth: row.depth,
        is_open: row.is_open,
        name: if is_flat { row.name() } else { row.last_name() }.to_owned(),
        aside: row.aside(|group| format!("×{}", group.count)).into_owned(),
        tint: context.theme.heat(share),
        style: None,
        is_layer: true,
    }
}

fn kernel_label(row: &KernelItem, context: &Context) -> Label {
    let share = share(row.totals().nanoseconds, row.device_nanoseconds);
    Label { name: row.kernel.name.clone(), tint: context.theme.heat(share), ..Label::default() }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn layer_words(row: &LayerItem) -> String {
    format!("{}: {}", row.name(), row.time().map(|time| gpu_time_words(&time)).unwrap_or_default())
}

fn copy_words(row: &KernelItem) -> String {
    let what = match row.kernel.name.as_str() {
        "pageable to device" => ": waits for the host; pin the tensors that are copied often (pin_memory=True)",
        "device to pageable" => ": the host waits for it",
        _ => "",
    };
    format!("{}{what}", row.kernel.whole_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_do_not_lie_over_each_other() {
        for width in [30, 80, 121, 300] {
            for height in 4..100 {
                for focus in [TimeTable::Layers, TimeTable::Kernels, TimeTable::Copies] {
                    let area = Rect::new(0, 3, width, height);
                    let PaneAreas { layers, kernels, copies } = areas(area, focus, 9);
                    let all = [layers, kernels, copies];
                    let covered: u32 = all.iter().map(|place| place.area()).sum();
                    assert_eq!(covered, area.area(), "{area:?} {all:?}");
                    assert!(all.iter().all(|place| place.area() == 0 || place.intersection(area) == *place));
                    let focused = match focus {
                        TimeTable::Layers => layers,
                        TimeTable::Kernels => kernels,
                        TimeTable::Copies => copies,
                    };
                    assert!(focused.area() > 0, "{area:?} {all:?}");
                }
            }
        }
    }
}
