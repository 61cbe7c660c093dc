//! A screen as SVG: a grid of coloured cells, with selectable text.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use memlab_base::theme::{Palette, Theme};

const CELL_WIDTH: f64 = 8.4;
const CELL_HEIGHT: f64 = 18.0;
const FONT_SIZE: f64 = 14.0;
const MARGIN: f64 = 14.0;

struct Ground {
    background: &'static str,
    foreground: &'static str,
}

fn ground(theme: &Theme) -> Ground {
    match theme.palette {
        Palette::Light | Palette::Mono => Ground { background: "#ffffff", foreground: "#24292f" },
        Palette::Dark => Ground { background: "#0d1117", foreground: "#d0d6de" },
        Palette::Contrast => Ground { background: "#000000", foreground: "#ffffff" },
    }
}

/// Picture of a screen drawn with `theme`.
pub fn picture(buffer: &Buffer, theme: &Theme) -> String {
    let area = buffer.area;
    let ground = ground(theme);
    let width = f64::from(area.width) * CELL_WIDTH + 2.0 * MARGIN;
    let height = f64::from(area.height) * CELL_HEIGHT + 2.0 * MARGIN;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.1} {height:.1}" font-family="'DejaVu Sans Mono','Cascadia Mono',Menlo,Consolas,monospace" font-size="{FONT_SIZE}">"#
    );
    let _ = writeln!(svg, r#"<rect width="100%" height="100%" rx="8" fill="{}"/>"#, ground.background);
    for y in area.y..area.bottom() {
        let row: Vec<&Cell> = (area.x..area.right()).map(|x| &buffer[(x, y)]).collect();
        let top = MARGIN + f64::from(y - area.y) * CELL_HEIGHT;
        draw_backgrounds(&mut svg, &row, top, &ground);
        draw_symbols(&mut svg, &row, top, &ground);
    }
    svg += "</svg>\n";
    svg
}

/// Visible colours of a cell: foreground, background; `None`: the picture's background.
fn colors(cell: &Cell, ground: &Ground) -> (String, Option<String>) {
    let foreground = hex(cell.fg);
    let background = hex(cell.bg);
    if cell.modifier.contains(Modifier::REVERSED) {
        let text = background.unwrap_or_else(|| ground.background.to_owned());
        return (text, Some(foreground.unwrap_or_else(|| ground.foreground.to_owned())));
    }
    (foreground.unwrap_or_else(|| ground.foreground.to_owned()), background)
}

/// Runs of cells with equal values: start and length.
fn runs<T: PartialEq>(values: &[T]) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut start = 0;
    for index in 1..=values.len() {
        if index == values.len() || values[index] != values[start] {
            runs.push((start, index - start));
            start = index;
        }
    }
    if values.is_empty() { Vec::new() } else { runs }
}

fn rectangle(svg: &mut String, left: f64, top: f64, width: f64, height: f64, fill: &str) {
    let _ = writeln!(
        svg,
        r#"<rect x="{left:.2}" y="{top:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}" shape-rendering="crispEdges"/>"#
    );
}

fn draw_backgrounds(svg: &mut String, row: &[&Cell], top: f64, ground: &Ground) {
    let fills: Vec<Option<String>> = row.iter().map(|cell| colors(cell, ground).1).collect();
    for (start, length) in runs(&fills) {
        if let Some(fill) = &fills[start] {
            rectangle(svg, MARGIN + start as f64 * CELL_WIDTH, top, length as f64 * CELL_WIDTH, CELL_HEIGHT, fill);
        }
    }
}

/// Shape of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Block,
    Line,
    Text,
}

impl Shape {
    fn of(symbol: &str) -> Self {
        if block(symbol).is_some() {
            Self::Block
        } else if line(symbol, 0.0, 0.0).is_some() {
            Self::Line
        } else {
            Self::Text
        }
    }
}

