//! Bar of a device, and styles of its state.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::imbalance::Imbalance;
use super::item::RankItem;
use crate::context::Context;
use crate::widgets::gauge::Gauge;
use memlab_base::theme::Theme;
use memlab_follow::snapshot::ProcessState;
use memlab_units::format;

/// Draws a device's allocated, reserved and used memory and its peak, on the scale of its total memory.
pub fn draw_bar(buffer: &mut Buffer, area: Rect, item: &RankItem, theme: &Theme) {
    let edges = [(item.allocated_bytes, 0), (item.reserved_bytes, 2), (item.used_bytes, 3)];
    let most = item.used_bytes.max(item.reserved_bytes).max(item.allocated_bytes).max(item.peak_allocated_bytes);
    let whole = if item.total_bytes > 0 { item.total_bytes } else { most };
    let gauge = Gauge { edges: &edges, whole, rest: Some(theme.glyphs.free) };
    gauge.draw_row(buffer, area, theme);
    if item.peak_allocated_bytes > 0 {
        gauge.mark_row(buffer, area, item.peak_allocated_bytes, theme);
    }
}

/// Imbalance between devices in words, with a style that is stronger for more imbalance.
pub fn imbalance_words(imbalance: &Imbalance, items: &[RankItem], context: &Context) -> (String, Style) {
    let theme = &context.theme;
    let over = imbalance.peak_bytes.saturating_sub(imbalance.median_bytes);
    let name = items.iter().find(|item| item.target == imbalance.highest).map_or("", |item| &item.name);
    // Up to a hundredth is noise.
    if over < imbalance.median_bytes / 100 {
        return (format!("even peaks: {}", context.size(imbalance.peak_bytes)), theme.dim);
    }
    let percent = format::percent(over, imbalance.median_bytes);
    let words = format!(
        "{name} has the highest peak: {}, {percent} ({}) over the median",
        context.size(imbalance.peak_bytes),
        context.size(over)
    );
    (words, if over > imbalance.median_bytes / 10 { theme.warn } else { theme.text })
}

/// Style of a state.
pub fn state_style(state: ProcessState, theme: &Theme) -> Style {
    match state {
        ProcessState::Recording => theme.good,
        ProcessState::Opening { .. } | ProcessState::Stopped => theme.warn,
        ProcessState::Ended { code: None | Some(0), signal: None } => theme.dim,
        ProcessState::Ended { .. } | ProcessState::Killed | ProcessState::Unreadable => theme.bad,
    }
}
