//! Panes: frames with titles, and text in them.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::border;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Widget};

use memlab_base::text;
use memlab_base::theme::Theme;

const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// Draws a frame around `area`, with a title on the left and facts on the right; returns the inner area.
///
/// If the facts do not fit, the first ones are left out.
pub fn frame(buffer: &mut Buffer, area: Rect, title: &str, facts: Vec<Fact>, theme: &Theme) -> Rect {
    let title = Span::styled(format!(" {} ", text::clean(title)), theme.title);
    let mut room = usize::from(area.width).saturating_sub(title.width() + 6);
    let mut spans: Vec<Span<'_>> = Vec::new();
    for fact in facts.into_iter().rev() {
        let width: usize = fact.iter().map(Span::width).sum::<usize>() + 2;
        if width > room {
            break;
        }
        room -= width;
        spans.splice(0..0, std::iter::once(Span::raw(" ")).chain(fact).chain(std::iter::once(Span::raw(" "))));
    }
    let block = Block::new()
        .borders(Borders::ALL)
        .border_set(if theme.glyphs.unicode { border::ROUNDED } else { ASCII_BORDER })
        .border_style(theme.border)
        .title(Line::from(title))
        .title(Line::from(spans).right_aligned());
    let inner = block.inner(area);
    block.render(area, buffer);
    inner
}

/// Words in a frame's upper line that stay together.
pub type Fact = Vec<Span<'static>>;

/// A fact in one style.
pub fn fact(words: impl AsRef<str>, style: Style) -> Fact {
    vec![Span::styled(text::clean(words.as_ref()).into_owned(), style)]
}

/// Wraps a text to lines of at most `columns`.
pub fn wrapped(words: &str, columns: usize) -> Vec<String> {
    text::filled(Vec::new(), &text::clean(words), "", columns)
}

/// Puts `words` at a position, cut to `columns`; returns the columns used.
pub fn put(buffer: &mut Buffer, x: u16, y: u16, columns: u16, words: &str, style: Style, theme: &Theme) -> u16 {
    let area = buffer.area;
    if y < area.y || y >= area.bottom() || x >= area.right() {
        return 0;
    }
    let columns = columns.min(area.right() - x);
    let words = text::clean(words);
    let words = text::fit(&words, usize::from(columns), theme.glyphs.ellipsis);
    buffer.set_stringn(x, y, &words, usize::from(columns), style).0 - x
}

/// Puts `words` so that they end before column `right`.
pub fn put_right(buffer: &mut Buffer, right: u16, y: u16, columns: u16, words: &str, style: Style, theme: &Theme) {
    let width = (text::width(words) as u16).min(columns);
    put(buffer, right.saturating_sub(width), y, width, words, style, theme);
}

/// Puts spans in sequence, as far as they fit; returns the column after them.
pub fn put_spans(buffer: &mut Buffer, x: u16, y: u16, right: u16, spans: &[Span<'_>], theme: &Theme) -> u16 {
    let mut x = x;
    for span in spans {
        x += put(buffer, x, y, right.saturating_sub(x), &span.content, span.style, theme);
    }
    x
}

/// Clears `area` and fills it with the theme's background.
pub fn clear(buffer: &mut Buffer, area: Rect, theme: &Theme) {
    ratatui::widgets::Clear.render(area.intersection(buffer.area), buffer);
    buffer.set_style(area.intersection(buffer.area), theme.text);
}

/// A box of the wanted size in the middle of `area`.
pub fn centered(area: Rect, columns: u16, rows: u16) -> Rect {
    let (width, height) = (columns.min(area.width), rows.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

/// The bar of a share of a whole, in eighths of a column.
pub fn bar(share: f64, columns: u16, unicode: bool) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if !unicode {
        return "#".repeat((share * f64::from(columns)).round().max(0.0) as usize);
    }
    let eighths = ((share * f64::from(columns) * 8.0).round().max(0.0) as usize).min(usize::from(columns) * 8);
    let eighths = if share > 0.0 { eighths.max(1) } else { 0 };
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}
