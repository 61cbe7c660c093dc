//! Memory by Python line.

use memlab_trace::{Line, LineView};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::pane::{fact, frame, put};
use super::table::{self, Look};
use crate::app::{App, Column, Focus, LineColumn, Moment, NO_LINE};
use crate::format;
use crate::text::short_path;

/// The pane of the overview.
pub fn draw_top(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let columns = match (app.moment, area.width) {
        (Moment::Now, 56..) => &[LineColumn::Now, LineColumn::AtPeak][..],
        (Moment::Peak, 56..) => &[LineColumn::AtPeak, LineColumn::Now],
        (Moment::Now, _) => &[LineColumn::Now],
        (Moment::Peak, _) => &[LineColumn::AtPeak],
    };
    let focused = app.focus == Focus::Lines;
    draw_table(buffer, area, app, columns, focused);
}

/// The whole screen: the table, and the row under the cursor in full.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let columns: Vec<LineColumn> =
        LineColumn::ALL.iter().copied().filter(|column| column.shown_from() <= area.width).collect();
    let detail_rows = if area.height >= 12 { 4 } else { 0 };
    let table = Rect { height: area.height - detail_rows, ..area };
    draw_table(buffer, table, app, &columns, true);
    if detail_rows > 0 {
        draw_detail(buffer, Rect { y: table.bottom(), height: detail_rows, ..area }, app);
    }
}

fn draw_table(buffer: &mut Buffer, area: Rect, app: &mut App, columns: &[LineColumn], focused: bool) {
    let mut state = app.lines;
    let rows = app.sorted_lines();
    let all = app.device().map_or(0, |device| device.lines.len());
    let theme = &app.theme;
    let count = if rows.len() == all { all.to_string() } else { format!("{} of {all}", rows.len()) };
    let inner = frame(buffer, area, "Lines", vec![fact(count, theme.dim)], theme);
    let look = Look { theme, units: app.units, moment: app.moment, whole: whole(app), tint: theme.bands[0], focused };
    let directory = app.process().map(|process| process.header.directory.clone()).unwrap_or_default();
    table::draw(buffer, inner, &mut state, &rows, columns, &look, |row: &LineView| match &row.line {
        Some(line) => (place(line, &directory), line.function.to_string()),
        None => (NO_LINE.to_owned(), String::new()),
    });
    app.lines = state;
}

/// What the lines, and the layers, of the device shown sum to.
pub fn whole(app: &App) -> u64 {
    app.device().map_or(0, |device| match app.moment {
        Moment::Now => device.totals.allocated_bytes,
        Moment::Peak => device.totals.peak_allocated_bytes,
    })
}

fn draw_detail(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let rows = app.sorted_lines();
    let Some(row) = rows.get(app.lines.selected) else { return };
    let title = row.line.as_ref().map_or_else(|| NO_LINE.to_owned(), |line| line.function.to_string());
    let inner = frame(buffer, area, &title, Vec::new(), theme);
    let size = |bytes| format::bytes(bytes, app.units);
    let path = row.line.as_ref().map_or_else(
        || "allocated without a Python frame of yours: by a library's thread, or before Python was known".to_owned(),
        |line| place(line, ""),
    );
    put(buffer, inner.x + 1, inner.y, inner.width.saturating_sub(2), &path, theme.text, theme);
    let from_backward =
        |bytes: u64| if bytes == 0 { String::new() } else { format!(" ({} from backward)", size(bytes)) };
    let figures = format!(
        "now {} in {} blocks{}, at peak {}{}; {} allocations, {} each",
        size(row.live_bytes),
        format::grouped(row.live_blocks),
        from_backward(row.backward_bytes),
        size(row.live_bytes_at_peak),
        from_backward(row.backward_bytes_at_peak),
        format::grouped(row.allocations),
        size(row.allocated_bytes / row.allocations.max(1)),
    );
    put(buffer, inner.x + 1, inner.y + 1, inner.width.saturating_sub(2), &figures, theme.dim, theme);
}

/// A line as it is shown: `train.py:31`.
pub fn place(line: &Line, directory: &str) -> String {
    let file = short_path(&line.file, directory);
    line.line.map_or_else(|| file.to_owned(), |number| format!("{file}:{number}"))
}
