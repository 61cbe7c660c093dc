//! Memory over time: allocated memory at the bottom, reserved memory above it, and the device's memory in use on top.
//!
//! A column is darker between the minimum and the maximum of its allocated memory.

mod bands;
mod by_category;
mod scale;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::Span;

use self::bands::Bands;
use self::scale::{Axis, byte_axis, column_width, time_step};
use crate::context::{ChartWindow, Context, ShownMoment, TimeScale};
use crate::widgets::pane::{Fact, fact, frame, put, put_right};
use memlab_base::resample::resample;
use memlab_base::theme::Theme;
use memlab_follow::snapshot::{DeviceSnapshot, ProcessSnapshot};
use memlab_units::format;

/// Upper edges of bands in eighths of a cell. No cell has two edges, because it shows only two colours.
///
/// A band that begins and ends in one cell is drawn up to that cell's upper edge.
fn apart(edges: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut below = 0;
    let up = |edge: usize| {
        let edge = edge.max(below);
        let shares_its_cell = edge > below && below % 8 != 0 && edge <= below.next_multiple_of(8);
        below = if shares_its_cell { edge.next_multiple_of(8) } else { edge };
        below
    };
    edges.map(up).collect()
}

/// Draws the pane.
pub fn draw(buffer: &mut Buffer, area: Rect, context: &Context, by_category: bool) {
    let (Some(process), Some(device)) = (context.process(), context.device()) else { return };
    let inner =
        frame(buffer, area, &title(context), legend(context, device, area.width < 112, by_category), &context.theme);
    if inner.height < 3 || inner.width < 20 {
        return;
    }
    let plot = Plot::new(inner, context, process, device, by_category);
    context.hit_targets.put_time(Rect { height: inner.height, ..plot.area }, plot.scale.clone());
    plot.draw_bands(buffer);
    plot.draw_axes(buffer, device);
    plot.draw_marks(buffer, process, device);
    if let Some(time) = context.cursor_time() {
        plot.draw_cursor(buffer, time);
    }
}

fn title(context: &Context) -> String {
    let has_steps = context.chart_by_step && context.device().is_some_and(|device| !device.steps.is_empty());
    title_of_window(context) + if has_steps { ", by step" } else { "" }
}

/// Ends of the steps in a span of time, with its start before and the end of the run after them; empty without steps.
fn step_knots(device: &DeviceSnapshot, span: Option<(u64, u64)>, end: u64) -> Vec<u64> {
    let (from, to) = span.map_or((0, end), |(from, to)| (from, to.min(end)));
    let inside = device.steps.iter().map(|step| step.end_time).filter(|time| (from + 1..to).contains(time));
    let mut knots: Vec<u64> = std::iter::once(from).chain(inside).collect();
    if knots.len() > 1 {
        knots.push(to);
        knots.dedup();
    }
    knots
}

fn title_of_window(context: &Context) -> String {
    match context.window {
        ChartWindow::Run => "Memory".to_owned(),
        ChartWindow::Last(300) => "Memory, last 5 min".to_owned(),
        ChartWindow::Last(60) => "Memory, last minute".to_owned(),
        ChartWindow::Last(seconds) => {
            format!("Memory, last {}", format::duration(seconds.saturating_mul(1_000_000_000)))
        }
        ChartWindow::Around(None, length) => format!("Memory, last {}", format::duration(length)),
        ChartWindow::Around(_, length) => format!("Memory, {} around the moment", format::duration(length)),
    }
}

