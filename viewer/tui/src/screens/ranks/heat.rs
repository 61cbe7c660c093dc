//! The heat map: a row of cells for each rank, higher and warmer when fuller. The heights suffice without colour.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::job_time::JobTime;
use crate::size_units::Units;
use crate::widgets::pane::{put, put_right};
use memlab_base::theme::Theme;
use memlab_units::format;

const HEIGHTS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII_HEIGHTS: [&str; 8] = [".", ":", "-", "=", "+", "*", "#", "@"];

/// Scale of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeatScale {
    /// The highest peak of all rows.
    #[default]
    HighestPeak,
    /// The size of each device.
    Device,
}

impl HeatScale {
    /// The other scale.
    pub fn next(self) -> Self {
        match self {
            Self::HighestPeak => Self::Device,
            Self::Device => Self::HighestPeak,
        }
    }
}

/// A mark in a row.
pub struct Mark {
    /// Column.
    pub column: u16,
    /// Style.
    pub style: Style,
    /// Character; `None`: the cell's own.
    pub sign: Option<&'static str>,
}

fn heights(theme: &Theme) -> &'static [&'static str; 8] {
    if theme.glyphs.unicode { &HEIGHTS } else { &ASCII_HEIGHTS }
}

/// Draws a row of cells; `whole`: bytes of a full cell.
pub fn draw_cells(buffer: &mut Buffer, area: Rect, peaks: &[Option<u64>], whole: u64, theme: &Theme) {
    for (x, bytes) in (area.x..area.right()).zip(peaks) {
        let (sign, style) = match bytes {
            None => continue,
            Some(0) => (if theme.glyphs.unicode { "·" } else { "_" }, theme.dim),
            Some(bytes) => {
                let whole = u128::from(whole.max(1));
                let eighth = (u128::from(*bytes) * 8).div_ceil(whole).clamp(1, 8) as usize;
                let color = theme.heat(*bytes as f64 / whole as f64);
                let style = if theme.is_mono() { Style::new() } else { Style::new().fg(color) };
                (heights(theme)[eighth - 1], style)
            }
        };
        put(buffer, x, area.y, 1, sign, style, theme);
    }
}

/// Draws marks into a row of cells.
pub fn draw_marks(buffer: &mut Buffer, area: Rect, marks: &[Mark], theme: &Theme) {
    for mark in marks.iter().filter(|mark| mark.column < area.width) {
        let x = area.x + mark.column;
        if let Some(sign) = mark.sign {
            put(buffer, x, area.y, 1, sign, mark.style, theme);
        } else if let Some(cell) = buffer.cell_mut((x, area.y)) {
            cell.set_style(mark.style);
        }
    }
}

/// Draws the scale of the heights, and the end of the time axis.
pub fn draw_legend(
    buffer: &mut Buffer,
    area: Rect,
    scale: HeatScale,
    highest: u64,
    time: &JobTime,
    units: Units,
    theme: &Theme,
) {
    let ramp = heights(theme);
    let mut x = area.x;
    for step in [0, 2, 4, 7] {
        let style = match theme.is_mono() {
            true => theme.text,
            false => Style::new().fg(theme.heat((step + 1) as f64 / 8.0)),
        };
        x += put(buffer, x, area.y, area.right().saturating_sub(x), ramp[step], style, theme);
    }
    let lasted = format::duration(time.duration);
    let words = match scale {
        HeatScale::HighestPeak => format!(" {}", units.size(highest)),
        HeatScale::Device => " the whole device".to_owned(),
    };
    let right = lasted.len() as u16 + 2;
    let room = area.right().saturating_sub(x + right);
    if words.len() as u16 <= room {
        put(buffer, x, area.y, room, &words, theme.dim, theme);
        put_right(buffer, area.right(), area.y, right, &lasted, theme.dim, theme);
    } else {
        put(buffer, x, area.y, area.right().saturating_sub(x), &words, theme.dim, theme);
    }
}
