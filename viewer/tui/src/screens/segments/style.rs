//! Styles of categories on the map.

use memlab_trace::Category;
use ratatui::style::Style;

use memlab_base::theme::Theme;

/// Whether letters mark categories: where there are no colours, or no characters to fill a cell.
pub fn has_letters(theme: &Theme) -> bool {
    theme.is_mono() || !theme.glyphs.unicode
}

/// The style of a category's cells.
pub fn category_style(theme: &Theme, category: Category) -> Style {
    if theme.is_mono() { Style::new() } else { Style::new().fg(theme.category(category)) }
}