/// The peak, and the colours of the bands with their figures; `short`: abbreviated.
fn legend(context: &Context, device: &DeviceSnapshot, short: bool, by_category: bool) -> Vec<Fact> {
    let theme = &context.theme;
    let totals = &device.totals;
    // Without PyTorch nothing is allocated: the peak is then the maximum in use.
    let (peak_bytes, of) = match totals.peak_allocated_bytes {
        0 => (totals.peak_used_bytes, " in use"),
        bytes => (bytes, ""),
    };
    let mut peak = format!("{}{of} at {}", context.size(peak_bytes), format::duration(totals.peak_time));
    if !short {
        peak = format!("peak {peak}");
        let steps = context.process().map_or(0, |process| process.steps_ended);
        if !device.steps.is_empty() {
            peak += &format!(", {}", format::step_during(totals.peak_step, steps));
        }
    }
    let mut facts =
        vec![vec![Span::styled(format!("{} ", theme.glyphs.peak), theme.accent), Span::styled(peak, theme.text)]];
    let (allocated, reserved, used) = match context.moment {
        ShownMoment::Now | ShownMoment::Cursor => (totals.allocated_bytes, totals.reserved_bytes, totals.used_bytes),
        ShownMoment::Peak => (totals.peak_allocated_bytes, totals.reserved_bytes_at_peak, totals.used_bytes_at_peak),
    };
    let names = if short { ["in use", "resv", "alloc"] } else { ["in use", "reserved", "allocated"] };
    if by_category {
        facts.push(fact("by category", theme.dim));
        return facts;
    }
    for (band, name, bytes) in [(3, names[0], used), (2, names[1], reserved), (0, names[2], allocated)] {
        let swatch = if theme.is_mono() { theme.glyphs.bands[band] } else { theme.glyphs.swatch };
        let tint = if theme.is_mono() { Style::new() } else { Style::new().fg(theme.bands[band]) };
        let mut entry = fact(format!("{swatch} "), tint);
        entry.extend([Span::styled(format!("{name} "), theme.dim), Span::styled(context.size(bytes), theme.text)]);
        facts.push(entry);
    }
    facts
}

struct Plot<'a> {
    theme: &'a Theme,
    area: Rect,
    axis: Axis,
    left: u16,
    scale: TimeScale,
    /// Length of a column in nanoseconds; `None`: columns of steps, of different lengths.
    column_width: Option<u64>,
    /// Bands of each column.
    bands: Bands,
    /// Number of columns up to now; the rest is the future.
    past: usize,
}

const TOP_EIGHTHS: [&str; 8] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇"];

impl<'a> Plot<'a> {
    fn new(
        inner: Rect,
        context: &'a Context,
        process: &ProcessSnapshot,
        device: &DeviceSnapshot,
        by_category: bool,
    ) -> Self {
        // A label has up to eight characters (`79.2 GiB`); cut, it reads as another figure.
        let left = if inner.width < 40 { 9 } else { 10 };
        let area = Rect { x: inner.x + left, width: inner.width - left, height: inner.height - 1, ..inner };
        let end = process.until(context.now_unix_ns).max(1);
        let knots = if context.chart_by_step { step_knots(device, context.chart_span(), end) } else { Vec::new() };
        let (scale, column_width) = match (context.chart_span(), knots.len()) {
            (_, 2..) => (TimeScale::of_intervals(area.x, &knots, area.width), None),
            (Some((from, to)), _) => {
                let width = (to - from).div_ceil(u64::from(area.width)).max(1);
                // Columns start at multiples of their width, so that they do not flicker while they move.
                let start = (to / width + 1).saturating_sub(u64::from(area.width)).saturating_mul(width);
                (TimeScale::even(area.x, start, width, area.width), Some(width))
            }
            (None, _) => {
                let width = column_width(end, area.width, !process.state.is_over());
                (TimeScale::even(area.x, 0, width, area.width), Some(width))
            }
        };
        let columns = resample(&device.timeline, &scale.edges);
        let bands = match by_category {
            true => by_category::bands(&device.timeline.categories, &scale.edges, &columns, &context.theme),
            false => bands::totals(&columns, &context.theme),
        };
        let past = scale.index_of(end).map_or(0, |index| index + 1).min(columns.len());
        let most = columns[..past].iter().map(|column| column.edges()[3]).max().unwrap_or(0);
        let axis = byte_axis(most, device.totals.total_bytes, area.height);
        Self { theme: &context.theme, area, axis, left, scale, column_width, bands, past }
    }

