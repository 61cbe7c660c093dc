//! Draws the layers as a tree of modules. A warmer bar means more memory.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::columns::LayerColumn;
use super::item::LayerItem;
use super::state::LayersScreen;
use crate::context::{Context, HitTarget, ShownMoment};
use crate::screen::{OverviewTable, TablePane};
use crate::widgets::facts::gpu_time_words;
use crate::widgets::pane::{fact, frame, put};
use crate::widgets::table::{self, Label, TableStyle};
use memlab_base::layer_tree::Group;

impl LayersScreen {
    /// Draws the pane of the overview: the largest layers, flat.
    pub fn draw_pane(&mut self, buffer: &mut Buffer, area: Rect, context: &Context, has_focus: bool) {
        let columns = match (context.moment, area.width) {
            (ShownMoment::Peak, 56..) => &[LayerColumn::AtPeak, LayerColumn::Now][..],
            (_, 56..) => &[LayerColumn::Now, LayerColumn::AtPeak],
            (ShownMoment::Peak, _) => &[LayerColumn::AtPeak],
            _ => &[LayerColumn::Now],
        };
        context.hit_targets.put(area, HitTarget::Pane(TablePane::Overview(OverviewTable::Layers)));
        let rows = self.flat_items(context);
        self.draw_table(
            buffer,
            area,
            context,
            &rows,
            columns,
            (Some(TablePane::Overview(OverviewTable::Layers)), has_focus),
        );
    }

    /// Draws the whole screen: the tree, and details of the row under the cursor.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        if self.shows_ranges {
            self.ranges.draw(buffer, area, context);
            return;
        }
        let has_time = context.has_gpu_time();
        let columns = table::columns_with_gpu_time(area.width, has_time);
        let detail_rows = if area.height >= 12 { 5 + u16::from(has_time) } else { 0 };
        let place = Rect { height: area.height - detail_rows, ..area };
        let rows = self.items(context);
        self.draw_table(buffer, place, context, &rows, &columns, (None, true));
        if let (1.., Some(row)) = (detail_rows, rows.get(self.table.selected)) {
            draw_detail(buffer, Rect { y: place.bottom(), height: detail_rows, ..area }, context, row);
        }
    }

    fn draw_table(
        &mut self,
        buffer: &mut Buffer,
        area: Rect,
        context: &Context,
        rows: &[LayerItem],
        columns: &[LayerColumn],
        (pane, has_focus): (Option<TablePane>, bool),
    ) {
        let mut state = self.table;
        let all = context.device().map_or(0, |device| device.layers.len());
        let theme = &context.theme;
        let is_flat = pane.is_some() || !context.filter.is_empty();
        let count = if !is_flat || rows.len() == all { all.to_string() } else { format!("{} of {all}", rows.len()) };
        let counted = if is_flat { "" } else { "with inner layers" };
        let facts =
            vec![fact(counted, theme.dim), fact(count, theme.dim)].into_iter().filter(|fact| fact[0].width() > 0);
        let inner = frame(buffer, area, "Layers", facts.collect(), theme);
        let style = TableStyle { context, columns, pane, has_focus };
        table::draw(buffer, inner, &style, &mut state, rows, |row| label(row, context, is_flat));
        self.table = state;
    }
}

fn label(row: &LayerItem, context: &Context, is_flat: bool) -> Label {
    let name = if is_flat { row.name() } else { row.last_name() };
    Label {
        depth: row.depth,
        is_open: row.is_open,
        name: name.to_owned(),
        aside: row.aside(Group::words).into_owned(),
        tint: context.heat(row.bytes_at(context.moment)),
        style: None,
        is_layer: true,
    }
}

fn draw_detail(buffer: &mut Buffer, area: Rect, context: &Context, row: &LayerItem) {
    let theme = &context.theme;
    let inner = frame(buffer, area, row.name(), Vec::new(), theme);
    let is_outside = row.key.1.is_none();
    let class = if row.class().is_empty() { "part" } else { row.class() };
    let class = row.group.map_or_else(|| class.to_owned(), |group| format!("{class} {}", group.words()));
    let who = match row.root_name() {
        _ if is_outside => "allocated outside any module's forward".to_owned(),
        Some(root) if !row.is_root() => format!("{class} of {root}"),
        _ => format!("{class}, outermost"),
    };
    let held = |view: &memlab_trace::LayerView| context.live_and_peak(view.live_bytes, view.live_bytes_at_peak);
    let mut lines = vec![(format!("{who}: {}", held(&row.inclusive)), theme.text)];
    if row.is_open.is_some() {
        lines[0].0 += " with inner layers";
        lines.push((format!("alone: {}", held(&row.own)), theme.text));
    }
    if let Some(time) = row.time() {
        lines.push((format!("GPU: {}", gpu_time_words(&time)), theme.dim));
    }
    let own = row.figures();
    lines.push((
        format!(
            "maxima: parameters {}, gradients {}, optimizer {}, buffers {}, activations {}",
            context.size(own.parameter_bytes),
            context.size(own.gradient_bytes),
            context.size(own.optimizer_state_bytes),
            context.size(own.buffer_bytes),
            context.size(own.activation_bytes)
        ),
        theme.dim,
    ));
    for (y, (line, style)) in (inner.y..inner.bottom()).zip(lines) {
        put(buffer, inner.x + 1, y, inner.width.saturating_sub(2), &line, style, theme);
    }
}
