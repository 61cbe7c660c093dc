//! Draws the memory map: every segment as a bar of its blocks, on one scale, and details of the block under the cursor.

use memlab_trace::{Category, SegmentMap};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

use super::drawn::MapSummary;
use super::state::SegmentsScreen;
use super::style::{category_style, has_letters};
use super::{detail, map};
use crate::context::{Context, ShownMoment};
use crate::widgets::facts::{self, flow};
use crate::widgets::pane::{Fact, fact, frame, put};
use memlab_base::category::{LETTERS, category_names};
use memlab_base::theme::Theme;
use memlab_units::format::{self, size};

impl SegmentsScreen {
    /// Draws the screen.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let detail_rows = match area.height {
            ..14 => 0,
            14..24 => 5,
            24..44 => 7,
            _ => 10,
        };
        let place = Rect { height: area.height - detail_rows, ..area };
        let theme = &context.theme;
        let has_map = context.segment_map().is_some_and(|map| !map.segments.is_empty());
        let title = match context.moment {
            ShownMoment::Now => "Memory map",
            ShownMoment::Cursor => "Memory map then",
            ShownMoment::Peak => "Memory map at the peak",
        };
        if !has_map {
            let inner = frame(buffer, area, title, Vec::new(), theme);
            draw_without(buffer, inner, context);
            return;
        }
        // The frame shows the scale, which is known once the map is laid out.
        let inner =
            Rect { x: place.x + 1, y: place.y + 1, width: place.width - 2, height: place.height.saturating_sub(2) };
        let text = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
        self.sum_up(context);
        let about = about(self, text, context);
        let about_rows = about.rows(text);
        let below = Rect { y: text.y + about_rows, height: text.height - about_rows, ..text };
        let bars = map::place(below, context.units);
        self.lay_out(bars.width, bars.height, context);
        frame(buffer, place, title, facts_of_frame(self, context), theme);
        about.draw(buffer, Rect { height: about_rows, ..text }, theme);
        map::draw(buffer, below, bars, self, context);
        if detail_rows > 0 {
            detail::draw(buffer, Rect { y: place.bottom(), height: detail_rows, ..area }, self, context);
        }
    }
}

/// Text above the map.
struct MapHeader {
    /// Figures of the map.
    figures: Vec<Fact>,
    /// Categories on the map.
    legend: Vec<Fact>,
}

impl MapHeader {
    /// Rows of the text: as many as needed, but at most half of the area.
    fn rows(&self, area: Rect) -> u16 {
        let wanted = facts::rows(&self.figures, area.width) + facts::rows(&self.legend, area.width);
        wanted.min(area.height / 3)
    }

    fn draw(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) {
        // The legend is more important than the last figures.
        let legend = facts::rows(&self.legend, area.width).min(area.height.saturating_sub(1));
        let rows = facts::rows(&self.figures, area.width).min(area.height - legend);
        flow(buffer, Rect { height: rows, ..area }, &self.figures, theme.glyphs.separator, theme);
        flow(buffer, Rect { y: area.y + rows, height: area.height - rows, ..area }, &self.legend, "", theme);
    }
}

fn about(screen: &SegmentsScreen, area: Rect, context: &Context) -> MapHeader {
    let summary = &screen.drawn().summary;
    let figures = context.segment_map().map_or_else(Vec::new, |map| figures(context, map, summary));
    // On a low screen, the map needs the rows more.
    let with_sizes = area.height >= 16 && area.width >= 70;
    MapHeader { figures, legend: legend(context, summary, with_sizes) }
}

