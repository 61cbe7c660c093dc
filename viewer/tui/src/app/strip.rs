//! The run in one row with the displayed moment, for clicks and drags. It is below every screen without a chart.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::context::{Context, TimeScale};
use crate::widgets::pane::{put, put_right};
use memlab_base::resample::resample;
use memlab_units::format;

const HEIGHTS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII_HEIGHTS: [&str; 4] = [".", ":", "|", "#"];

/// Draws the strip.
pub fn draw(buffer: &mut Buffer, area: Rect, context: &Context) {
    let (Some(process), Some(device)) = (context.process(), context.device()) else { return };
    if area.height == 0 || area.width < 30 {
        return;
    }
    let theme = &context.theme;
    let until = process.until(context.now_unix_ns).max(1);
    let words = format::duration(until);
    let right = words.chars().count() as u16 + 2;
    put(buffer, area.x + 1, area.y, 2, "0", theme.dim, theme);
    put_right(buffer, area.right() - 1, area.y, right, &words, theme.dim, theme);
    let plot = Rect { x: area.x + 3, width: area.width - 3 - right, ..area };
    let width = until.div_ceil(u64::from(plot.width)).max(1);
    let scale = TimeScale::even(plot.x, 0, width, plot.width);
    let columns = resample(&device.timeline, &scale.edges);
    context.hit_targets.put_time(plot, scale);
    let most = columns.iter().map(|column| column.most()).max().unwrap_or(0).max(1);
    let heights: &[&str] = if theme.glyphs.unicode { &HEIGHTS } else { &ASCII_HEIGHTS };
    let style = if theme.is_mono() { Style::new() } else { Style::new().fg(theme.bands[1]) };
    for (x, column) in (plot.x..plot.right()).zip(&columns) {
        let share = column.most() as f64 / most as f64;
        let height = (share * (heights.len() - 1) as f64).round() as usize;
        put(buffer, x, area.y, 1, heights[height], style, theme);
    }
    let Some(time) = context.moment_time() else { return };
    let x = plot.x + (time / width).min(u64::from(plot.width - 1)) as u16;
    if let Some(cell) = buffer.cell_mut((x, area.y)) {
        cell.set_style(theme.selected.patch(theme.accent));
        if theme.is_mono() {
            cell.set_symbol(if theme.glyphs.unicode { "┃" } else { "!" });
        }
    }
}
