//! Exports of a run in formats of other programs, one file each, and pictures of a screen as text and SVG.

pub mod csv;
pub mod flamegraph;
pub mod json;
pub mod memory_viz;
pub mod perfetto;
mod pickle;
pub mod rows;
pub mod speedscope;
pub mod svg;

use ratatui::buffer::Buffer;
use unicode_width::UnicodeWidthStr;

/// Characters of a screen without colours, row by row.
pub fn text_picture(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut picture = String::new();
    for y in area.y..area.bottom() {
        let mut line = String::new();
        let mut skip = 0;
        for x in area.x..area.right() {
            let symbol = buffer[(x, y)].symbol();
            if skip == 0 {
                line += symbol;
            }
            // A wide character occupies the next cell as well.
            skip = symbol.width().max(skip).saturating_sub(1);
        }
        picture += line.trim_end();
        picture.push('\n');
    }
    picture
}
