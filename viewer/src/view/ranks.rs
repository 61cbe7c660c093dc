//! Devices and ranks side by side: how full each is, and whether they are evenly so.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

use super::gauge::Gauge;
use super::pane::{Fact, frame, put, put_right};
use crate::app::{App, Imbalance, Moment, ProcessItem, Spot};
use crate::format::{self, Units};
use crate::snapshot::State;
use crate::text;
use crate::theme::Theme;

/// Between entries.
const GAP: u16 = 3;
/// A bar is at least this wide.
const BAR: u16 = 6;
/// Columns of a percentage.
const PERCENT: u16 = 6;

/// The rows of a pane of this width that says all, and of one that leaves out what it can; none where there is only one
/// device.
pub fn wanted_rows(app: &App, width: u16) -> (u16, u16) {
    let items = app.device_items();
    if items.len() < 2 {
        return (0, 0);
    }
    let rows = |form: Form| {
        let lines = items.len().div_ceil(across(width.saturating_sub(4), columns(&items, form)));
        2 + lines.min(1000) as u16
    };
    (rows(Form::long(app.units)), rows(Form::Short))
}

/// How an entry looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Name, bar, share, and the peak with its sign in so many columns.
    Long(u16),
    /// No peak, and a short name.
    Short,
}

impl Form {
    fn long(units: Units) -> Self {
        Self::Long(if units == Units::Auto { 11 } else { 17 })
    }

    fn peak_columns(self) -> u16 {
        match self {
            Self::Long(columns) => columns,
            Self::Short => 0,
        }
    }
}

/// Draws the pane.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let items = app.device_items();
    let what = if items.iter().any(|item| item.rank.is_some()) { "Ranks" } else { "Devices" };
    let when = match app.moment {
        Moment::Now => "",
        Moment::Then => " then",
        Moment::Peak => ", each at its peak",
    };
    let facts = Imbalance::of(&items).map(|imbalance| imbalance_fact(&imbalance, &items, app)).into_iter().collect();
    let inner = frame(buffer, area, &format!("{what}{when}"), facts, theme);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    if inner.height == 0 || inner.width < 12 || items.is_empty() {
        return;
    }
    let rows = usize::from(inner.height);
    let fits = items.len().div_ceil(across(inner.width, columns(&items, Form::long(app.units)))) <= rows;
    let form = if fits { Form::long(app.units) } else { Form::Short };
    let most = across(inner.width, columns(&items, form));
    // As few side by side as the rows allow, so that bars are long.
    let across = items.len().div_ceil(rows).min(most).max(1);
    let columns = (inner.width + GAP) / across as u16 - GAP;
    let name_columns = name_columns(&items, form);
    let selected = app.target();
    // The line of the device shown is among those seen.
    let first = (selected / across + 1).saturating_sub(rows);
    let seen = items.iter().skip(first * across).take(rows * across);
    for (index, item) in seen.enumerate() {
        let (x, y) = ((index % across) as u16 * (columns + GAP), (index / across) as u16);
        let place = Rect { x: inner.x + x, y: inner.y + y, width: columns.min(inner.width), height: 1 };
        draw_entry(buffer, place, app, item, (&name(item, &items, form), name_columns), form);
    }
}

fn draw_entry(
    buffer: &mut Buffer,
    area: Rect,
    app: &App,
    item: &ProcessItem,
    (name, name_columns): (&str, u16),
    form: Form,
) {
    let theme = &app.theme;
    app.spots.put(area, Spot::Target(item.target));
    let style = if item.target == app.target() { theme.selected } else { state_style(item.state, theme) };
    put(buffer, area.x, area.y, name_columns.min(area.width), name, style, theme);
    let peak_columns = form.peak_columns();
    let bar = Rect {
        x: area.x + name_columns + 1,
        width: area.width.saturating_sub(name_columns + 1 + PERCENT + peak_columns),
        ..area
    };
    draw_bar(buffer, bar, item, theme);
    // Without PyTorch nothing is allocated, but the device is in use.
    let bytes = if item.peak_allocated_bytes > 0 { item.allocated_bytes } else { item.used_bytes };
    let percent = format::percent(bytes, item.total_bytes);
    put_right(buffer, area.right() - peak_columns, area.y, PERCENT, &percent, theme.text, theme);
    if peak_columns > 0 && item.peak_allocated_bytes > 0 {
        let (sign, style) = match item.oom_count {
            0 => (theme.glyphs.peak, theme.dim),
            _ => (theme.glyphs.oom, theme.bad),
        };
        let peak = format!("{sign}{}", format::bytes(item.peak_allocated_bytes, app.units));
        put_right(buffer, area.right(), area.y, peak_columns - 1, &peak, style, theme);
    }
}

