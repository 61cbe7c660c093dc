//! Memory by layer: the tree of modules. The bar is warmer the more a layer holds.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::lines::whole;
use super::pane::{fact, frame, put};
use super::table::{self, Label, Look};
use crate::app::{App, Focus, LayerColumn, LayerItem, Moment, Spot};
use crate::format;

/// The pane of the overview: the largest, flat.
pub fn draw_top(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let columns = match (app.moment, area.width) {
        (Moment::Peak, 56..) => &[LayerColumn::AtPeak, LayerColumn::Now][..],
        (_, 56..) => &[LayerColumn::Now, LayerColumn::AtPeak],
        (Moment::Peak, _) => &[LayerColumn::AtPeak],
        _ => &[LayerColumn::Now],
    };
    app.spots.put(area, Spot::Pane(Focus::Layers));
    let rows = app.flat_layer_items();
    draw_table(buffer, area, app, &rows, columns, Some(Focus::Layers));
}

/// The whole screen: the tree, and the row under the cursor in full.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let columns = table::columns_that_fit(area.width);
    let detail_rows = if area.height >= 12 { 5 } else { 0 };
    let place = Rect { height: area.height - detail_rows, ..area };
    let rows = app.layer_items();
    draw_table(buffer, place, app, &rows, &columns, None);
    if let (1.., Some(row)) = (detail_rows, rows.get(app.layers.table.selected)) {
        draw_detail(buffer, Rect { y: place.bottom(), height: detail_rows, ..area }, app, row);
    }
}

fn draw_table(
    buffer: &mut Buffer,
    area: Rect,
    app: &mut App,
    rows: &[LayerItem],
    columns: &[LayerColumn],
    pane: Option<Focus>,
) {
    let mut state = app.layers.table;
    let all = app.device().map_or(0, |device| device.layers.len());
    let theme = &app.theme;
    let is_flat = pane.is_some() || !app.filter.is_empty();
    let count = if !is_flat || rows.len() == all { all.to_string() } else { format!("{} of {all}", rows.len()) };
    let counted = match (is_flat, app.inclusive) {
        (true, _) => "",
        (false, true) => "with the layers inside",
        (false, false) => "open layers: their own",
    };
    let facts = vec![fact(counted, theme.dim), fact(count, theme.dim)].into_iter().filter(|fact| fact[0].width() > 0);
    let inner = frame(buffer, area, "Layers", facts.collect(), theme);
    let whole = whole(app);
    let look = Look { app, columns, pane };
    table::draw(buffer, inner, &look, &mut state, rows, |row| label(row, app, whole, is_flat));
    app.layers.table = state;
}

fn label(row: &LayerItem, app: &App, whole: u64, is_flat: bool) -> Label {
    let figures = row.figures();
    let bytes = if app.moment == Moment::Peak { figures.live_bytes_at_peak } else { figures.live_bytes };
    let share = if whole == 0 { 0.0 } else { bytes as f64 / whole as f64 };
    let name = if is_flat { row.name() } else { row.last_name() };
    Label {
        depth: row.depth,
        is_open: row.is_open,
        name: name.to_owned(),
        aside: row.class().to_owned(),
        share: Some(share),
        tint: app.theme.heat(share),
        style: None,
        is_layer: true,
    }
}

fn draw_detail(buffer: &mut Buffer, area: Rect, app: &App, row: &LayerItem) {
    let theme = &app.theme;
    let inner = frame(buffer, area, row.name(), Vec::new(), theme);
    let size = |bytes| format::bytes(bytes, app.units);
    let is_outside = row.key.1.is_none();
    let class = if row.class().is_empty() { "part" } else { row.class() };
    let who = match row.root_name() {
        _ if is_outside => "allocated while no module's forward ran".to_owned(),
        Some(root) if !row.is_root() => format!("{class} of {root}"),
        _ => format!("{class}, outermost"),
    };
    let then = if app.moment == Moment::Then { "then" } else { "now" };
    let held = |view: &memlab_trace::LayerView| {
        format!("{then} {}, at peak {}", size(view.live_bytes), size(view.live_bytes_at_peak))
    };
    let mut lines = vec![(format!("{who}: {}", held(&row.own)), theme.text)];
    if !is_outside {
        lines[0].0 += " of its own";
        lines.push((format!("with the layers inside it: {}", held(&row.inclusive)), theme.text));
    }
    let own = &row.own;
    lines.push((
        format!(
            "at most: parameters {}, gradients {}, optimizer {}, buffers {}, activations {}",
            size(own.parameter_bytes),
            size(own.gradient_bytes),
            size(own.optimizer_state_bytes),
            size(own.buffer_bytes),
            size(own.activation_bytes)
        ),
        theme.dim,
    ));
    for (y, (line, style)) in (inner.y..inner.bottom()).zip(lines) {
        put(buffer, inner.x + 1, y, inner.width.saturating_sub(2), &line, style, theme);
    }
}
