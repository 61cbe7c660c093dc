//! The segments: their description in the margin, and their blocks beside it.
//!
//! The height of a cell is its allocated share, so that holes narrower than a column are visible.

use std::ops::RangeInclusive;

use memlab_trace::Segment;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::cells::Cell;
use super::layout::SegmentSpan;
use super::pieces::{Piece, piece_at};
use super::state::SegmentsScreen;
use super::style::{category_style, has_letters};
use crate::context::{Context, HitTarget};
use crate::size_units::Units;
use crate::widgets::pane::{put, put_right};
use memlab_base::category::{LETTERS, category_index};
use memlab_base::text;
use memlab_base::theme::{Palette, Theme};

/// Columns of an address in hexadecimal digits.
const ADDRESS: u16 = 12;
/// Minimum width of a block with a label.
const MIN_LABEL_COLUMNS: usize = 10;
const LOWER: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Columns of the margin: address, size, free. A column without room has width 0.
fn margin(width: u16, units: Units) -> [u16; 3] {
    let size = match units {
        Units::Auto => 8,
        Units::Mebibytes | Units::Gibibytes => 12,
        Units::Bytes => 15,
    };
    let all = [ADDRESS, size, size];
    let takes = |columns: &[u16; 3]| columns.iter().map(|width| width + 1).sum::<u16>() + 1;
    [all, [ADDRESS, size, 0], [0, size, 0]]
        .into_iter()
        .find(|columns| takes(columns) <= width * 9 / 20)
        .unwrap_or([0; 3])
}

/// Area of the bars within the map's area.
pub fn place(area: Rect, units: Units) -> Rect {
    let margin: u16 = margin(area.width, units).iter().filter(|width| **width > 0).map(|width| width + 1).sum();
    let margin = if margin > 0 { margin + 1 } else { 0 };
    let heading = u16::from(margin > 0 && area.height > 1);
    Rect { x: area.x + margin, y: area.y + heading, width: area.width - margin, height: area.height - heading }
}

/// Draws the rows on the screen.
pub fn draw(buffer: &mut Buffer, area: Rect, bars: Rect, screen: &SegmentsScreen, context: &Context) {
    let segments = screen.in_order(context);
    let drawn = screen.drawn();
    if bars.width == 0 || bars.height == 0 {
        return;
    }
    let columns = margin(area.width, context.units);
    if bars.y > area.y {
        draw_margin(
            buffer,
            Rect { height: 1, ..area },
            columns,
            ["segment", "size", "free"],
            context.theme.dim,
            &context.theme,
        );
    }
    let selected = screen.selected_segment(context).map(|(index, _)| index);
    let piece = screen.selected_piece(context);
    let mut row_before = None;
    for (span, cells) in &drawn.parts {
        let Some(row) = span.row.checked_sub(screen.offset).filter(|row| *row < usize::from(bars.height)) else {
            continue;
        };
        let line = Rect { y: bars.y + row as u16, height: 1, ..area };
        let segment = segments[span.segment];
        let cell_bytes = drawn.layout.cell_bytes(span.segment);
        if row_before != Some(row) {
            let sharing = &segments[span.segment..][..span.sharing];
            let begins_at = cell_bytes.saturating_mul(span.from as u64);
            draw_facts(buffer, line, columns, sharing, begins_at, context);
            context.hit_targets.put(Rect { width: bars.x - area.x, ..line }, HitTarget::Block(segment.address, 0));
            let here = span.segment..span.segment + span.sharing;
            if selected.is_some_and(|selected| here.contains(&selected)) && begins_at == 0 {
                buffer.set_style(Rect { width: (bars.x - area.x).saturating_sub(1), ..line }, context.theme.selected);
            }
            row_before = Some(row);
        }
        let bar = Rect { x: bars.x + span.column as u16, width: span.cells as u16, ..line };
        let chosen =
            piece.filter(|_| selected == Some(span.segment)).map(|piece| cells_of(&piece, segment, cell_bytes));
        Bar { context, segment, span, cells, cell_bytes }.draw(buffer, bar, chosen);
    }
}