    /// Height of `bytes` in eighths of a row.
    fn height(&self, bytes: u64) -> usize {
        let eighths = usize::from(self.area.height) * 8;
        let height = (bytes as f64 / self.axis.top.max(1) as f64 * eighths as f64).round() as usize;
        height.clamp(usize::from(bytes > 0), eighths)
    }

    fn column_of(&self, time: u64) -> Option<u16> {
        let (index, columns) = (self.scale.index_of(time)?, self.scale.columns());
        // The end of the axis belongs to its last column.
        let column = if self.scale.edges.last() == Some(&time) { columns.saturating_sub(1) } else { index };
        (column < self.past.min(columns)).then_some(self.area.x + column as u16)
    }

    fn row_of(&self, bytes: u64) -> u16 {
        let rows_below = (self.height(bytes).saturating_sub(1) / 8) as u16;
        self.area.bottom().saturating_sub(1).saturating_sub(rows_below)
    }

    fn draw_bands(&self, buffer: &mut Buffer) {
        for (index, edges) in self.bands.edges[..self.past].iter().enumerate() {
            let edges = apart(edges.iter().map(|edge| self.height(*edge)));
            let x = self.area.x + index as u16;
            for row in 0..self.area.height {
                let y = self.area.bottom() - 1 - row;
                let ground = usize::from(row) * 8;
                let band_at = |eighth: usize| edges.iter().position(|edge| ground + eighth < *edge);
                let Some(cell) = buffer.cell_mut((x, y)) else { continue };
                if self.theme.is_mono() {
                    if let Some(band) = band_at(3) {
                        cell.set_symbol(self.bands.styles[band].1);
                    }
                    continue;
                }
                let Some(low) = band_at(0) else { continue };
                let split = (1..8).find(|eighth| band_at(*eighth) != Some(low));
                match split {
                    None => {
                        cell.set_symbol(" ").set_bg(self.bands.styles[low].0);
                    }
                    Some(split) if self.theme.glyphs.unicode => {
                        let ground = self.theme.text.bg.unwrap_or(Color::Reset);
                        cell.set_symbol(TOP_EIGHTHS[split]).set_fg(self.bands.styles[low].0);
                        cell.set_bg(band_at(7).map_or(ground, |high| self.bands.styles[high].0));
                    }
                    Some(_) => {
                        if let Some(band) = band_at(4) {
                            cell.set_symbol(" ").set_bg(self.bands.styles[band].0);
                        }
                    }
                }
            }
        }
    }

    fn draw_axes(&self, buffer: &mut Buffer, device: &DeviceSnapshot) {
        let theme = self.theme;
        let line = if theme.glyphs.unicode { "┈" } else { "-" };
        let mut above = None;
        for tick in &self.axis.ticks {
            let y = match *tick {
                0 => self.area.bottom() - 1,
                // A tick is at the lower edge of the row above it.
                tick => {
                    let rows = (self.height(tick) / 8) as u16;
                    self.area.bottom() - rows.clamp(1, self.area.height)
                }
            };
            if above.is_some_and(|above| y <= above) {
                continue;
            }
            above = Some(y);
            put_right(buffer, self.area.x - 1, y, self.left - 1, &format::tick(*tick), theme.dim, theme);
            if *tick == 0 {
                continue;
            }
            for x in self.area.x..self.area.right() {
                let Some(cell) = buffer.cell_mut((x, y)) else { continue };
                if cell.symbol() == " " && cell.bg == theme.text.bg.unwrap_or(Color::Reset) {
                    cell.set_symbol(line).set_style(theme.border);
                }
            }
        }
        match self.column_width {
            Some(width) => self.draw_times(buffer, width),
            None => self.draw_steps(buffer, device),
        }
    }

