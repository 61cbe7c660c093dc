//! Memory by layer.

use memlab_trace::LayerView;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::lines::whole;
use super::pane::{fact, frame, put};
use super::table::{self, Look};
use crate::app::{App, Column, Focus, LayerColumn, Moment, NO_LAYER};
use crate::format;

/// The pane of the overview.
pub fn draw_top(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let columns = match (app.moment, area.width) {
        (Moment::Now, 56..) => &[LayerColumn::Now, LayerColumn::AtPeak][..],
        (Moment::Peak, 56..) => &[LayerColumn::AtPeak, LayerColumn::Now],
        (Moment::Now, _) => &[LayerColumn::Now],
        (Moment::Peak, _) => &[LayerColumn::AtPeak],
    };
    let focused = app.focus == Focus::Layers;
    draw_table(buffer, area, app, columns, focused);
}

/// The whole screen: the table, and the row under the cursor in full.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let columns: Vec<LayerColumn> =
        LayerColumn::ALL.iter().copied().filter(|column| column.shown_from() <= area.width).collect();
    let detail_rows = if area.height >= 12 { 4 } else { 0 };
    let table = Rect { height: area.height - detail_rows, ..area };
    draw_table(buffer, table, app, &columns, true);
    if detail_rows > 0 {
        draw_detail(buffer, Rect { y: table.bottom(), height: detail_rows, ..area }, app);
    }
}

fn draw_table(buffer: &mut Buffer, area: Rect, app: &mut App, columns: &[LayerColumn], focused: bool) {
    let mut state = app.layers;
    let rows = app.sorted_layers();
    let all = app.device().map_or(0, |device| device.layers.len());
    let theme = &app.theme;
    let count = if rows.len() == all { all.to_string() } else { format!("{} of {all}", rows.len()) };
    let inner = frame(buffer, area, "Layers", vec![fact(count, theme.dim)], theme);
    let look = Look {
        theme,
        units: app.units,
        moment: app.moment,
        whole: whole(app),
        tint: theme.category(memlab_trace::Category::OptimizerState),
        focused,
    };
    table::draw(buffer, inner, &mut state, &rows, columns, &look, |row: &LayerView| {
        (name(row), row.class.as_deref().unwrap_or_default().to_owned())
    });
    app.layers = state;
}

/// A layer as it is shown; the outermost module by its class.
fn name(row: &LayerView) -> String {
    match row.name.as_deref() {
        None => NO_LAYER.to_owned(),
        Some("") => "(outermost)".to_owned(),
        Some(name) => name.to_owned(),
    }
}

fn draw_detail(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let rows = app.sorted_layers();
    let Some(row) = rows.get(app.layers.selected) else { return };
    let inner = frame(buffer, area, &name(row), Vec::new(), theme);
    let size = |bytes| format::bytes(bytes, app.units);
    let class = row.class.as_deref().unwrap_or("unknown class");
    let root = row.root_class.as_deref().map(|root| format!(" of {root}")).unwrap_or_default();
    let who = if row.name.is_none() {
        "allocated while no module's forward ran".to_owned()
    } else {
        format!("{class}{root}")
    };
    let held = format!(
        "{who}: now {}, at peak {}{}",
        size(row.live_bytes),
        size(row.live_bytes_at_peak),
        if row.name.is_none() { "" } else { "; its own, without the layers inside it" }
    );
    put(buffer, inner.x + 1, inner.y, inner.width.saturating_sub(2), &held, theme.text, theme);
    let most = format!(
        "at most: parameters {}, gradients {}, optimizer {}, buffers {}, activations {}",
        size(row.parameter_bytes),
        size(row.gradient_bytes),
        size(row.optimizer_state_bytes),
        size(row.buffer_bytes),
        size(row.activation_bytes)
    );
    put(buffer, inner.x + 1, inner.y + 1, inner.width.saturating_sub(2), &most, theme.dim, theme);
}
