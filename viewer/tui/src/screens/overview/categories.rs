//! Memory of the device: the bytes in use, and a bar of categories that sums to them.

use memlab_trace::{Category, CategoryView};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::context::{Context, ShownMoment};
use crate::size_units::Units;
use crate::widgets::pane::{fact, frame, put, put_right};
use memlab_base::category::{LETTERS, bar_columns, category_index, category_names};
use memlab_base::theme::Theme;
use memlab_units::format;

/// Draws the pane.
pub fn draw(buffer: &mut Buffer, area: Rect, context: &Context) {
    let theme = &context.theme;
    let Some(device) = context.device() else { return };
    let shares: Vec<(Category, u64)> =
        device.categories.iter().map(|view| (view.category, at(view, context.moment))).collect();
    let used: u64 = shares.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes));
    // Offloaded and spilled memory is not on the device, whatever its category.
    let totals = &device.totals;
    let away = if context.moment == ShownMoment::Peak { totals.host_bytes_at_peak } else { totals.host_bytes };
    let in_use = used.saturating_sub(away);
    let total = device.totals.total_bytes;
    let mut facts = Vec::new();
    if !device.totals.used_is_known {
        facts.push(fact("the driver did not report the device's use", theme.warn));
    }
    if away > 0 {
        facts.push(fact(format!("{} in host memory", context.size(away)), theme.warn));
    }
    if total > 0 {
        facts.push(fact(format!("{} free", context.size(total.saturating_sub(in_use))), theme.dim));
        facts.push(fact(
            format!("{} of {} in use, {}", context.size(in_use), context.size(total), format::percent(in_use, total)),
            theme.text,
        ));
    } else {
        facts.push(fact(format!("{} in use", context.size(in_use)), theme.text));
    }
    // Below a third, parts of the whole device would be too small to see: the bar then shows the memory in use.
    let (whole, of) = match total {
        1.. if used > total / 3 => (total.max(used), "bar: the device"),
        _ => (used, "bar: in use"),
    };
    let share = if area.width >= 100 { "% of memory in use" } else { "% of in use" };
    facts.splice(0..0, [fact(of, theme.dim), fact(share, theme.dim)]);
    if let Some(card) = context.card().filter(|_| context.moment == ShownMoment::Now) {
        facts.splice(0..0, card.facts().iter().map(|words| fact(words, theme.text)));
    }
    let title = match context.moment {
        ShownMoment::Now => "Device memory",
        ShownMoment::Cursor => "Device memory then",
        ShownMoment::Peak => "Device memory at the peak",
    };
    let inner = frame(buffer, area, title, facts, theme);
    if inner.height == 0 || inner.width < 10 {
        return;
    }
    let bar = Rect { x: inner.x + 1, width: inner.width - 2, height: 1, ..inner };
    draw_bar(buffer, bar, &shares, whole, theme);
    let legend = Rect { y: inner.y + 1, height: inner.height - 1, x: inner.x + 1, width: inner.width - 2 };
    // An entry keeps its place once seen, so that the legend does not jump from step to step.
    let seen: Vec<(Category, u64)> = device
        .categories
        .iter()
        .filter(|view| was_seen(view))
        .map(|view| (view.category, at(view, context.moment)))
        .collect();
    draw_legend(buffer, legend, &seen, used, context);
}

fn at(view: &CategoryView, moment: ShownMoment) -> u64 {
    match moment {
        ShownMoment::Now | ShownMoment::Cursor => view.bytes,
        ShownMoment::Peak => view.bytes_at_peak,
    }
}

