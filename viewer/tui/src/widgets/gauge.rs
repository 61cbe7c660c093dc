//! Bands of several sizes in a row or a column of cells, with a resolution of an eighth of a cell.

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::Style;

use memlab_base::theme::Theme;

const FROM_LEFT: [&str; 8] = [" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
const FROM_BELOW: [&str; 8] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇"];

/// Bands to draw.
#[derive(Clone, Copy, Debug)]
pub struct Gauge<'a> {
    /// Upper end of each band, and its index in the theme.
    ///
    /// A band that ends no further than those before it is invisible.
    pub edges: &'a [(u64, usize)],
    /// Bytes of the whole length.
    pub whole: u64,
    /// Glyph beyond the bands; `None`: the cell is unchanged.
    pub rest: Option<&'static str>,
}

impl Gauge<'_> {
    /// Draws the bands from left to right in the row of `area`.
    pub fn draw_row(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) {
        for (index, x) in (area.x..area.right()).enumerate() {
            if let Some(cell) = buffer.cell_mut((x, area.y)) {
                self.draw_cell(cell, index, area.width, &FROM_LEFT, theme);
            }
        }
    }

    /// Draws the bands from the bottom up in the column of `area` at `x`.
    pub fn draw_column(&self, buffer: &mut Buffer, x: u16, area: Rect, theme: &Theme) {
        for (index, y) in (area.y..area.bottom()).rev().enumerate() {
            if let Some(cell) = buffer.cell_mut((x, y)) {
                self.draw_cell(cell, index, area.height, &FROM_BELOW, theme);
            }
        }
    }

    /// Marks a size in the row of `area`.
    pub fn mark_row(&self, buffer: &mut Buffer, area: Rect, bytes: u64, theme: &Theme) {
        let eighths = eighths(bytes, self.whole, area.width);
        let x = area.x + (eighths.saturating_sub(1) / 8) as u16;
        if let Some(cell) = buffer.cell_mut((x, area.y)).filter(|_| area.width > 0) {
            mark(cell, if theme.glyphs.unicode { "┃" } else { "|" }, theme.title);
        }
    }

    fn draw_cell(&self, cell: &mut Cell, index: usize, cells: u16, partial: &[&'static str; 8], theme: &Theme) {
        let reach = |bytes: u64| eighths(bytes, self.whole, cells);
        let ground = index * 8;
        let band_at =
            |eighth: usize| self.edges.iter().find(|(edge, _)| ground + eighth < reach(*edge)).map(|(_, band)| *band);
        let Some(low) = band_at(0) else { return self.draw_rest(cell, theme) };
        if theme.is_mono() || !theme.glyphs.unicode {
            let end = (1..8).find(|eighth| band_at(*eighth).is_none());
            let (symbol, band) = match (end, band_at(4)) {
                // The cell at the end of the last band is filled up to that end. Other cells show the wider band.
                (Some(end), _) if theme.glyphs.unicode => (partial[end], low),
                // The first band is visible, however small.
                (None, _) if index == 0 => (theme.glyphs.bands[low], low),
                (_, Some(band)) => (theme.glyphs.bands[band], band),
                (_, None) if index == 0 => (theme.glyphs.bands[low], low),
                (_, None) => return self.draw_rest(cell, theme),
            };
            cell.set_symbol(symbol);
            if !theme.is_mono() {
                cell.set_fg(theme.bands[band]);
            }
            return;
        }
        // A cell shows one edge. The end of all bands comes first, in the colour of the last band; then the end of the
        // first band.
        let end = (1..8).find(|eighth| band_at(*eighth).is_none());
        let split = end.or_else(|| (1..8).find(|eighth| band_at(*eighth) != Some(low)));
        let Some(split) = split else {
            cell.set_symbol("█").set_fg(theme.bands[low]);
            return;
        };
        let band = if end.is_some() { band_at(split - 1).unwrap_or(low) } else { low };
        cell.set_symbol(partial[split]).set_fg(theme.bands[band]);
        if let Some(high) = band_at(split) {
            cell.set_bg(theme.bands[high]);
        }
    }

    fn draw_rest(&self, cell: &mut Cell, theme: &Theme) {
        if let Some(rest) = self.rest {
            cell.set_symbol(rest).set_style(theme.border);
        }
    }
}

/// Puts a sign over a band, keeping the band's colour as background.
pub fn mark(cell: &mut Cell, sign: &str, style: Style) {
    let ground = if cell.symbol() == "█" { cell.fg } else { cell.bg };
    cell.set_symbol(sign).set_style(style).set_bg(ground);
}

/// Length of `bytes` in eighths of a cell; at least one if not zero.
fn eighths(bytes: u64, whole: u64, cells: u16) -> usize {
    let all = usize::from(cells) * 8;
    if whole == 0 {
        return 0;
    }
    let reach = (bytes as f64 / whole as f64 * all as f64).round() as usize;
    reach.clamp(usize::from(bytes > 0).min(all), all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlab_base::theme::{Depth, Palette};

    fn drawn(edges: &[(u64, usize)], whole: u64, cells: u16, theme: &Theme) -> String {
        let area = Rect::new(0, 0, cells, 1);
        let mut buffer = Buffer::empty(area);
        Gauge { edges, whole, rest: Some(".") }.draw_row(&mut buffer, area, theme);
        buffer.content.iter().map(|cell| cell.symbol()).collect()
    }

    #[test]
    fn bands_reach_as_far_as_their_sizes() {
        let theme = |unicode| Theme::new(Palette::Mono, Depth::Ansi, unicode);
        assert_eq!(drawn(&[(30, 0), (50, 2), (80, 3)], 100, 10, &theme(true)), "███▒▒░░░..");
        assert_eq!(drawn(&[(30, 0), (50, 2), (80, 3)], 100, 10, &theme(false)), "###++.....");
        // A band that ends no further than the one before it, and the smallest size.
        assert_eq!(drawn(&[(30, 0), (20, 2)], 100, 10, &theme(true)), "███.......");
        assert_eq!(drawn(&[(1, 0)], 1000, 10, &theme(true)), "▏.........");
        assert_eq!(drawn(&[(25, 0)], 100, 10, &theme(true)), "██▌.......");
        assert_eq!(drawn(&[(2, 0), (50, 1)], 100, 10, &theme(true)), "█▓▓▓▓.....");
        let dark = Theme::new(Palette::Dark, Depth::True, true);
        assert_eq!(drawn(&[(25, 0)], 100, 10, &dark), "██▌.......");
        // Two edges in one cell: the outer one is visible.
        assert_eq!(drawn(&[(22, 0), (27, 1)], 100, 10, &dark), "██▊.......");
        assert_eq!(drawn(&[(25, 0), (30, 1)], 100, 10, &dark), "██▌.......");
    }

    #[test]
    fn any_figures_are_drawn() {
        let dark = Theme::new(Palette::Dark, Depth::True, true);
        assert_eq!(drawn(&[(5, 0)], 0, 3, &dark), "...");
        assert_eq!(drawn(&[(u64::MAX, 0)], 1, 3, &dark), "███");
        assert_eq!(drawn(&[(u64::MAX, 0)], u64::MAX, 0, &dark), "");
    }
}