/// Figures of the map.
fn figures(context: &Context, map: &SegmentMap, summary: &MapSummary) -> Vec<Fact> {
    let theme = &context.theme;
    let figure = |figure: String, style: Style, words: String| -> Fact {
        vec![Span::styled(figure, style), Span::styled(words, theme.dim)]
    };
    let count = format::counted;
    let segments = count(map.segments.len() as u64, "segment");
    let mut facts = vec![
        figure(context.size(map.reserved_bytes), theme.accent, format!(" reserved in {segments}")),
        figure(context.size(summary.blocks.bytes), theme.text, format!(" in {}", count(summary.blocks.count, "block"))),
    ];
    // The figure for fragmentation, as in reports: free bytes in segments, as a share of reserved bytes.
    let style = if map.free_bytes > map.reserved_bytes / 5 { theme.warn } else { theme.text };
    let share =
        format!("{} free, {}", context.size(map.free_bytes), format::percent(map.free_bytes, map.reserved_bytes));
    facts.push(figure(share, style, " of reserved".to_owned()));
    if map.free_bytes > 0 {
        facts.push(figure(context.size(map.largest_free_bytes), theme.text, " largest free block".to_owned()));
    }
    if summary.empty.count > 0 {
        let words = format!(" in {}, entirely free", count(summary.empty.count, "segment"));
        facts.push(figure(context.size(summary.empty.bytes), theme.text, words));
    }
    if map.stray_blocks > 0 {
        facts.push(fact(format!("{} outside known segments", count(map.stray_blocks, "block")), theme.warn));
    }
    if !context.filter.is_empty() {
        let words = format!(" in {} matching the filter", count(summary.passing.count, "block"));
        facts.push(figure(context.size(summary.passing.bytes), theme.warn, words));
    }
    facts
}

/// Categories on the map, with their bytes.
fn legend(context: &Context, summary: &MapSummary, with_sizes: bool) -> Vec<Fact> {
    let theme = &context.theme;
    let mut facts = Vec::new();
    for (index, (category, sum)) in Category::ALL.into_iter().zip(summary.categories).enumerate() {
        if sum.count == 0 {
            continue;
        }
        let (long, short) = category_names(category);
        let swatch = match has_letters(theme) {
            true => Span::styled(LETTERS[index], category_style(theme, category).patch(theme.title)),
            false => Span::styled(theme.glyphs.swatch, category_style(theme, category)),
        };
        let words = match with_sizes {
            true => format!(" {long} {}", context.size(sum.bytes)),
            false => format!(" {short}"),
        };
        facts.push(vec![swatch, Span::styled(words, theme.text)]);
    }
    facts.push(vec![Span::styled(theme.glyphs.free, theme.border), Span::styled(" free", theme.text)]);
    facts
}

/// Draws a message where there is no map.
fn draw_without(buffer: &mut Buffer, area: Rect, context: &Context) {
    let theme = &context.theme;
    let (words, more) = match context.segment_map() {
        None => ("loading", String::new()),
        Some(map) if map.stray_blocks > 0 => (
            "this program's blocks are not in segments",
            format!(
                "{} blocks come from the driver's pools (backend:cudaMallocAsync), which have no map",
                format::grouped(map.stray_blocks)
            ),
        ),
        Some(_) => ("PyTorch's allocator holds no memory", "no segments at this moment".to_owned()),
    };
    if area.height == 0 || area.width < 4 {
        return;
    }
    let y = area.y + area.height.saturating_sub(2) / 2;
    for (y, (words, style)) in (y..area.bottom()).zip([(words, theme.title), (&*more, theme.dim)]) {
        let width = (words.chars().count() as u16).min(area.width - 2);
        put(buffer, area.x + (area.width - width) / 2, y, width, words, style, theme);
    }
}

fn facts_of_frame(screen: &SegmentsScreen, context: &Context) -> Vec<Fact> {
    let theme = &context.theme;
    let scale = size(screen.drawn().layout.scale);
    let order = screen.order.as_str();
    let mut zoom = vec![Span::styled("+ -", theme.key), Span::styled(format!(" {scale} per column"), theme.dim)];
    if screen.is_zoomed() {
        zoom.extend([Span::styled(" 0", theme.key), Span::styled(" fit", theme.dim)]);
    }
    let drawn = screen.drawn();
    let rows = drawn.layout.rows();
    let mut facts = vec![fact(order, theme.dim), zoom];
    if rows > screen.page {
        let last = (screen.offset + screen.page).min(rows);
        let [first, last, rows] = [screen.offset + 1, last, rows].map(|row| format::grouped(row as u64));
        facts.push(fact(format!("rows {first}-{last} of {rows}"), theme.dim));
    }
    facts
}
