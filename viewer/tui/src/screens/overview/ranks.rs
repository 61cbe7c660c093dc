//! Devices and ranks side by side: their fill levels, and the imbalance between them.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use crate::context::{Context, HitTarget, ShownMoment};
use crate::screens::ranks::{Imbalance, RankItem, device_items, draw_bar, imbalance_words, state_style};
use crate::size_units::Units;
use crate::widgets::pane::{Fact, frame, put, put_right};
use memlab_base::text;
use memlab_units::format;

/// Columns between entries.
const GAP: u16 = 3;
/// Minimum width of a bar.
const MIN_BAR_COLUMNS: u16 = 6;
/// Beyond this number, only the fullest devices are listed here; the screen of the ranks lists all.
const MAX_LISTED_DEVICES: usize = 64;
const CROWDED_ROWS: usize = 4;

/// The `most` fullest devices in their order, always with the displayed one; all if they fit.
fn fullest(items: &[RankItem], most: usize, displayed: usize) -> Vec<&RankItem> {
    let mut shown: Vec<&RankItem> = items.iter().collect();
    if items.len() > most {
        let share = |item: &RankItem| held_bytes(item) as f64 / item.total_bytes.max(1) as f64;
        shown.sort_by(|a, b| {
            (b.target == displayed).cmp(&(a.target == displayed)).then_with(|| share(b).total_cmp(&share(a)))
        });
        shown.truncate(most);
        shown.sort_by_key(|item| item.target);
    }
    shown
}

/// Allocated bytes. Without PyTorch nothing is allocated, but the device is in use.
fn held_bytes(item: &RankItem) -> u64 {
    if item.peak_allocated_bytes > 0 { item.allocated_bytes } else { item.used_bytes }
}

/// Columns of a percentage.
const PERCENT_COLUMNS: u16 = 6;

/// Rows of a pane of this width in full, and at least; 0 for a single device.
pub fn wanted_rows(context: &Context, width: u16) -> (u16, u16) {
    let items = device_items(context);
    if items.len() < 2 {
        return (0, 0);
    }
    let rows = |form: Form| {
        let lines = items.len().div_ceil(across(width.saturating_sub(4), columns(&items, form)));
        2 + if items.len() > MAX_LISTED_DEVICES { lines.min(CROWDED_ROWS) } else { lines } as u16
    };
    (rows(Form::long(context.units)), rows(Form::Short))
}

/// Form of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Name, bar, share, and the peak with its sign; the number: columns of the peak.
    Long(u16),
    /// Short name, without the peak.
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
pub fn draw(buffer: &mut Buffer, area: Rect, context: &Context) {
    let theme = &context.theme;
    let items = device_items(context);
    let what = if items.iter().any(|item| item.rank.is_some()) { "Ranks" } else { "Devices" };
    let when = match context.moment {
        ShownMoment::Now => "",
        ShownMoment::Cursor => " then",
        ShownMoment::Peak => ", each at its peak",
    };
    let facts =
        Imbalance::of(&items).map(|imbalance| imbalance_fact(&imbalance, &items, context)).into_iter().collect();
    let inner = Rect {
        x: area.x + 2,
        y: area.y + 1,
        width: area.width.saturating_sub(4),
        height: area.height.saturating_sub(2),
    };
    let rows = usize::from(inner.height);
    let most_shown = rows * across(inner.width, columns(&items, Form::Short));
    let shown = fullest(&items, most_shown, context.target());
    let count = if shown.len() < items.len() {
        format!(", the fullest {} of {}", shown.len(), items.len())
    } else {
        String::new()
    };
    frame(buffer, area, &format!("{what}{when}{count}"), facts, theme);
    if inner.height == 0 || inner.width < 12 || items.is_empty() {
        return;
    }
    let fits = items.len().div_ceil(across(inner.width, columns(&items, Form::long(context.units)))) <= rows;
    let form = if fits { Form::long(context.units) } else { Form::Short };
    let most = across(inner.width, columns(&items, form));
    // As few entries side by side as the rows allow, for long bars.
    let across = shown.len().div_ceil(rows).min(most).max(1);
    let columns = (inner.width + GAP) / across as u16 - GAP;
    let name_columns = name_columns(&items, form);
    for (index, item) in shown.into_iter().enumerate() {
        let (x, y) = ((index % across) as u16 * (columns + GAP), (index / across) as u16);
        let place = Rect { x: inner.x + x, y: inner.y + y, width: columns.min(inner.width), height: 1 };
        draw_entry(buffer, place, context, item, (&name(item, &items, form), name_columns), form);
    }
}

fn draw_entry(
    buffer: &mut Buffer,
    area: Rect,
    context: &Context,
    item: &RankItem,
    (name, name_columns): (&str, u16),
    form: Form,
) {
    let theme = &context.theme;
    context.hit_targets.put(area, HitTarget::Device(item.target));
    let style = if item.target == context.target() { theme.selected } else { state_style(item.state, theme) };
    put(buffer, area.x, area.y, name_columns.min(area.width), name, style, theme);
    let peak_columns = form.peak_columns();
    let bar = Rect {
        x: area.x + name_columns + 1,
        width: area.width.saturating_sub(name_columns + 1 + PERCENT_COLUMNS + peak_columns),
        ..area
    };
    draw_bar(buffer, bar, item, theme);
    let percent = format::percent(held_bytes(item), item.total_bytes);
    put_right(buffer, area.right() - peak_columns, area.y, PERCENT_COLUMNS, &percent, theme.text, theme);
    if peak_columns > 0 && item.peak_allocated_bytes > 0 {
        let (sign, style) = match item.oom_count {
            0 => (theme.glyphs.peak, theme.dim),
            _ => (theme.glyphs.oom, theme.bad),
        };
        let peak = format!("{sign}{}", context.size(item.peak_allocated_bytes));
        put_right(buffer, area.right(), area.y, peak_columns - 1, &peak, style, theme);
    }
}

fn name(item: &RankItem, all: &[RankItem], form: Form) -> String {
    match form {
        Form::Short if item.rank.is_none() && all.iter().filter(|other| other.pid == item.pid).count() == 1 => {
            item.pid.to_string()
        }
        _ => item.name.clone(),
    }
}

fn name_columns(items: &[RankItem], form: Form) -> u16 {
    items.iter().map(|item| text::width(&name(item, items, form))).max().unwrap_or(0).min(24) as u16
}

/// Width of an entry.
fn columns(items: &[RankItem], form: Form) -> u16 {
    let bar = if form == Form::Short { MIN_BAR_COLUMNS } else { 2 * MIN_BAR_COLUMNS };
    name_columns(items, form) + 1 + bar + PERCENT_COLUMNS + form.peak_columns()
}

/// Number of entries that fit side by side.
fn across(width: u16, columns: u16) -> usize {
    usize::from((width + GAP) / (columns + GAP)).max(1)
}

/// The highest peak, and its excess.
fn imbalance_fact(imbalance: &Imbalance, items: &[RankItem], context: &Context) -> Fact {
    let theme = &context.theme;
    let (words, style) = imbalance_words(imbalance, items, context);
    vec![Span::styled(format!("{} ", theme.glyphs.peak), theme.accent), Span::styled(words, style)]
}
