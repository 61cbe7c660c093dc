//! Styles of categories on the map.

use memlab_trace::Category;
use ratatui::style::Style;

use memlab_base::theme::Theme;

/// True if letters mark categories: without colours, or without characters that fill a cell.
pub fn has_letters(theme: &Theme) -> bool {
    theme.is_mono() || !theme.glyphs.unicode
}

/// Style of a category's cells.
pub fn category_style(theme: &Theme, category: Category) -> Style {
    if theme.is_mono() { Style::new() } else { Style::new().fg(theme.category(category)) }
}
