//! Draws the events: the latest before the displayed moment, and details of the one under the cursor.

use memlab_trace::{EventKind, EventView};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::columns::EventColumn;
use super::item::EventItem;
use super::state::EventsScreen;
use crate::context::{Context, ShownMoment};
use crate::widgets::columns::Column;
use crate::widgets::facts::{draw_with_stack, flow, labelled};
use crate::widgets::pane::{Fact, fact, frame, put};
use crate::widgets::table::{self, Label, TableStyle};
use memlab_base::category::category_names;
use memlab_base::query::Detail;
use memlab_base::text::{NO_LAYER, NO_LINE};
use memlab_base::theme::Theme;
use memlab_follow::snapshot::ProcessSnapshot;
use memlab_units::format;

impl EventsScreen {
    /// Draws the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let detail_rows = match area.height {
            ..12 => 0,
            12..24 => 5,
            24..44 => 7,
            _ => 10,
        };
        let place = Rect { height: area.height - detail_rows, ..area };
        let items = self.items(context);
        self.follow(&items);
        let mut state = self.table;
        let theme = &context.theme;
        let inner = frame(buffer, place, "Events", facts_of_frame(self, &items, context), theme);
        let columns = table::columns_that_fit(area.width);
        let kept = context.process().map_or(0, |process| process.events.len());
        if kept == 0 {
            draw_without(buffer, inner, context);
            return;
        }
        let style = TableStyle { context, columns: &columns, pane: None, has_focus: true };
        table::draw(buffer, inner, &style, &mut state, &items, |item| label(item, theme));
        let shown = items.iter().enumerate().skip(state.offset).take(usize::from(inner.height.saturating_sub(1)));
        for (y, (row, item)) in (inner.y + 1..).zip(shown) {
            dress(buffer, Rect { y, height: 1, ..inner }, item, &columns, row == state.selected, theme);
        }
        self.table = state;
        if let (1.., Some(item)) = (detail_rows, items.get(state.selected)) {
            draw_detail(buffer, Rect { y: place.bottom(), height: detail_rows, ..area }, context, item);
        }
    }
}

/// Description of the listed events.
fn facts_of_frame(screen: &EventsScreen, items: &[EventItem], context: &Context) -> Vec<Fact> {
    let theme = &context.theme;
    let Some(process) = context.process() else { return Vec::new() };
    let kept = process.events.len();
    if kept == 0 {
        return Vec::new();
    }
    let before = match (context.moment, process.shown_at) {
        (ShownMoment::Now, _) | (_, None) => String::new(),
        (_, Some(shown_at)) => format!(" up to {}", format::seconds(shown_at.time)),
    };
    let grouped = |count: usize| format::grouped(count as u64);
    let shown = items.len();
    let count = if shown == kept { grouped(kept) } else { format!("{} of {}", grouped(shown), grouped(kept)) };
    let mut facts = Vec::new();
    if context.moment == ShownMoment::Now && !process.state.is_over() {
        if screen.has_lost(items) && !context.paused {
            // In a fast program, events can be read only while the display is paused.
            facts.push(fact("that event is no longer kept: space pauses the display", theme.warn));
        }
        facts.push(match screen.follows() {
            true => fact("newest on top", theme.good),
            false => vec![Span::styled("g", theme.key), Span::styled(" follow again", theme.dim)],
        });
    }
    facts.push(fact(format!("the latest {count}{before}"), theme.dim));
    facts
}

/// Draws a message where there are no events.
fn draw_without(buffer: &mut Buffer, area: Rect, context: &Context) {
    let theme = &context.theme;
    let has_happened = context.process().is_some_and(|process| process.events_read > 0);
    let words = match (has_happened, context.is_seeking || context.snapshot.detail != Detail::Events) {
        (false, _) => "no events yet",
        (true, true) => "loading",
        (true, false) => "the trace no longer has the events before this moment",
    };
    if area.height > 0 && area.width > 2 {
        let width = (words.chars().count() as u16).min(area.width);
        let x = area.x + (area.width - width) / 2;
        put(buffer, x, area.y + area.height / 2, width, words, theme.title, theme);
    }
}

fn label(item: &EventItem, theme: &Theme) -> Label {
    let name = match (item.event.kind, item.line(), item.event.call.as_deref()) {
        (EventKind::Used, ..) => "the whole device".to_owned(),
        (EventKind::Moved, ..) => "in host memory".to_owned(),
        (EventKind::InRange, ..) => item.range().unwrap_or_default().to_owned(),
        (_, "", Some(call)) => call.to_owned(),
        (EventKind::Alloc | EventKind::Free | EventKind::Oom, "", None) => NO_LINE.to_owned(),
        (_, line, _) => line.to_owned(),
    };
    let aside = [item.layer(), item.event.category.map(|category| category_names(category).0)];
    let aside: Vec<&str> = aside.into_iter().flatten().filter(|words| !words.is_empty()).collect();
    Label { name, aside: aside.join(theme.glyphs.separator), ..Label::default() }
}

