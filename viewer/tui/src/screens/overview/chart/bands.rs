//! Stacked bands of a chart.

use ratatui::style::Color;

use memlab_base::resample::TimeColumn;
use memlab_base::theme::Theme;

/// Bands, from the bottom up.
pub struct Bands {
    /// Upper edge of each band, for each column.
    pub edges: Vec<Vec<u64>>,
    /// Colour and glyph of each band.
    pub styles: Vec<(Color, &'static str)>,
}

/// Bands of allocated, reserved and used memory.
pub fn totals(columns: &[TimeColumn], theme: &Theme) -> Bands {
    let styles = std::iter::zip(theme.bands, theme.glyphs.bands).collect();
    Bands { edges: columns.iter().map(|column| column.edges().to_vec()).collect(), styles }
}
