//! Draws the steps: the peak and the remainder of each, and the growth between two of them.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

use super::columns::StepColumn;
use super::comparison::{self, tint};
use super::item::StepItem;
use super::state::{StepsScreen, missing_columns};
use crate::context::Context;
use crate::widgets::columns::{Column, TableState};
use crate::widgets::gauge::Gauge;
use crate::widgets::pane::{Fact, fact, frame, put, put_right};
use crate::widgets::table::{self, Label, TableStyle};
use memlab_base::text;
use memlab_base::theme::Theme;
use memlab_units::format;

/// From this width on the comparison is beside the table, or else below it.
const SIDE_BY_SIDE_COLUMNS: u16 = 150;

impl StepsScreen {
    /// Draws the table and the comparison.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let rows = self.settled_items(context);
        let (table, comparison) = split(area, rows.len());
        draw_table(buffer, table, self, &rows, context);
        comparison::draw(buffer, comparison, self, context);
    }
}

fn split(area: Rect, rows: usize) -> (Rect, Rect) {
    let nothing = Rect { height: 0, ..area };
    if rows == 0 {
        (area, nothing)
    } else if area.width >= SIDE_BY_SIDE_COLUMNS {
        let left = area.width * 53 / 100;
        (Rect { width: left, ..area }, Rect { x: area.x + left, width: area.width - left, ..area })
    } else if area.height >= 12 {
        let upper = (area.height * 11 / 20).min((rows as u16).saturating_add(3));
        (Rect { height: upper, ..area }, Rect { y: area.y + upper, height: area.height - upper, ..area })
    } else {
        (area, nothing)
    }
}

fn draw_table(buffer: &mut Buffer, area: Rect, screen: &mut StepsScreen, rows: &[StepItem], context: &Context) {
    let mut state = screen.table;
    let inner = frame(buffer, area, "Steps", facts(context, rows.len()), &context.theme);
    if rows.is_empty() && context.filter.is_empty() {
        draw_none(buffer, inner, &context.theme);
        return;
    }
    let columns = StepColumn::shown(inner.width, &missing_columns(context));
    let style = TableStyle { context, columns: &columns, pane: None, has_focus: true };
    table::draw(buffer, inner, &style, &mut state, rows, |_| Label::default());
    screen.table = state;

    // The figures, then in the rest of the row: a mark, a bar, and signs.
    let mut x = inner.x;
    for column in columns.iter().filter(|column| column.columns() > 0) {
        if *column == StepColumn::Growth {
            draw_growth(buffer, Rect { x, width: column.columns(), ..inner }, &screen.table, rows, context);
        }
        x += column.columns() + 1;
    }
    let free = Rect { x: x.min(inner.right()), width: inner.right().saturating_sub(x), ..inner };
    if free.width >= 3 && inner.height > 0 {
        draw_bars(buffer, free, &screen.table, rows, context);
    }
}

/// The displayed page: each row with its position.
fn page(area: Rect, first: usize, rows: &[StepItem]) -> impl Iterator<Item = (u16, usize, &StepItem)> {
    (area.y + 1..area.bottom()).zip(first..).zip(rows.iter().skip(first)).map(|((y, index), row)| (y, index, row))
}

/// Makes growth conspicuous, unless it is small against the least bytes at the end of any step.
///
/// The bytes at this step's end are no reference: a leak makes them larger with every step.
fn draw_growth(buffer: &mut Buffer, area: Rect, table: &TableState<StepColumn>, rows: &[StepItem], context: &Context) {
    let steps = context.device().map_or(&[][..], |device| &device.steps);
    let least = steps.iter().map(|step| step.allocated_bytes_at_end).min().unwrap_or(0);
    for (y, _, row) in page(area, table.offset, rows).filter(|(_, index, _)| *index != table.selected) {
        let growth = row.growth.unwrap_or(0);
        let is_noise = growth.unsigned_abs() < least / 200;
        let style = if is_noise { context.theme.dim } else { tint(growth, &context.theme) };
        buffer.set_style(Rect { y, height: 1, ..area }, style);
    }
}

/// Signs of a row behind its bar, each with a word if it fits.
fn signs(row: &StepItem, theme: &Theme) -> Vec<(&'static str, &'static str, Style)> {
    let shown = if theme.glyphs.unicode { "◂" } else { "<" };
    let all = [
        (row.is_shown, shown, "shown", theme.key),
        (row.has_peak, theme.glyphs.peak, "peak", theme.accent),
        (row.oom_count > 0, theme.glyphs.oom, "out of memory", theme.bad),
    ];
    all.into_iter().filter(|(is, ..)| *is).map(|(_, sign, word, style)| (sign, word, style)).collect()
}

