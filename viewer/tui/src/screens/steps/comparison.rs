//! Growth between two steps by category, line and layer, with other facts on the later one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use memlab_trace::{GrowthView, StepView, TrainingView};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::changes::{Change, Changes, LayerName, total};
use super::state::StepsScreen;
use crate::context::Context;
use crate::size_units::Units;
use crate::widgets::pane::{fact, frame, put, put_right};
use memlab_base::category::category_names;
use memlab_base::layer_groups::{LayerGroup, LayerRow, grouped_by_sign};
use memlab_base::query::Comparison;
use memlab_base::text::{self, NO_LINE};
use memlab_base::theme::Theme;
use memlab_follow::snapshot::DeviceSnapshot;
use memlab_units::format;

/// Columns between a change and its sizes, and of the arrow between those.
const GAP: u16 = 2;

/// Draws the pane.
pub fn draw(buffer: &mut Buffer, area: Rect, screen: &StepsScreen, context: &Context) {
    if area.height < 3 || area.width < 24 {
        return;
    }
    let theme = &context.theme;
    let Some((device, wanted)) = context.device().zip(screen.compared_steps(context)) else { return };
    // The previous comparison stays, under its own title, until the requested one arrives.
    let latest = screen.latest_comparison(context);
    let (before, after) = latest.map_or(wanted, |(_, before, after)| (before, after));
    let to = if theme.glyphs.unicode { "→" } else { "->" };
    let title = match before {
        Some(before) => format!("Growth: step {} {to} step {}", before.index, after.index),
        None => format!("Growth: start {to} step {}", after.index),
    };
    // While steps arrive, the latest one is always being looked up.
    let is_latest = device.steps.last() == Some(&wanted.1);
    let facts = if latest.is_some() && screen.awaits_comparison(context) && !is_latest {
        vec![fact(format!("loading step {}", wanted.1.index), theme.dim)]
    } else if screen.marked_steps(context).is_some() {
        vec![fact("marked", theme.key)]
    } else {
        Vec::new()
    };
    let inner = frame(buffer, area, &title, facts, theme);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    let Some((comparison, ..)) = latest else {
        let failure = context.process().and_then(|process| process.failure.as_deref());
        let (words, style) = failure.map_or(("loading…", theme.dim), |failure| (failure, theme.bad));
        put(buffer, inner.x, inner.y, inner.width, words, style, theme);
        return;
    };
    let notes = notes(context, device, before, after, comparison);
    // Notes on the step leave most of the rows to the tables.
    let rows = (notes.len() as u16).min(inner.height / 4);
    for (y, (words, style)) in (inner.y..inner.y + rows).zip(&notes) {
        put(buffer, inner.x, y, inner.width, words, *style, theme);
    }
    let rest = Rect { y: inner.y + rows, height: inner.height - rows, ..inner };
    draw_changes(buffer, rest, context, &Changes::between(&comparison.before, &comparison.after));
}

