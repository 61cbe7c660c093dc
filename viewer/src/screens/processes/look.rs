//! What a device is called beside others, its bar, and how its state looks.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::imbalance::Imbalance;
use super::item::ProcessItem;
use crate::context::Context;
use crate::format;
use crate::snapshot::ProcessState;
use crate::theme::Theme;
use crate::widgets::gauge::Gauge;

/// A device's allocated, reserved and used memory and its peak, of all there is.
pub fn draw_bar(buffer: &mut Buffer, area: Rect, item: &ProcessItem, theme: &Theme) {
    let edges = [(item.allocated_bytes, 0), (item.reserved_bytes, 2), (item.used_bytes, 3)];
    let most = item.used_bytes.max(item.reserved_bytes).max(item.allocated_bytes).max(item.peak_allocated_bytes);
    let whole = if item.total_bytes > 0 { item.total_bytes } else { most };
    let gauge = Gauge { edges: &edges, whole, rest: Some(theme.glyphs.free) };
    gauge.draw_row(buffer, area, theme);
    if item.peak_allocated_bytes > 0 {
        gauge.mark_row(buffer, area, item.peak_allocated_bytes, theme);
    }
}

/// What a device is called beside others: `rank 3`, `rank 3 cuda:1` where a rank has several, `4242 cuda:1`.
pub fn who(item: &ProcessItem, all: &[ProcessItem]) -> String {
    let device = item.device.split(' ').next().unwrap_or_default();
    match item.rank {
        Some(rank) if all.iter().all(|other| other.rank != item.rank || other.target == item.target) => {
            format!("rank {rank}")
        }
        Some(rank) => format!("rank {rank} {device}").trim_end().to_owned(),
        None => format!("{} {device}", item.pid).trim_end().to_owned(),
    }
}

/// The same in words, and how they look: the more uneven, the louder.
pub fn imbalance_words(imbalance: &Imbalance, items: &[ProcessItem], context: &Context) -> (String, Style) {
    let theme = &context.theme;
    let over = imbalance.peak_bytes.saturating_sub(imbalance.median_bytes);
    let size = |bytes| format::bytes(bytes, context.units);
    let name =
        items.iter().find(|item| item.target == imbalance.highest).map(|item| who(item, items)).unwrap_or_default();
    // A hundredth is noise.
    if over < imbalance.median_bytes / 100 {
        return (format!("peaks are alike: {}", size(imbalance.peak_bytes)), theme.dim);
    }
    let percent = format::percent(over, imbalance.median_bytes);
    let words =
        format!("{name} peaks highest: {}, {percent} ({}) over the median", size(imbalance.peak_bytes), size(over));
    (words, if over > imbalance.median_bytes / 10 { theme.warn } else { theme.text })
}

/// The colour of a state.
pub fn state_style(state: ProcessState, theme: &Theme) -> Style {
    match state {
        ProcessState::Recording => theme.good,
        ProcessState::Opening { .. } | ProcessState::Stopped => theme.warn,
        ProcessState::Ended { code: None | Some(0), signal: None } => theme.dim,
        ProcessState::Ended { .. } | ProcessState::Killed | ProcessState::Unreadable => theme.bad,
    }
}