/// A device's allocated, reserved and used memory and its peak, of all there is.
pub fn draw_bar(buffer: &mut Buffer, area: Rect, item: &ProcessItem, theme: &Theme) {
    let edges = [(item.allocated_bytes, 0), (item.reserved_bytes, 2), (item.used_bytes, 3)];
    let most = item.used_bytes.max(item.reserved_bytes).max(item.allocated_bytes).max(item.peak_allocated_bytes);
    let whole = if item.total_bytes > 0 { item.total_bytes } else { most };
    let gauge = Gauge { edges: &edges, whole, rest: Some(theme.glyphs.free) };
    gauge.draw_row(buffer, area, theme);
    if item.peak_allocated_bytes > 0 {
        gauge.mark_row(buffer, area, item.peak_allocated_bytes, theme);
    }
}

/// What a device is called beside others: `rank 3`, `rank 3 cuda:1` where a rank has several, `4242 cuda:1`.
pub fn who(item: &ProcessItem, all: &[ProcessItem]) -> String {
    let device = item.device.split(' ').next().unwrap_or_default();
    match item.rank {
        Some(rank) if all.iter().all(|other| other.rank != item.rank || other.target == item.target) => {
            format!("rank {rank}")
        }
        Some(rank) => format!("rank {rank} {device}").trim_end().to_owned(),
        None => format!("{} {device}", item.pid).trim_end().to_owned(),
    }
}

fn name(item: &ProcessItem, all: &[ProcessItem], form: Form) -> String {
    match form {
        Form::Short if item.rank.is_none() && all.iter().filter(|other| other.pid == item.pid).count() == 1 => {
            item.pid.to_string()
        }
        _ => who(item, all),
    }
}

fn name_columns(items: &[ProcessItem], form: Form) -> u16 {
    items.iter().map(|item| text::width(&name(item, items, form))).max().unwrap_or(0).min(24) as u16
}

/// Columns of an entry.
fn columns(items: &[ProcessItem], form: Form) -> u16 {
    let bar = if form == Form::Short { BAR } else { 2 * BAR };
    name_columns(items, form) + 1 + bar + PERCENT + form.peak_columns()
}

/// How many entries stand side by side.
fn across(width: u16, columns: u16) -> usize {
    usize::from((width + GAP) / (columns + GAP)).max(1)
}

/// Which peak is the highest, and by how much.
fn imbalance_fact(imbalance: &Imbalance, items: &[ProcessItem], app: &App) -> Fact {
    let theme = &app.theme;
    let (words, style) = imbalance_words(imbalance, items, app);
    vec![Span::styled(format!("{} ", theme.glyphs.peak), theme.accent), Span::styled(words, style)]
}

/// The same in words, and how they look: the more uneven, the louder.
pub fn imbalance_words(imbalance: &Imbalance, items: &[ProcessItem], app: &App) -> (String, Style) {
    let theme = &app.theme;
    let over = imbalance.peak_bytes.saturating_sub(imbalance.median_bytes);
    let size = |bytes| format::bytes(bytes, app.units);
    let name =
        items.iter().find(|item| item.target == imbalance.highest).map(|item| who(item, items)).unwrap_or_default();
    // A hundredth is noise.
    if over < imbalance.median_bytes / 100 {
        return (format!("peaks are alike: {}", size(imbalance.peak_bytes)), theme.dim);
    }
    let percent = format::percent(over, imbalance.median_bytes);
    let words =
        format!("{name} peaks highest: {}, {percent} ({}) over the median", size(imbalance.peak_bytes), size(over));
    (words, if over > imbalance.median_bytes / 10 { theme.warn } else { theme.text })
}

/// The colour of a state.
pub fn state_style(state: State, theme: &Theme) -> Style {
    match state {
        State::Recording => theme.good,
        State::Opening { .. } | State::Stopped => theme.warn,
        State::Ended { code: None | Some(0), signal: None } => theme.dim,
        State::Ended { .. } | State::Killed => theme.bad,
    }
}