/// Styles rows by kind: conspicuous, or dim.
fn dress(buffer: &mut Buffer, row: Rect, item: &EventItem, columns: &[EventColumn], is_selected: bool, theme: &Theme) {
    match item.event.kind {
        EventKind::Free
        | EventKind::DriverFree(_)
        | EventKind::Unmap
        | EventKind::InRange
        | EventKind::Used
        | EventKind::Moved
            if !is_selected =>
        {
            buffer.set_style(row, theme.dim);
        }
        EventKind::Oom if !is_selected => buffer.set_style(row, theme.bad),
        EventKind::Step | EventKind::End => {
            let before: u16 = columns
                .iter()
                .take_while(|column| matches!(column, EventColumn::Number | EventColumn::Time))
                .map(|column| column.columns() + 1)
                .sum();
            let x = row.x + before.min(row.width);
            let words = match item.event.kind {
                EventKind::Step => format!(" step {} ended ", item.event.address),
                _ => " the program ended ".to_owned(),
            };
            let line = if theme.glyphs.unicode { "─" } else { "-" };
            let line = format!("{}{words}{}", line.repeat(3), line.repeat(usize::from(row.width)));
            let style = if is_selected { theme.selected } else { theme.border };
            for x in x..row.right() {
                put(buffer, x, row.y, 1, " ", style, theme);
            }
            // A text that is too long is cut without an ellipsis.
            buffer.set_stringn(x, row.y, line, usize::from(row.right() - x), style);
            if !is_selected {
                let words_at = Rect { x: x + 3, width: words.len() as u16, ..row }.intersection(row);
                buffer.set_style(words_at, theme.accent);
            }
        }
        _ => {}
    }
}

fn draw_detail(buffer: &mut Buffer, area: Rect, context: &Context, item: &EventItem) {
    let theme = &context.theme;
    let Some(process) = context.process() else { return };
    let event = &item.event;
    let title = format!("Event {}: {}", format::grouped(event.number), item.kind());
    let inner = frame(buffer, area, &title, vec![fact(format::seconds(event.time), theme.dim)], theme);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    let facts = facts_of(context, process, item);
    if event.stack == 0 && !matches!(event.kind, EventKind::Alloc | EventKind::Free) {
        flow(buffer, inner, &facts, theme.glyphs.separator, theme);
        return;
    }
    draw_with_stack(buffer, inner, &facts, process, event.stack, theme);
}

fn facts_of(context: &Context, process: &ProcessSnapshot, item: &EventItem) -> Vec<Fact> {
    let theme = &context.theme;
    let event = &item.event;
    if event.kind == EventKind::Step {
        return vec![fact(format!("optimizer step {} ended", event.address), theme.text)];
    }
    if let Some(range) = item.range() {
        return vec![labelled("thread entered", range, theme)];
    }
    if event.kind == EventKind::End {
        return vec![fact("the last event", theme.text)];
    }
    let style = if event.kind == EventKind::Oom { theme.bad } else { theme.accent };
    let exactly = match event.bytes {
        0 => "of unknown size".to_owned(),
        bytes => format!("{} bytes", format::grouped(bytes)),
    };
    let mut facts = vec![vec![Span::styled(exactly, style), Span::styled(outcome(event), theme.text)]];
    if let Some(category) = event.category {
        facts.push(fact(category_names(category).0, theme.text));
    }
    if event.stack != 0 || event.layer != 0 {
        let layer = item.layer().filter(|layer| !layer.is_empty()).unwrap_or(NO_LAYER);
        facts.push(labelled("layer", layer, theme));
    }
    if !item.phase().is_empty() {
        facts.push(labelled("phase", item.phase(), theme));
    }
    facts.extend(other_end(context, process, event));
    if event.address != 0 {
        facts.push(labelled("address", format!("{:#x}", event.address), theme));
    }
    if event.device >= 0 {
        facts.push(labelled("device", event.device.to_string(), theme));
    }
    if let Some(thread) = process.names.threads.get(&event.thread).filter(|name| !name.is_empty()) {
        facts.push(labelled("thread", thread, theme));
    } else if event.thread != 0 {
        facts.push(labelled("thread", event.thread.to_string(), theme));
    }
    if let Some(call) = event.call.as_deref() {
        facts.push(labelled("call", call, theme));
    }
    facts
}

/// Effect of the event on its bytes.
fn outcome(event: &EventView) -> &'static str {
    match event.kind {
        EventKind::Alloc => " allocated",
        EventKind::Free => " freed (stack of its allocation)",
        EventKind::DriverAlloc(_, true) => " from the driver, for a segment",
        EventKind::DriverAlloc(_, false) => " from the driver",
        EventKind::DriverFree(_) => " returned to the driver",
        EventKind::Map => " mapped",
        EventKind::Unmap => " unmapped",
        EventKind::Oom => " requested: out of memory",
        EventKind::Used => " in use on the whole device",
        EventKind::Moved => " of this process in host memory from here on",
        EventKind::Step | EventKind::InRange | EventKind::End => "",
    }
}

/// The free of an allocation, or the allocation of a free, if the trace still keeps that event.
fn other_end(context: &Context, process: &ProcessSnapshot, event: &EventView) -> Option<Fact> {
    let theme = &context.theme;
    let is_same = |other: &&EventView| other.address == event.address && other.device == event.device;
    let blocks = |what: EventKind| process.events.iter().filter(move |other| other.kind == what).filter(is_same);
    match event.kind {
        EventKind::Alloc => {
            let freed = blocks(EventKind::Free).find(|other| other.number > event.number);
            Some(match freed {
                Some(freed) => {
                    let after = format::duration(freed.time.saturating_sub(event.time));
                    labelled("freed", format!("after {after}, event {}", format::grouped(freed.number)), theme)
                }
                None => fact("not freed yet", theme.text),
            })
        }
        EventKind::Free => {
            let taken = blocks(EventKind::Alloc).rfind(|other| other.number < event.number)?;
            let before = format::duration(event.time.saturating_sub(taken.time));
            Some(labelled("lived", format!("{before}, from event {}", format::grouped(taken.number)), theme))
        }
        _ => None,
    }
}