/// Cells of a segment that contain part of a piece.
fn cells_of(piece: &Piece<'_>, segment: &Segment, cell_bytes: u64) -> RangeInclusive<usize> {
    let cell = |address: u64| (address.saturating_sub(segment.address) / cell_bytes) as usize;
    cell(piece.address)..=cell(piece.end().saturating_sub(1).max(piece.address))
}

fn draw_facts(
    buffer: &mut Buffer,
    line: Rect,
    columns: [u16; 3],
    sharing: &[&Segment],
    begins_at: u64,
    context: &Context,
) {
    let theme = &context.theme;
    let sum = |of: fn(&Segment) -> u64| sharing.iter().fold(0, |sum: u64, segment| sum.saturating_add(of(segment)));
    if begins_at > 0 {
        let words = format!("+{}", context.size(begins_at));
        draw_margin(buffer, line, columns, [&words, "", ""], theme.border, theme);
        return;
    }
    let who = match sharing {
        [segment] => format!("{:x}", segment.address),
        _ => format!("{} segments", sharing.len()),
    };
    let free = sum(|segment| segment.free_bytes);
    let free = if free == 0 { "–".to_owned() } else { context.size(free) };
    let style = if sharing.len() == 1 { theme.text } else { theme.dim };
    draw_margin(buffer, line, columns, [&who, &context.size(sum(|segment| segment.bytes)), &free], style, theme);
}

fn draw_margin(buffer: &mut Buffer, line: Rect, columns: [u16; 3], words: [&str; 3], style: Style, theme: &Theme) {
    let mut x = line.x;
    for (width, words) in columns.into_iter().zip(words).filter(|(width, _)| *width > 0) {
        put_right(buffer, x + width, line.y, width, words, style, theme);
        x += width + 1;
    }
}

/// Part of a segment in a row.
struct Bar<'a> {
    context: &'a Context,
    segment: &'a Segment,
    span: &'a SegmentSpan,
    cells: &'a [Cell],
    cell_bytes: u64,
}

impl Bar<'_> {
    /// Draws the bar; `chosen`: the segment's cells under the cursor.
    fn draw(&self, buffer: &mut Buffer, area: Rect, chosen: Option<RangeInclusive<usize>>) {
        let theme = &self.context.theme;
        let mut index = 0;
        while index < self.cells.len() {
            let piece = self.cells[index].piece;
            let length = self.cells[index..].iter().take_while(|cell| cell.piece == piece).count();
            let x = area.x + index as u16;
            self.context
                .hit_targets
                .put(Rect { x, width: length as u16, ..area }, HitTarget::Block(self.segment.address, piece));
            for (offset, cell) in self.cells[index..index + length].iter().enumerate() {
                let is_chosen =
                    chosen.as_ref().is_some_and(|chosen| chosen.contains(&(self.span.from + index + offset)));
                let (symbol, style) = if is_chosen { chosen_cell_glyph(cell, theme) } else { cell_glyph(cell, theme) };
                if let Some(target) = buffer.cell_mut((x + offset as u16, area.y)) {
                    target.set_symbol(&symbol).set_style(style);
                }
            }
            self.draw_label(buffer, Rect { x, width: length as u16, ..area }, index, &chosen);
            index += length;
        }
    }

    /// Draws the label of a block or a hole on it, if it fits.
    fn draw_label(&self, buffer: &mut Buffer, area: Rect, index: usize, chosen: &Option<RangeInclusive<usize>>) {
        let theme = &self.context.theme;
        let length = usize::from(area.width);
        if length < MIN_LABEL_COLUMNS {
            return;
        }
        let Some(piece) = piece_of(self.segment, &self.cells[index]) else { return };
        let mut own = cells_of(&piece, self.segment, self.cell_bytes);
        let first = self.span.from + index;
        // One label per piece: at its start, or in the next row if that row contains more of it.
        let is_first = first.saturating_sub(*own.start()) < MIN_LABEL_COLUMNS;
        let is_chosen = chosen.as_ref().is_some_and(|chosen| own.any(|cell| chosen.contains(&cell)));
        let cells = &self.cells[index..index + length];
        let is_whole = cells.iter().all(|cell| cell.passes || cell.category.is_none());
        if !is_first || !is_whole {
            return;
        }
        let words = self.words(&piece, length - 2);
        let style = match (piece.block, is_chosen) {
            _ if has_letters(theme) => theme.dim,
            (None, _) => theme.dim,
            (Some(block), true) => chosen_style(theme).fg(theme.category(block.category)),
            (Some(block), false) => {
                Style::new().bg(theme.category(block.category)).fg(theme.on_category[category_index(block.category)])
            }
        };
        let style = if is_chosen { chosen_style(theme).add_modifier(Modifier::BOLD) } else { style };
        put(buffer, area.x + 1, area.y, area.width - 2, &words, style, theme);
    }

    /// Size, and with more room the layer; empty if not even the size fits.
    fn words(&self, piece: &Piece<'_>, room: usize) -> String {
        let theme = &self.context.theme;
        let size = self.context.size(piece.bytes);
        // Blanks separate the label from letters and dots.
        let padding = if piece.block.is_none() || has_letters(theme) { " " } else { "" };
        let more = match piece.block {
            None => Some("free".to_owned()),
            Some(block) => {
                let layer = self.context.process().and_then(|process| process.names.layers.get(&block.layer));
                layer.filter(|layer| !layer.is_empty()).map(|layer| text::clean(layer).into_owned())
            }
        };
        let all = more.map(|more| format!("{padding}{size} {more}{padding}"));
        let words = all.into_iter().chain([format!("{padding}{size}{padding}")]);
        words.into_iter().find(|words| text::width(words) <= room).unwrap_or_default()
    }
}

