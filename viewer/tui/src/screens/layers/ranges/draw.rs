//! Draws the ranges: the tree, and details of the row under the cursor.

use memlab_trace::{Category, RangeView};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::RangeTable;
use super::item::RangeItem;
use crate::context::Context;
use crate::widgets::pane::{fact, frame, put};
use crate::widgets::table::{self, Label, TableStyle};
use memlab_base::category::category_names;
use memlab_base::text::clean;
use memlab_units::format;

impl RangeTable {
    /// Draws the whole screen.
    pub(in crate::screens::layers) fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let columns = table::columns_that_fit(area.width);
        let detail_rows = if area.height >= 12 { 5 } else { 0 };
        let place = Rect { height: area.height - detail_rows, ..area };
        let items = self.items(context);
        let theme = &context.theme;
        let is_flat = !context.filter.is_empty();
        let facts = vec![fact("with inner ranges", theme.dim), fact(items.len().to_string(), theme.dim)];
        let inner = frame(buffer, place, "Named ranges", facts, theme);
        if context.device().is_none_or(|device| device.ranges.is_empty()) {
            let words = "none: name a range with memlab.annotate(\"forward\") or NVTX";
            put(buffer, inner.x + 1, inner.y, inner.width.saturating_sub(2), words, theme.dim, theme);
            return;
        }
        let style = TableStyle { context, columns: &columns, pane: None, has_focus: true };
        table::draw(buffer, inner, &style, &mut self.table, &items, |item| label(item, context, is_flat));
        if let (1.., Some(item)) = (detail_rows, items.get(self.table.selected)) {
            draw_detail(buffer, Rect { y: place.bottom(), height: detail_rows, ..area }, context, item);
        }
    }
}

fn label(item: &RangeItem, context: &Context, is_flat: bool) -> Label {
    let last = item.path().last().filter(|_| !is_flat);
    Label {
        depth: item.depth,
        is_open: item.is_open,
        name: last.map_or_else(|| item.name(), |name| clean(name).into_owned()),
        tint: context.heat(item.bytes_at(context.moment)),
        is_layer: true,
        ..Label::default()
    }
}

fn draw_detail(buffer: &mut Buffer, area: Rect, context: &Context, item: &RangeItem) {
    let theme = &context.theme;
    let inner = frame(buffer, area, &item.name(), Vec::new(), theme);
    let held = |view: &RangeView| {
        format!(
            "{}, total {} ({} blocks)",
            context.live_and_peak(view.live_bytes, view.live_bytes_at_peak),
            context.size(view.allocated_bytes),
            format::grouped(view.allocations)
        )
    };
    let mut lines = vec![(format!("own memory: {}", held(&item.node.own)), theme.text)];
    if item.path().is_empty() {
        lines[0].0 = format!("allocated outside any range: {}", held(&item.node.own));
    }
    if item.is_open.is_some() {
        lines.push((format!("with inner ranges: {}", held(&item.node.inclusive)), theme.text));
    }
    let at_peak = item.node.inclusive.categories_at_peak;
    let mut held: Vec<(Category, u64)> =
        std::iter::zip(Category::ALL, at_peak).filter(|(_, bytes)| *bytes > 0).collect();
    held.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    if !held.is_empty() {
        let held: Vec<String> = held
            .iter()
            .map(|(category, bytes)| format!("{} {}", category_names(*category).0, context.size(*bytes)))
            .collect();
        lines.push((format!("at the peak: {}", held.join(", ")), theme.dim));
    }
    for (y, (line, style)) in (inner.y..inner.bottom()).zip(lines) {
        put(buffer, inner.x + 1, y, inner.width.saturating_sub(2), &line, style, theme);
    }
}