/// Path of a frame character, in the cell at `left`, `top`.
fn line(symbol: &str, left: f64, top: f64) -> Option<String> {
    let (middle, center) = (left + CELL_WIDTH / 2.0, top + CELL_HEIGHT / 2.0);
    let (right, bottom) = (left + CELL_WIDTH, top + CELL_HEIGHT);
    let turn = |x: f64, y: f64| format!("M{middle:.2} {y:.2}Q{middle:.2} {center:.2} {x:.2} {center:.2}");
    Some(match symbol {
        "─" => format!("M{left:.2} {center:.2}H{right:.2}"),
        "│" => format!("M{middle:.2} {top:.2}V{bottom:.2}"),
        "╭" => turn(right, bottom),
        "╮" => turn(left, bottom),
        "╰" => turn(right, top),
        "╯" => turn(left, top),
        "┈" => format!("M{left:.2} {center:.2}h2m2 0h2"),
        _ => return None,
    })
}

fn draw_lines(svg: &mut String, cells: &[&Cell], start: usize, top: f64, stroke: &str) {
    let mut path = String::new();
    let symbols: Vec<&str> = cells.iter().map(|cell| cell.symbol()).collect();
    for (offset, length) in runs(&symbols) {
        let left = MARGIN + (start + offset) as f64 * CELL_WIDTH;
        if symbols[offset] == "─" {
            let _ = write!(path, "M{left:.2} {:.2}h{:.2}", top + CELL_HEIGHT / 2.0, length as f64 * CELL_WIDTH);
            continue;
        }
        for piece in 0..length {
            path += &line(symbols[offset], left + piece as f64 * CELL_WIDTH, top).unwrap_or_default();
        }
    }
    let _ = writeln!(svg, r#"<path d="{path}" stroke="{stroke}" fill="none"/>"#);
}

/// Draws blocks as rectangles, which join without seams, frames as lines, and all else as text.
fn draw_symbols(svg: &mut String, row: &[&Cell], top: f64, ground: &Ground) {
    let look: Vec<(String, Modifier, Shape)> = row
        .iter()
        .map(|cell| {
            let kept = cell.modifier & (Modifier::BOLD | Modifier::UNDERLINED | Modifier::ITALIC);
            (colors(cell, ground).0, kept, Shape::of(cell.symbol()))
        })
        .collect();
    for (start, length) in runs(&look) {
        let (fill, modifier, shape) = &look[start];
        let cells = &row[start..start + length];
        match shape {
            Shape::Block => draw_blocks(svg, cells, start, top, fill),
            Shape::Line => draw_lines(svg, cells, start, top, fill),
            Shape::Text if cells.iter().any(|cell| cell.symbol() != " ") => {
                draw_text(svg, cells, start, top, fill, *modifier);
            }
            Shape::Text => {}
        }
    }
}

fn draw_blocks(svg: &mut String, cells: &[&Cell], start: usize, top: f64, fill: &str) {
    let shapes: Vec<_> = cells.iter().map(|cell| block(cell.symbol())).collect();
    for (offset, length) in runs(&shapes) {
        let Some((columns, rows)) = shapes[offset] else { continue };
        let left = MARGIN + (start + offset) as f64 * CELL_WIDTH;
        let height = CELL_HEIGHT * rows;
        // Whole columns are joined; partial columns are not.
        let pieces = if columns < 1.0 { length } else { 1 };
        let width = if columns < 1.0 { CELL_WIDTH * columns } else { length as f64 * CELL_WIDTH };
        for piece in 0..pieces {
            rectangle(svg, left + piece as f64 * CELL_WIDTH, top + CELL_HEIGHT - height, width, height, fill);
        }
    }
}

fn draw_text(svg: &mut String, cells: &[&Cell], start: usize, top: f64, fill: &str, modifier: Modifier) {
    let text: String = cells.iter().map(|cell| cell.symbol()).collect();
    let mut style = String::new();
    if modifier.contains(Modifier::BOLD) {
        style += r#" font-weight="bold""#;
    }
    if modifier.contains(Modifier::ITALIC) {
        style += r#" font-style="italic""#;
    }
    if modifier.contains(Modifier::UNDERLINED) {
        style += r#" text-decoration="underline""#;
    }
    let lead = text.chars().take_while(|character| *character == ' ').count();
    let text = text.trim();
    let left = MARGIN + (start + lead) as f64 * CELL_WIDTH;
    let baseline = top + CELL_HEIGHT * 0.76;
    // The length keeps the grid with any font.
    let length = text.chars().count() as f64 * CELL_WIDTH;
    let _ = writeln!(
        svg,
        r#"<text x="{left:.2}" y="{baseline:.2}" textLength="{length:.2}" fill="{fill}"{style} xml:space="preserve">{}</text>"#,
        escape(text)
    );
}

/// Part of the cell that a block character fills: columns from the left, rows from the bottom.
fn block(symbol: &str) -> Option<(f64, f64)> {
    const LOWER: &str = "▁▂▃▄▅▆▇█";
    const LEFT: &str = "▏▎▍▌▋▊▉";
    let eighths = |set: &str| {
        set.chars().position(|character| symbol.chars().eq([character])).map(|index| (index + 1) as f64 / 8.0)
    };
    eighths(LOWER).map(|rows| (1.0, rows)).or_else(|| eighths(LEFT).map(|columns| (columns, 1.0)))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A colour in markup; `None`: the default colour.
pub(crate) fn hex(color: Color) -> Option<String> {
    let rgb = |red: u8, green: u8, blue: u8| Some(format!("#{red:02x}{green:02x}{blue:02x}"));
    let named = |index: usize| {
        const NAMED_COLOURS: [(u8, u8, u8); 16] = [
            (0, 0, 0),
            (205, 49, 49),
            (13, 188, 121),
            (229, 229, 16),
            (36, 114, 200),
            (188, 63, 188),
            (17, 168, 205),
            (204, 204, 204),
            (102, 102, 102),
            (241, 76, 76),
            (35, 209, 139),
            (245, 245, 67),
            (59, 142, 234),
            (214, 112, 214),
            (41, 184, 219),
            (255, 255, 255),
        ];
        let (red, green, blue) = NAMED_COLOURS[index];
        rgb(red, green, blue)
    };
    match color {
        Color::Reset => None,
        Color::Rgb(red, green, blue) => rgb(red, green, blue),
        Color::Black => named(0),
        Color::Red => named(1),
        Color::Green => named(2),
        Color::Yellow => named(3),
        Color::Blue => named(4),
        Color::Magenta => named(5),
        Color::Cyan => named(6),
        Color::Gray => named(7),
        Color::DarkGray => named(8),
        Color::LightRed => named(9),
        Color::LightGreen => named(10),
        Color::LightYellow => named(11),
        Color::LightBlue => named(12),
        Color::LightMagenta => named(13),
        Color::LightCyan => named(14),
        Color::White => named(15),
        Color::Indexed(index @ 0..16) => named(usize::from(index)),
        Color::Indexed(index @ 16..232) => {
            let level = |part: u8| if part == 0 { 0 } else { part * 40 + 55 };
            let cube = index - 16;
            rgb(level(cube / 36), level(cube / 6 % 6), level(cube % 6))
        }
        Color::Indexed(index) => {
            let grey = 8 + (index - 232) * 10;
            rgb(grey, grey, grey)
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;
    use memlab_base::theme::Depth;

    #[test]
    fn a_screen_becomes_a_picture() {
        // GIVEN a screen with text that looks like an XML tag, and blocks
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 2));
        buffer.set_string(1, 0, "<a> & b", Style::new().fg(Color::Rgb(1, 2, 3)));
        buffer.set_string(0, 1, "██▄", Style::new().fg(Color::Indexed(208)));
        // WHEN drawn
        let svg = picture(&buffer, &Theme::new(Palette::Dark, Depth::True, true));
        // THEN text is escaped and in its colour, whole blocks are joined
        assert!(svg.contains(r##"fill="#010203" xml:space="preserve">&lt;a&gt; &amp; b</text>"##), "{svg}");
        assert_eq!(svg.matches(r##"fill="#ff8700""##).count(), 2, "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn runs_cover_all() {
        assert_eq!(runs(&[1, 1, 2, 3, 3]), [(0, 2), (2, 1), (3, 2)]);
        assert!(runs::<u8>(&[]).is_empty());
    }
}