/// The piece of a cell, if the cell contains no other.
fn piece_of<'a>(segment: &'a Segment, cell: &Cell) -> Option<Piece<'a>> {
    piece_at(segment, cell.piece).filter(|piece| piece.address == cell.piece)
}

/// Character and style of a cell.
fn cell_glyph(cell: &Cell, theme: &Theme) -> (String, Style) {
    let Some(category) = cell.category else { return (theme.glyphs.free.to_owned(), theme.border) };
    let letters = has_letters(theme);
    if !cell.passes {
        return (if theme.glyphs.unicode { "░" } else { "-" }.to_owned(), theme.border);
    }
    let style = category_style(theme, category);
    if letters {
        let letter = LETTERS[category_index(category)];
        // A capital letter marks the start of a block.
        let letter = if cell.begins && cell.eighths >= 4 { letter.to_uppercase() } else { letter.to_lowercase() };
        return (letter, style);
    }
    match tone(style.fg, cell.is_odd) {
        // Seven eighths of a row leave a gap below the row above.
        Some(color) => (LOWER[usize::from((cell.eighths.min(8) * 7 / 8).max(1))].to_owned(), style.fg(color)),
        // A gap separates blocks.
        None if cell.eighths >= 8 && cell.ends => ("▊".to_owned(), style),
        None => (LOWER[usize::from(cell.eighths.min(8))].to_owned(), style),
    }
}

/// Colour of a block, darker for every other block, to distinguish neighbours; `None`: the terminal lacks such colours.
fn tone(color: Option<Color>, is_odd: bool) -> Option<Color> {
    let Some(Color::Rgb(red, green, blue)) = color else { return None };
    let darker = |part: u8| (u16::from(part) * 3 / 4) as u8;
    Some(if is_odd { Color::Rgb(darker(red), darker(green), darker(blue)) } else { Color::Rgb(red, green, blue) })
}

/// Background under the cursor.
fn chosen_style(theme: &Theme) -> Style {
    match theme.title.fg.filter(|_| !theme.is_mono()) {
        Some(bright) => {
            Style::new().bg(bright).fg(if theme.palette == Palette::Light { Color::White } else { Color::Black })
        }
        None => Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
    }
}

/// Character and style of a cell under the cursor: its category's colour on a bright background.
fn chosen_cell_glyph(cell: &Cell, theme: &Theme) -> (String, Style) {
    let ground = chosen_style(theme);
    if has_letters(theme) {
        let (symbol, _) = cell_glyph(&Cell { passes: true, ..*cell }, theme);
        return (symbol, ground);
    }
    match cell.category {
        Some(category) => (theme.glyphs.swatch.to_owned(), ground.fg(theme.category(category))),
        None => (theme.glyphs.free.to_owned(), ground),
    }
}