/// Notes on the later step, most important first.
fn notes(
    context: &Context,
    device: &DeviceSnapshot,
    before: Option<StepView>,
    after: StepView,
    comparison: &Comparison,
) -> Vec<(String, Style)> {
    let theme = &context.theme;
    let mut notes = Vec::new();
    let is_gone = before.is_some_and(|before| comparison.before.time > before.end_time);
    if is_gone || comparison.after.time > after.end_time {
        let earliest = format::duration(comparison.before.time);
        notes
            .push((format!("the trace no longer has that step; shown is its earliest moment, {earliest}"), theme.warn));
    }
    let index = device.step_at(after.end_time);
    let ooms = context.process().map_or(&[][..], |process| &process.ooms).iter();
    let of_step = |time: u64| index.is_some() && device.step_at(time) == index;
    if let Some(oom) = ooms.filter(|oom| oom.device == device.totals.index).find(|oom| of_step(oom.time)) {
        let who = oom.line.as_ref().map(|line| format!(" by {}", context.place(line))).unwrap_or_default();
        let words = format!("{} out of memory at {}", theme.glyphs.oom, format::duration(oom.time));
        notes.push((format!("{words}: {} requested{who}", context.size(oom.requested_bytes)), theme.bad));
    }
    if let Some(training) = index.and_then(|index| device.trainings.get(index)?.as_ref()) {
        notes.push((trained(training, context), theme.text));
    }
    if let Some(wait) = index.and_then(|index| *device.waits.get(index)?) {
        let launch =
            wait.launch_ns_per_step().map(|launch| format!(", first launch after {}", format::time_spent(launch)));
        let words = format!("waited {} for the DataLoader", format::time_spent(wait.data_ns_per_step()));
        notes.push((words + &launch.unwrap_or_default(), theme.text));
    }
    if device.totals.peak_allocated_bytes > 0 && of_step(device.totals.peak_time) {
        let mut lines: Vec<_> = device.lines.iter().filter(|row| row.own.live_bytes_at_peak > 0).collect();
        lines.sort_by_key(|row| std::cmp::Reverse(row.own.live_bytes_at_peak));
        let held = lines.iter().take(4).map(|row| {
            let line = row.own.line.as_ref().map_or_else(|| NO_LINE.to_owned(), |line| context.place(line));
            format!("{} {line}", context.size(row.own.live_bytes_at_peak))
        });
        let held = held.collect::<Vec<_>>().join(theme.glyphs.separator);
        notes.push((format!("{} peak in this step: {held}", theme.glyphs.peak), theme.text));
    }
    let least = device.totals.peak_allocated_bytes / 100;
    let grows = |growth: &&GrowthView| growth.is_steady && growth.to_bytes - growth.from_bytes >= least.max(1);
    let leak = device.growth.iter().filter(grows).map(|growth| {
        let line = growth.line.as_ref().map_or_else(|| NO_LINE.to_owned(), |line| context.place(line));
        format!("over the run: {} per step by {line}", context.change(growth.bytes_per_step as i64))
    });
    notes.extend(leak.take(1).map(|words| (words, theme.warn)));
    notes
}

/// Figures that a training run reports for a step.
fn trained(training: &TrainingView, context: &Context) -> String {
    let pieces = (training.pieces > 1).then(|| format!(" in {} pieces", format::grouped(training.pieces)));
    let way = training.way.as_ref().map(|way| format!(" ({})", text::clean(way)));
    let samples = format!(
        "{}{}{}",
        format::counted(training.samples, "sample"),
        pieces.unwrap_or_default(),
        way.unwrap_or_default()
    );
    let phase = training.phase.as_ref().map(|phase| format!("phase {}", text::clean(phase)));
    let loss = training.loss.map(|loss| format!("loss {}", format::loss(loss)));
    let speed = training.samples_per_second().map(|speed| format!("{} samples/s", format::rate(speed)));
    let offloaded =
        (training.offloaded_bytes > 0).then(|| format!("{} offloaded", context.size(training.offloaded_bytes)));
    let place = format!("epoch {}, batch {}", training.epoch, training.batch);
    let parts = [Some(place), phase, Some(samples), offloaded, loss, speed];
    parts.into_iter().flatten().collect::<Vec<_>>().join(context.theme.glyphs.separator)
}

/// Change of a layer's memory.
struct ChangedLayer {
    change: Change<LayerName>,
    class: Option<Arc<str>>,
}

impl LayerRow for ChangedLayer {
    type Figure = i64;

    fn layer(&self) -> (u32, Option<&str>, Option<&Arc<str>>) {
        (self.change.who.root, self.change.who.name.as_deref(), self.class.as_ref())
    }

    fn figure(&self) -> i64 {
        self.change.bytes()
    }

    fn add(&mut self, other: &Self) {
        let Change { before, after, .. } = &mut self.change;
        (*before, *after) = (before.saturating_add(other.change.before), after.saturating_add(other.change.after));
    }

    fn rename(&mut self, name: String) {
        self.change.who.name = Some(name.into());
    }
}

/// A table of changes.
struct Section {
    title: &'static str,
    /// Name of their sum.
    of: &'static str,
    total: Change<()>,
    rows: Vec<ChangeRow>,
}

struct ChangeRow {
    change: Change<()>,
    name: String,
    aside: String,
}