    /// Draws the numbers of steps at their starts, as far as they have room.
    fn draw_steps(&self, buffer: &mut Buffer, device: &DeviceSnapshot) {
        let (y, mut free_from) = (self.area.bottom(), self.area.x);
        let starts = std::iter::once(0).chain(device.steps.iter().map(|step| step.end_time));
        for (start, step) in starts.zip(&device.steps) {
            let Some(x) = self.column_of(start).filter(|x| *x >= free_from) else { continue };
            let words = format!("step {}", step.index);
            let room = self.area.right().saturating_sub(x);
            if words.len() as u16 > room {
                break;
            }
            put(buffer, x, y, room, &words, self.theme.dim, self.theme);
            free_from = x + words.len() as u16 + 2;
        }
    }

    fn draw_times(&self, buffer: &mut Buffer, column_width: u64) {
        let theme = self.theme;
        let y = self.area.bottom();
        let step = time_step(column_width, 14);
        let (start, end) = (self.scale.edges[0], self.scale.edges[self.scale.columns()]);
        let mut time = start.div_ceil(step).saturating_mul(step);
        while time < end {
            let x = self.area.x + ((time - start) / column_width) as u16;
            let words = format::moment(time, step);
            if x + words.len() as u16 <= self.area.right() {
                put(buffer, x, y, self.area.right() - x, &words, theme.dim, theme);
            }
            let Some(next) = time.checked_add(step) else { break };
            time = next;
        }
    }

    /// Draws a line through the chart at the displayed moment.
    fn draw_cursor(&self, buffer: &mut Buffer, time: u64) {
        let Some(x) = self.column_of(time) else { return };
        let line = if self.theme.glyphs.unicode { "│" } else { "|" };
        for y in self.area.y..self.area.bottom() {
            if let Some(cell) = buffer.cell_mut((x, y)) {
                let ground = cell.bg;
                cell.set_symbol(line).set_style(self.theme.title).set_bg(ground);
            }
        }
    }

    fn draw_marks(&self, buffer: &mut Buffer, process: &ProcessSnapshot, device: &DeviceSnapshot) {
        let theme = self.theme;
        let mut mark = |x: u16, y: u16, glyph: &str, style: Style| {
            if let Some(cell) = buffer.cell_mut((x, y)) {
                let ground = cell.bg;
                cell.set_symbol(glyph).set_style(style).set_bg(ground);
            }
        };
        if device.totals.peak_allocated_bytes > 0
            && let Some(x) = self.column_of(device.totals.peak_time)
        {
            let y = self.row_of(device.totals.peak_allocated_bytes).saturating_sub(1).max(self.area.y);
            mark(x, y, theme.glyphs.peak, theme.title);
        }
        for oom in process.ooms.iter().filter(|oom| oom.device == device.totals.index) {
            if let Some(x) = self.column_of(oom.time) {
                mark(x, self.area.y, theme.glyphs.oom, theme.bad);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_band_of_a_column_is_visible() {
        // GIVEN bands that begin and end in one cell, others that do not, and one of no height
        assert_eq!(apart([18, 20, 23].into_iter()), [18, 24, 24]);
        assert_eq!(apart([18, 20, 25].into_iter()), [18, 24, 25]);
        assert_eq!(apart([16, 20, 23].into_iter()), [16, 20, 24]);
        assert_eq!(apart([5, 5, 5].into_iter()), [5, 5, 5]);
        assert_eq!(apart([3, 12, 30].into_iter()), [3, 12, 30]);
        // THEN no cell has two edges inside
        for (a, b, c) in (0..20).flat_map(|a| (a..20).flat_map(move |b| (b..20).map(move |c| (a, b, c)))) {
            let edges = apart([a, b, c].into_iter());
            let inside: Vec<usize> = edges.iter().filter(|edge| *edge % 8 != 0).map(|edge| edge / 8).collect();
            let mut cells = inside.clone();
            cells.dedup();
            let mut distinct = edges.clone();
            distinct.dedup();
            assert!(cells.len() == inside.len() || distinct.len() < edges.len(), "{a} {b} {c}: {edges:?}");
        }
    }
}
