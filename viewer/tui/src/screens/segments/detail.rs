//! Details of the block or hole under the cursor.

use memlab_trace::{BlockView, Segment};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::pieces::{Piece, neighbours};
use super::state::SegmentsScreen;
use super::style::category_style;
use crate::context::Context;
use crate::widgets::facts::{draw_with_stack, flow, labelled};
use crate::widgets::pane::{Fact, fact, frame};
use memlab_base::category::category_names;
use memlab_base::text::{NO_LAYER, phase_name};
use memlab_follow::snapshot::ProcessSnapshot;
use memlab_units::format;

/// Draws the details.
pub fn draw(buffer: &mut Buffer, area: Rect, screen: &SegmentsScreen, context: &Context) {
    let theme = &context.theme;
    let (Some(process), Some((index, segment)), Some(piece)) =
        (context.process(), screen.selected_segment(context), screen.selected_piece(context))
    else {
        frame(buffer, area, "Nothing", Vec::new(), theme);
        return;
    };
    let all = context.segment_map().map_or(0, |map| map.segments.len());
    let title = if piece.block.is_some() { "Block" } else { "Free" };
    let of = format!(
        "segment {} of {}: {}, {} free",
        format::grouped(index as u64 + 1),
        format::grouped(all as u64),
        context.size(segment.bytes),
        context.size(segment.free_bytes)
    );
    let inner = frame(buffer, area, title, vec![fact(of, theme.dim)], theme);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    match piece.block {
        Some(block) => {
            let facts = facts_of_block(context, process, block);
            draw_with_stack(buffer, inner, &facts, process, block.stack, theme);
        }
        None => flow(buffer, inner, &facts_of_hole(context, process, segment, &piece), theme.glyphs.separator, theme),
    }
}

/// Time of the map: nanoseconds since the trace's start.
fn moment(context: &Context, process: &ProcessSnapshot) -> u64 {
    process.shown_at.map_or_else(|| process.until(context.now_unix_ns), |shown_at| shown_at.time)
}

fn facts_of_block(context: &Context, process: &ProcessSnapshot, block: &BlockView) -> Vec<Fact> {
    let theme = &context.theme;
    let (category, _) = category_names(block.category);
    let layer = process.names.layers.get(&block.layer).map(|layer| &**layer).filter(|layer| !layer.is_empty());
    let age = moment(context, process).saturating_sub(block.time);
    let mut facts = vec![
        vec![
            Span::styled(theme.glyphs.swatch, category_style(theme, block.category)),
            Span::styled(format!(" {}", context.size(block.bytes)), theme.accent),
            Span::styled(format!(" {category}"), theme.text),
        ],
        labelled("layer", layer.unwrap_or(NO_LAYER), theme),
        labelled("age", format!("{}, from {}", format::duration(age), format::seconds(block.time)), theme),
        labelled("address", format!("{:#x}", block.address), theme),
        labelled("exactly", format!("{} bytes", format::grouped(block.bytes)), theme),
    ];
    let phase = phase_name(block.phase);
    if !phase.is_empty() {
        facts.insert(2, labelled("phase", phase, theme));
    }
    facts
}

fn facts_of_hole(context: &Context, process: &ProcessSnapshot, segment: &Segment, hole: &Piece<'_>) -> Vec<Fact> {
    let theme = &context.theme;
    let mut facts = vec![
        vec![
            Span::styled(theme.glyphs.free, theme.dim),
            Span::styled(format!(" {}", context.size(hole.bytes)), theme.accent),
            Span::styled(" free", theme.text),
        ],
        labelled("address", format!("{:#x}", hole.address), theme),
        labelled("exactly", format!("{} bytes", format::grouped(hole.bytes)), theme),
    ];
    if context.segment_map().is_some_and(|map| map.largest_free_bytes == hole.bytes) {
        facts.push(fact("the largest free block", theme.text));
    }
    if segment.pool != 0 {
        facts.push(fact("in a private pool of CUDA graphs: only their captures can use it", theme.text));
    } else if segment.blocks.is_empty() {
        facts.push(fact("the segment has no block in use: torch.cuda.empty_cache() releases it", theme.text));
    }
    for (side, beside) in ["before it", "after it"].into_iter().zip(neighbours(segment, hole)) {
        let Some(block) = beside.and_then(|piece| piece.block) else { continue };
        let line = process.names.lines.get(&block.stack);
        let by = line.map_or_else(String::new, |line| format!(" by {}", process.file_names.place(line)));
        let (category, _) = category_names(block.category);
        facts.push(labelled(side, format!("{} {category}{by}", context.size(block.bytes)), theme));
    }
    facts
}