fn draw_changes(buffer: &mut Buffer, area: Rect, context: &Context, changes: &Changes) {
    let [categories, lines, layers] = sections(context, changes);
    if area.height < 12 && area.width >= 60 || area.height < 24 && area.width >= 100 {
        // Lines and layers side by side, the categories in one row above.
        let rows = u16::from(area.height >= 4);
        if rows > 0 {
            draw_in_a_line(buffer, area, &categories, context);
        }
        let left = Rect { y: area.y + rows, height: area.height - rows, width: (area.width - 2) / 2, ..area };
        let right = Rect { x: left.right() + 2, width: area.right() - left.right() - 2, ..left };
        draw_section(buffer, left, &lines, context);
        draw_section(buffer, right, &layers, context);
        return;
    }
    let sections = [categories, lines, layers];
    let gap = u16::from(area.height >= 16);
    let wanted = sections.each_ref().map(|section| section.rows.len() as u16 + 1);
    let mut y = area.y;
    for (section, rows) in sections.iter().zip(share_rows(area.height.saturating_sub(2 * gap), wanted)) {
        draw_section(buffer, Rect { y, height: rows, ..area }, section, context);
        y += rows + gap;
    }
}

fn sections(context: &Context, changes: &Changes) -> [Section; 3] {
    let row = |before: u64, after: u64, name: String, aside: String| ChangeRow {
        change: Change { who: (), before, after },
        name,
        aside,
    };
    let category = |change: &Change<memlab_trace::Category>| {
        row(change.before, change.after, category_names(change.who).0.to_owned(), String::new())
    };
    let line = |change: &Change<_>| {
        let line: Option<&memlab_trace::Line> = Option::as_deref(&change.who);
        let name = line.map_or_else(|| NO_LINE.to_owned(), |line| context.place(line));
        row(change.before, change.after, name, line.map(|line| line.function.to_string()).unwrap_or_default())
    };
    let layers = context.device().map_or(&[][..], |device| &device.layers).iter();
    let classes = layers.filter_map(|view| Some(((view.root, view.name.as_deref()), view.class.as_ref()?)));
    let classes: HashMap<_, _> = classes.collect();
    let changed = changes.layers.iter().map(|change| ChangedLayer {
        class: classes.get(&(change.who.root, change.who.name.as_deref())).copied().cloned(),
        change: change.clone(),
    });
    let mut groups = grouped_by_sign(changed.collect());
    groups.sort_by_key(|group| Reverse(group.sum.change.weight()));
    let layer = |group: &LayerGroup<ChangedLayer>| {
        let ChangedLayer { change, class } = &group.sum;
        let class = class.as_deref().unwrap_or_default().to_owned() + &group.words(|by| context.change(by));
        row(change.before, change.after, change.who.shown().to_owned(), class.trim_start().to_owned())
    };
    [
        Section {
            title: "By category",
            of: "in use",
            total: total(&changes.categories),
            rows: changes.categories.iter().map(category).collect(),
        },
        Section {
            title: "By line",
            of: "allocated",
            total: total(&changes.lines),
            rows: changes.lines.iter().map(line).collect(),
        },
        Section {
            title: "By layer",
            of: "allocated",
            total: total(&changes.layers),
            rows: groups.iter().map(layer).collect(),
        },
    ]
}

/// Distributes rows: a section gets at most its wish, and the others share the rest.
fn share_rows(room: u16, wanted: [u16; 3]) -> [u16; 3] {
    let mut given = [0; 3];
    let mut left = room;
    while left > 0 {
        // The next row goes to the smallest section that wants more.
        let hungry = (0..3).filter(|index| given[*index] < wanted[*index]).min_by_key(|index| given[*index]);
        let Some(index) = hungry else { break };
        given[index] += 1;
        left -= 1;
    }
    given
}

