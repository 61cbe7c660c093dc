//! Tables: headings, rows, the cursor and the rows' bars. The largest row has the longest bar.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::columns::{Column, GPU_TIME_COLUMNS, TableState};
use super::pane::{bar, put, put_right};
use crate::context::{Context, HitTarget, ShownMoment};
use crate::screen::TablePane;
use memlab_base::text;
use memlab_base::theme::Theme;

/// Width of a bar: the names come first.
fn bar_width(width: u16) -> u16 {
    (width / 12).clamp(4, 16)
}

/// Appearance of a row beside its figures.
#[derive(Clone, Debug, Default)]
pub struct Label {
    /// Level of indentation.
    pub depth: u16,
    /// True if the row is open; `None`: the row has no children.
    pub is_open: Option<bool>,
    /// Name.
    pub name: String,
    /// Less important text after the name.
    pub aside: String,
    /// Colour of the bar.
    pub tint: Color,
    /// Style of the name, if not the default.
    pub style: Option<Style>,
    /// True for the name of a layer, which is cut in the middle.
    pub is_layer: bool,
}

/// Style of a table.
pub struct TableStyle<'a, C> {
    /// State shared by all screens.
    pub context: &'a Context,
    /// The columns to show.
    pub columns: &'a [C],
    /// Its pane beside others; `None`: the table of a screen.
    pub pane: Option<TablePane>,
    /// True if the cursor is shown.
    pub has_focus: bool,
}

/// Draws a page of `rows`: the figures of the columns, a bar, and the label.
pub fn draw<C: Column>(
    buffer: &mut Buffer,
    area: Rect,
    style: &TableStyle<'_, C>,
    state: &mut TableState<C>,
    rows: &[C::Item],
    label: impl Fn(&C::Item) -> Label,
) {
    if area.height == 0 || area.width < 12 {
        return;
    }
    let (context, theme) = (style.context, &style.context.theme);
    let is_shown = |column: &C| column.columns() > 0 && !is_empty_end(*column, rows, context);
    let shown: Vec<C> = style.columns.iter().copied().filter(is_shown).collect();
    let page = usize::from(area.height - 1);
    state.settle(rows.len(), page);
    let labels: Vec<Label> = rows.iter().skip(state.offset).take(page).map(label).collect();
    let largest = rows.iter().filter_map(|row| C::bar(row, context.moment)).max();
    let has_bars = area.width >= 44 && largest.is_some();
    let bar_columns = if has_bars { bar_width(area.width) } else { 0 };
    let figures: u16 = shown.iter().map(|column| column.columns() + 1).sum();
    let bar_x = area.x + figures;
    let name_x = bar_x + bar_columns + u16::from(has_bars);
    // If some rows open, the names of the others are aligned with theirs.
    let sign_columns = if labels.iter().any(|label| label.is_open.is_some()) { 2 } else { 0 };
    draw_headings(buffer, area, style, state, &shown, name_x);

    for (index, label) in labels.iter().enumerate() {
        let row = state.offset + index;
        let y = area.y + 1 + index as u16;
        let line = Rect { y, height: 1, ..area };
        context.hit_targets.put(line, style.pane.map_or(HitTarget::Row(row), |pane| HitTarget::PaneRow(pane, row)));
        let mut x = area.x;
        for column in &shown {
            let sorted = *column == state.sort;
            let style = if sorted { theme.title.remove_modifier(Modifier::BOLD) } else { theme.text };
            let text = column.text(&rows[row], context.units);
            put_right(buffer, x + column.columns(), y, column.columns(), &text, style, theme);
            x += column.columns() + 1;
        }
        let tint = if theme.is_mono() { Style::new() } else { Style::new().fg(label.tint) };
        if let (true, Some(amount)) = (has_bars, C::bar(&rows[row], context.moment)) {
            let drawn = bar(amount as f64 / largest.unwrap_or(0).max(1) as f64, bar_columns, theme.glyphs.unicode);
            put(buffer, bar_x, y, bar_columns, &drawn, tint, theme);
        }
        draw_label(buffer, (name_x, area.right()), y, label, sign_columns, theme);
        if style.has_focus && row == state.selected {
            buffer.set_style(line, theme.selected);
            if has_bars && !theme.is_mono() {
                // The bar keeps its colour.
                buffer.set_style(Rect { x: bar_x, y, width: bar_columns, height: 1 }, tint);
            }
        }
    }
    if rows.is_empty() {
        put(buffer, area.x, area.y + 1, area.width, "nothing here", theme.dim, theme);
    }
}

