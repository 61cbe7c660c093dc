//! What a chart stacks.

use ratatui::style::Color;

use crate::widgets::resample::TimeColumn;
use memlab_base::theme::Theme;

/// The bands, from the ground up.
pub struct Bands {
    /// For each column, how far each band reaches.
    pub edges: Vec<Vec<u64>>,
    /// The colour and the glyph of each band.
    pub styles: Vec<(Color, &'static str)>,
}

/// What was allocated, reserved and in use.
pub fn totals(columns: &[TimeColumn], theme: &Theme) -> Bands {
    let styles = std::iter::zip(theme.bands, theme.glyphs.bands).collect();
    Bands { edges: columns.iter().map(|column| column.edges().to_vec()).collect(), styles }
}
