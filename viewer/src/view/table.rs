//! Tables: headings, rows, the cursor and the bar that shows each row's share.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use super::pane::{bar, put, put_right};
use crate::app::{Column, Moment, TableState};
use crate::format::Units;
use crate::text;
use crate::theme::Theme;

/// The bar of shares is this wide.
const BAR: u16 = 8;

/// What a table needs to know beside its rows.
pub struct Look<'a> {
    /// Colours and glyphs.
    pub theme: &'a Theme,
    /// How sizes are written.
    pub units: Units,
    /// The moment whose figures the bars show.
    pub moment: Moment,
    /// 100 % of the bars.
    pub whole: u64,
    /// The bars' colour.
    pub tint: Color,
    /// Whether the cursor is shown.
    pub focused: bool,
}

/// Draws `rows` with the figures of `columns` in front of a name of one or two parts, which `name` gives.
pub fn draw<Row, C: Column<Row>>(
    buffer: &mut Buffer,
    area: Rect,
    state: &mut TableState<C>,
    rows: &[&Row],
    columns: &[C],
    look: &Look<'_>,
    name: impl Fn(&Row) -> (String, String),
) {
    if area.height == 0 || area.width < 12 {
        return;
    }
    let theme = look.theme;
    let shown: Vec<C> = columns.iter().copied().filter(|column| column.columns() > 0).collect();
    let bar_columns = if area.width >= 44 { BAR } else { 0 };
    let name_x = area.x
        + shown.iter().map(|column| column.columns() + 1).sum::<u16>()
        + bar_columns
        + u16::from(bar_columns > 0);
    draw_headings(buffer, area, state, &shown, name_x, look);

    let page = usize::from(area.height - 1);
    state.settle(rows.len(), page);
    for (index, row) in rows.iter().enumerate().skip(state.offset).take(page) {
        let y = area.y + 1 + (index - state.offset) as u16;
        let mut x = area.x;
        for column in &shown {
            let sorted = *column == state.sort;
            let style = if sorted { theme.title.remove_modifier(ratatui::style::Modifier::BOLD) } else { theme.text };
            put_right(buffer, x + column.columns(), y, column.columns(), &column.text(row, look.units), style, theme);
            x += column.columns() + 1;
        }
        if bar_columns > 0 {
            let figure = C::of_moment(look.moment).figure(row).unwrap_or(0);
            let share = if look.whole == 0 { 0.0 } else { (figure as f64 / look.whole as f64).min(1.0) };
            let style = if theme.is_mono() { Style::new() } else { Style::new().fg(look.tint) };
            put(buffer, x, y, BAR, &bar(share, BAR, theme.glyphs.unicode), style, theme);
        }
        let (main, aside) = name(row);
        draw_name(buffer, name_x, y, area.right(), &main, &aside, theme);
        if look.focused && index == state.selected {
            let bar_x = name_x - bar_columns.min(name_x - area.x);
            buffer.set_style(Rect { y, height: 1, ..area }, theme.selected);
            if bar_columns > 0 && !theme.is_mono() {
                // The bar keeps its colour.
                buffer.set_style(Rect { x: bar_x - 1, y, width: BAR, height: 1 }, Style::new().fg(look.tint));
            }
        }
    }
    if rows.is_empty() {
        put(buffer, area.x, area.y + 1, area.width, "nothing here", theme.dim, theme);
    }
}

fn draw_headings<Row, C: Column<Row>>(
    buffer: &mut Buffer,
    area: Rect,
    state: &TableState<C>,
    shown: &[C],
    name_x: u16,
    look: &Look<'_>,
) {
    let theme = look.theme;
    let heading = |column: C| {
        let arrow = if state.ascending { theme.glyphs.ascending } else { theme.glyphs.descending };
        let title = column.title();
        if column == state.sort { (format!("{arrow}{title}"), theme.accent) } else { (title.to_owned(), theme.dim) }
    };
    let mut x = area.x;
    for column in shown {
        let (words, style) = heading(*column);
        put_right(buffer, x + column.columns(), area.y, column.columns(), &words, style, theme);
        x += column.columns() + 1;
    }
    for column in C::ALL.iter().filter(|column| column.columns() == 0) {
        let (words, style) = heading(*column);
        put(buffer, name_x, area.y, area.right().saturating_sub(name_x), &words, style, theme);
    }
}

/// The name gets what room it needs, cut on its left; what remains is the aside's.
fn draw_name(buffer: &mut Buffer, x: u16, y: u16, right: u16, main: &str, aside: &str, theme: &Theme) {
    let room = right.saturating_sub(x);
    let (main, aside) = (text::clean(main), text::clean(aside));
    let wanted = text::width(&main) as u16;
    // The aside keeps a third of a narrow column, so that neither vanishes.
    let kept = (text::width(&aside) as u16 + 1).min(room / 3);
    let main_room =
        if aside.is_empty() { room } else { room.saturating_sub(kept).max(room.min(wanted.min(room * 2 / 3))) };
    let main = text::fit_end(&main, usize::from(main_room), theme.glyphs.ellipsis);
    let used = put(buffer, x, y, room, &main, theme.text, theme);
    if used + 3 < room {
        put(buffer, x + used + 1, y, room - used - 1, &aside, theme.dim, theme);
    }
}