/// True for the memory at the end of an ended run that freed all: it is left out beside the memory at the peak.
fn is_empty_end<C: Column>(column: C, rows: &[C::Item], context: &Context) -> bool {
    context.moment == ShownMoment::Peak
        && C::of_moment(ShownMoment::Now) == Some(column)
        && context.process().is_some_and(|process| process.state.is_over())
        && rows.iter().all(|row| column.figure(row) == Some(0.0))
}

/// Columns that fit a table of this width.
pub fn columns_that_fit<C: Column>(width: u16) -> Vec<C> {
    columns_with_gpu_time(width, false)
}

/// Columns that fit a table of this width. GPU time, if the table has it, displaces others.
pub fn columns_with_gpu_time<C: Column>(width: u16, has_gpu_time: bool) -> Vec<C> {
    let fits = |column: &C| match column.shown_from() {
        from if Some(*column) == C::GPU_TIME => has_gpu_time && from <= width,
        from @ 1.. if has_gpu_time => from + GPU_TIME_COLUMNS < width,
        from => from <= width,
    };
    C::ALL.iter().copied().filter(fits).collect()
}

fn draw_headings<C: Column>(
    buffer: &mut Buffer,
    area: Rect,
    style: &TableStyle<'_, C>,
    state: &TableState<C>,
    shown: &[C],
    name_x: u16,
) {
    let (context, theme, pane) = (style.context, &style.context.theme, style.pane);
    let heading = |column: C| {
        let arrow = if state.ascending { theme.glyphs.ascending } else { theme.glyphs.descending };
        let is_latest = C::of_moment(ShownMoment::Cursor) == Some(column);
        let title = if is_latest { context.live_moment() } else { column.title() };
        if column == state.sort { (format!("{arrow}{title}"), theme.accent) } else { (title.to_owned(), theme.dim) }
    };
    let place = |column: C| C::ALL.iter().position(|other| *other == column).unwrap_or(0);
    let mut x = area.x;
    for column in shown {
        let (words, style) = heading(*column);
        let width = column.columns();
        put_right(buffer, x + width, area.y, width, &words, style, theme);
        context.hit_targets.put(Rect { x, width, height: 1, ..area }, HitTarget::Heading(pane, place(*column)));
        x += width + 1;
    }
    for column in C::ALL.iter().filter(|column| column.columns() == 0) {
        let (words, style) = heading(*column);
        let width = area.right().saturating_sub(name_x);
        put(buffer, name_x, area.y, width, &words, style, theme);
        context.hit_targets.put(Rect { x: name_x, width, height: 1, ..area }, HitTarget::Heading(pane, place(*column)));
    }
}

/// Draws the name, cut on its left, or in the middle for a layer; the aside gets the rest.
fn draw_label(buffer: &mut Buffer, (x, right): (u16, u16), y: u16, label: &Label, sign_columns: u16, theme: &Theme) {
    let room = right.saturating_sub(x);
    let indent = (label.depth * 2).min(room / 3);
    let (open, closed) = if theme.glyphs.unicode { ("▾ ", "▸ ") } else { ("- ", "+ ") };
    let sign = label.is_open.map(|is_open| if is_open { open } else { closed });
    let (x, room) = (x + indent, room - indent);
    if let Some(sign) = sign {
        put(buffer, x, y, room, sign, theme.key, theme);
    }
    let sign_columns = sign_columns.min(room);
    let (x, room) = (x + sign_columns, room - sign_columns);
    let (main, aside) = (text::clean(&label.name), text::clean(&label.aside));
    let wanted = text::width(&main) as u16;
    // The aside keeps up to a third of a narrow column, so that neither vanishes.
    let kept = (text::width(&aside) as u16 + 1).min(room / 3);
    let main_room =
        if aside.is_empty() { room } else { room.saturating_sub(kept).max(room.min(wanted.min(room * 2 / 3))) };
    let cut = if label.is_layer { text::fit_middle } else { text::fit_end };
    let main = cut(&main, usize::from(main_room), theme.glyphs.ellipsis);
    let used = put(buffer, x, y, room, &main, label.style.unwrap_or(theme.text), theme);
    if used + 3 < room {
        put(buffer, x + used + 1, y, room - used - 1, &aside, theme.dim, theme);
    }
}