/// Draws the sum and the rows that fit; the last row counts the others.
fn draw_section(buffer: &mut Buffer, area: Rect, section: &Section, context: &Context) {
    let theme = &context.theme;
    if area.height == 0 {
        return;
    }
    let sum = ChangeRow { change: section.total.clone(), name: section.title.to_owned(), aside: section.of.to_owned() };
    draw_row(buffer, Rect { height: 1, ..area }, &sum, (theme.title, 0), context);
    let room = usize::from(area.height - 1);
    let shown = if section.rows.len() > room { room.saturating_sub(1) } else { section.rows.len() };
    for (y, row) in (area.y + 1..area.bottom()).zip(&section.rows[..shown]) {
        let style = if row.change.bytes() == 0 { theme.dim } else { theme.text };
        draw_row(buffer, Rect { y, height: 1, ..area }, row, (style, 1), context);
    }
    if shown < section.rows.len() && room > 0 {
        let rest = &section.rows[shown..];
        let sum = |of: fn(&ChangeRow) -> u64| rest.iter().map(of).fold(0, u64::saturating_add);
        let change = Change { who: (), before: sum(|row| row.change.before), after: sum(|row| row.change.after) };
        let more = ChangeRow { change, name: format!("{} more", rest.len()), aside: String::new() };
        let y = area.y + 1 + shown as u16;
        draw_row(buffer, Rect { y, height: 1, ..area }, &more, (theme.dim, 1), context);
    }
}

/// Draws a change: the difference, both sizes if they fit, and the holder.
fn draw_row(buffer: &mut Buffer, area: Rect, row: &ChangeRow, (style, indent): (Style, u16), context: &Context) {
    let theme = &context.theme;
    let columns = size_columns(context.units);
    let change = row.change.bytes();
    let mut x = area.x;
    put_right(buffer, x + columns + 1, area.y, columns + 1, &context.change(change), tint(change, theme), theme);
    x += columns + 1 + GAP;
    if area.width >= 4 * columns + 12 {
        put_right(buffer, x + columns, area.y, columns, &context.size(row.change.before), theme.dim, theme);
        put(buffer, x + columns + 1, area.y, 2, if theme.glyphs.unicode { "→" } else { "->" }, theme.dim, theme);
        x += columns + 3;
    }
    let after = if style == theme.title { theme.text } else { style };
    put_right(buffer, x + columns, area.y, columns, &context.size(row.change.after), after, theme);
    x += columns + GAP + indent;
    let room = area.right().saturating_sub(x);
    let name = text::clean(&row.name);
    let aside = text::clean(&row.aside);
    // A name is cut in the middle, because names differ at both ends; the text after it gets the remaining columns.
    let name = text::fit_middle(&name, usize::from(room), theme.glyphs.ellipsis);
    let used = put(buffer, x, area.y, room, &name, style, theme);
    let left = room.saturating_sub(used + 1);
    if left >= 10.min(text::width(&aside) as u16) {
        put(buffer, x + used + 1, area.y, left, &aside, theme.dim, theme);
    }
}

/// Draws the changes of a section in one row.
fn draw_in_a_line(buffer: &mut Buffer, area: Rect, section: &Section, context: &Context) {
    let theme = &context.theme;
    let size = context.size(section.total.after);
    let change = section.total.bytes();
    let change = if change == 0 { "as before".to_owned() } else { context.change(change) };
    let mut words = format!("{}: {size} {}, {change}", section.title, section.of);
    for row in section.rows.iter().filter(|row| row.change.bytes() != 0) {
        words += &format!("{}{} {}", theme.glyphs.separator, context.change(row.change.bytes()), row.name);
    }
    put(buffer, area.x, area.y, area.width, &words, theme.text, theme);
}

/// Columns of the longest size.
fn size_columns(units: Units) -> u16 {
    match units {
        Units::Auto => 8,
        Units::Mebibytes | Units::Gibibytes => 11,
        Units::Bytes => 15,
    }
}

/// Colour of a change: growth is conspicuous.
pub fn tint(change: i64, theme: &Theme) -> Style {
    match change {
        0 => theme.dim,
        1.. => theme.warn,
        _ => theme.good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_out() {
        // Enough for all; too little for all; unwanted rows go to the others.
        assert_eq!(share_rows(40, [5, 10, 12]), [5, 10, 12]);
        assert_eq!(share_rows(9, [5, 10, 12]), [3, 3, 3]);
        assert_eq!(share_rows(20, [3, 30, 30]), [3, 9, 8]);
        assert_eq!(share_rows(1, [3, 30, 30]), [1, 0, 0]);
        assert_eq!(share_rows(0, [3, 30, 30]), [0, 0, 0]);
    }
}