fn draw_bar(buffer: &mut Buffer, area: Rect, shares: &[(Category, u64)], whole: u64, theme: &Theme) {
    let parts: Vec<u64> = shares.iter().map(|(_, bytes)| *bytes).collect();
    let mut parts = bar_columns(&parts, whole, usize::from(area.width));
    parts.push(usize::from(area.width) - parts.iter().sum::<usize>());
    let mut column = 0;
    for (length, category) in parts.into_iter().zip(shares.iter().map(|(category, _)| Some(*category)).chain([None])) {
        let x = area.x + column as u16;
        match category {
            None => {
                put(buffer, x, area.y, length as u16, &theme.glyphs.free.repeat(length), theme.border, theme);
            }
            Some(category) if theme.is_mono() => {
                put(
                    buffer,
                    x,
                    area.y,
                    length as u16,
                    &LETTERS[category_index(category)].repeat(length),
                    theme.text,
                    theme,
                );
            }
            Some(category) => {
                let style = Style::new().bg(theme.category(category)).fg(theme.on_category[category_index(category)]);
                let (_, short) = category_names(category);
                let label = if short.len() + 2 <= length { short } else { "" };
                put(buffer, x, area.y, length as u16, &format!("{label:^length$}"), style, theme);
            }
        }
        column += length;
    }
}

/// Form of a legend's entries: columns of each, true for the long name, true to show the share.
type Form = (u16, bool, bool);

/// Forms, widest first.
fn forms(units: Units) -> [Form; 3] {
    let size_columns = if units == Units::Bytes { 16 } else { 11 };
    [(16 + 7, true, true), (16, true, false), (7, false, false)]
        .map(|(columns, long, share)| (2 + columns + size_columns, long, share))
}

/// Number of entries that fit side by side.
fn across(width: u16, columns: u16) -> usize {
    usize::from((width + 3) / (columns + 3)).max(1)
}

/// Rows of a pane of this width with room for everything.
pub fn wanted_rows(context: &Context, width: u16) -> u16 {
    let seen = context.device().map_or(0, |device| device.categories.iter().filter(|view| was_seen(view)).count());
    let [(columns, ..), ..] = forms(context.units);
    3 + seen.div_ceil(across(width.saturating_sub(4), columns)) as u16
}

fn was_seen(view: &CategoryView) -> bool {
    view.bytes > 0 || view.bytes_at_peak > 0
}

/// Draws entries in columns, as far as they fit.
fn draw_legend(buffer: &mut Buffer, area: Rect, shares: &[(Category, u64)], used: u64, context: &Context) {
    let theme = &context.theme;
    let forms = forms(context.units);
    let fits = |form: &&Form| shares.len().div_ceil(across(area.width, form.0)) <= usize::from(area.height);
    let (columns, long, with_share) = *forms.iter().find(fits).unwrap_or(&forms[2]);
    let across = across(area.width, columns);
    let rows = shares.len().div_ceil(across).min(usize::from(area.height));
    let room = rows * across;
    for (index, (category, bytes)) in shares.iter().enumerate().take(room) {
        let x = area.x + (index % across) as u16 * (columns + 3);
        let y = area.y + (index / across) as u16;
        let place = Rect { x, y, width: columns.min(area.right().saturating_sub(x)), height: 1 };
        if index + 1 == room && shares.len() > room {
            let rest = shares[index..].iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
            put(buffer, x, y, place.width, &format!("{} more", shares.len() - index), theme.dim, theme);
            put_right(buffer, place.right(), y, 11, &context.size(rest), theme.dim, theme);
            return;
        }
        draw_entry(buffer, place, *category, *bytes, used, (long, with_share), context);
    }
}

fn draw_entry(
    buffer: &mut Buffer,
    area: Rect,
    category: Category,
    bytes: u64,
    used: u64,
    form: (bool, bool),
    context: &Context,
) {
    let theme = &context.theme;
    let (long, with_share) = form;
    let (name, short) = category_names(category);
    if theme.is_mono() {
        put(buffer, area.x, area.y, 1, LETTERS[category_index(category)], theme.title, theme);
    } else {
        put(buffer, area.x, area.y, 1, theme.glyphs.swatch, Style::new().fg(theme.category(category)), theme);
    }
    let style = if bytes == 0 { theme.dim } else { theme.text };
    put(buffer, area.x + 2, area.y, area.width.saturating_sub(2), if long { name } else { short }, style, theme);
    let share_columns = if with_share { 7 } else { 0 };
    let size = context.size(bytes);
    put_right(
        buffer,
        area.right().saturating_sub(share_columns),
        area.y,
        area.width.saturating_sub(9),
        &size,
        style,
        theme,
    );
    if with_share {
        put_right(buffer, area.right(), area.y, share_columns - 1, &format::percent(bytes, used), theme.dim, theme);
    }
}