fn draw_bars(buffer: &mut Buffer, area: Rect, table: &TableState<StepColumn>, rows: &[StepItem], context: &Context) {
    let theme = &context.theme;
    let whole = rows.iter().map(|row| row.step.peak_allocated_bytes.max(row.step.allocated_bytes_at_end)).max();
    let whole = whole.unwrap_or(0).max(context.device().map_or(0, |device| device.totals.peak_allocated_bytes));
    let sign_columns = match area.width {
        ..10 => 1,
        10..36 => 4,
        _ => 16,
    };
    let bar = Rect { x: area.x + 2, width: area.width.saturating_sub(3 + sign_columns), height: 1, ..area };
    draw_legend(buffer, Rect { height: 1, ..bar }, whole, context);
    for (y, index, row) in page(area, table.offset, rows) {
        if row.is_marked {
            put(buffer, area.x, y, 1, theme.glyphs.dot, theme.key, theme);
        }
        let edges = [(row.step.allocated_bytes_at_end, 0), (row.step.peak_allocated_bytes, 1)];
        Gauge { edges: &edges, whole, rest: None }.draw_row(buffer, Rect { y, ..bar }, theme);
        let mut x = bar.right() + 1;
        for (sign, word, style) in signs(row, theme) {
            let style = if index == table.selected { theme.selected.patch(style) } else { style };
            let words = if sign_columns >= 16 { format!("{sign} {word}") } else { sign.to_owned() };
            let fits = x + text::width(&words) as u16 <= area.right();
            x += put(buffer, x, y, area.right().saturating_sub(x), if fits { &words } else { sign }, style, theme) + 1;
        }
    }
}

/// Draws the legend of the bars in the row of the headings, as far as it fits.
fn draw_legend(buffer: &mut Buffer, area: Rect, whole: u64, context: &Context) {
    let theme = &context.theme;
    let swatch = |band: usize| {
        let tint = if theme.is_mono() { Style::new() } else { Style::new().fg(theme.bands[band]) };
        Span::styled(if theme.is_mono() { theme.glyphs.bands[band] } else { theme.glyphs.swatch }, tint)
    };
    let scale = format::tick(whole);
    let scale_columns = text::width(&scale) as u16;
    if area.width >= 16 + scale_columns {
        let mut x = area.x;
        for (band, word) in [(0, " kept "), (1, " peak")] {
            let swatch = swatch(band);
            x += put(buffer, x, area.y, 1, &swatch.content, swatch.style, theme);
            x += put(buffer, x, area.y, 6, word, theme.dim, theme);
        }
    }
    if area.width >= scale_columns {
        put_right(buffer, area.right(), area.y, scale_columns, &scale, theme.dim, theme);
    }
}

fn facts(context: &Context, shown: usize) -> Vec<Fact> {
    let theme = &context.theme;
    let (Some(process), Some(device)) = (context.process(), context.device()) else { return Vec::new() };
    let mut facts = Vec::new();
    let steps = &device.steps;
    // An out-of-memory error in an unfinished step has no row.
    let is_open = |time: u64| device.step_at(time).is_none();
    if process.ooms.iter().any(|oom| oom.device == device.totals.index && is_open(oom.time)) {
        let after = steps.last().map_or_else(String::new, |last| format!(" after step {}", last.index));
        facts.push(fact(format!("{} out of memory{after}", theme.glyphs.oom), theme.bad));
    }
    if device.totals.peak_allocated_bytes > 0 {
        let peak = context.size(device.totals.peak_allocated_bytes);
        let at = format::step_during(device.totals.peak_step, process.steps_ended);
        facts.push(vec![
            Span::styled(format!("{} ", theme.glyphs.peak), theme.accent),
            Span::styled(format!("{peak} {at}"), theme.text),
        ]);
    }
    let count = if shown == steps.len() { shown.to_string() } else { format!("{shown} of {}", steps.len()) };
    facts.push(fact(count, theme.dim));
    facts
}

fn draw_none(buffer: &mut Buffer, area: Rect, theme: &Theme) {
    let lines = [
        ("no optimizer step has ended", theme.text),
        ("a step ends when a PyTorch optimizer's step() returns", theme.dim),
    ];
    for (y, (words, style)) in (area.y..area.bottom()).zip(lines) {
        put(buffer, area.x + 1, y, area.width.saturating_sub(2), words, style, theme);
    }
}
