//! State and keys of the memory map: the order of segments, the visible part, and the block under the cursor.

use std::sync::Arc;

use crossterm::event::KeyCode;
use memlab_trace::{Segment, SegmentMap};
use serde_json::json;

use super::drawn::{DrawnMap, FilterCache, MapParameters};
use super::filtered_block::FilteredBlock;
use super::layout::Layout;
use super::order::SegmentOrder;
use super::pieces::{Piece, piece_at};
use crate::context::Context;
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use memlab_base::text::place;
use memlab_follow::snapshot::SnapshotNames;
use memlab_report::export::rows::Rows;

/// Screen of the memory map.
#[derive(Clone, Debug, Default)]
pub struct SegmentsScreen {
    /// Order of segments.
    pub order: SegmentOrder,
    /// Address of the segment under the cursor; 0: the first one.
    pub segment: u64,
    /// Address of the block (or hole) in it under the cursor; 0: its first one.
    pub block: u64,
    /// First row on the screen.
    pub offset: usize,
    /// Number of rows that fit on the screen; set when drawn.
    pub page: usize,
    /// Zoom: number of scales finer than the one that fits; negative: coarser.
    pub(super) closer: isize,
    pub(super) drawn: DrawnMap,
}

impl ScreenState for SegmentsScreen {
    fn on_key(&mut self, key: KeyCode, context: &mut Context) {
        match key {
            KeyCode::Char('l') => self.move_piece(true, context),
            KeyCode::Char('h') => self.move_piece(false, context),
            KeyCode::Char('f') => self.go_to_next_hole(context),
            KeyCode::Char('F') => self.go_to_large_hole(context),
            KeyCode::Char('+' | '=') => self.closer += 1,
            KeyCode::Char('-') => self.closer -= 1,
            KeyCode::Char('0') => self.closer = 0,
            _ => {}
        }
    }

    /// Opens the source of the line that requested the block under the cursor.
    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        let piece = self.selected_piece(context)?;
        let Some(block) = piece.block else {
            context.notice = Some("this block is free: no line allocated it".to_owned());
            return None;
        };
        let line = context.process().and_then(|process| process.names.lines.get(&block.stack)).cloned();
        if line.is_none() {
            context.notice = Some("no Python line recorded for this block".to_owned());
        }
        line.map(Action::OpenSource)
    }

    fn scroll(&mut self, by: &dyn Fn(isize) -> isize, context: &Context) {
        self.move_rows(by, context);
    }

    fn sort_by_next(&mut self, _context: &Context) {
        self.order = match self.order {
            SegmentOrder::Address => SegmentOrder::Size,
            SegmentOrder::Size => SegmentOrder::Free,
            SegmentOrder::Free => SegmentOrder::Address,
        };
    }

    fn footer_keys(&self, _context: &Context) -> FooterKeys {
        let keys = [("hl", "block"), ("jk", "segment"), ("fF", "hole"), ("+-", "zoom"), ("⏎", "source")];
        FooterKeys { first: footer_keys(&keys), ..FooterKeys::default() }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "The memory map of PyTorch's allocator",
            keys: &[
                ("j  k", "next, previous segment"),
                ("l  h", "next, previous block or hole"),
                ("f  F", "next hole; the largest hole, then the next smaller one"),
                ("+  -  0", "zoom in, out, the whole map on the page"),
                ("Enter", "the source line that allocated the block"),
            ],
        }
    }

    /// A row for each block that passes the filter.
    fn rows(&self, context: &Context) -> Option<Rows> {
        let columns =
            ["segment", "segment bytes", "address", "bytes", "category", "layer", "line"].map(str::to_owned).to_vec();
        let names = context.process().map(|process| process.names.clone()).unwrap_or_default();
        let mut rows = Vec::new();
        for segment in self.in_order(context) {
            let passes = |block: &&_| context.filter.passes(&FilteredBlock::new(block, &names));
            for block in segment.blocks.iter().filter(passes) {
                let line = names.lines.get(&block.stack).map(|line| place(line, ""));
                let layer = names.layers.get(&block.layer).map(|layer| &**layer);
                rows.push(vec![
                    json!(format!("{:#x}", segment.address)),
                    json!(segment.bytes),
                    json!(format!("{:#x}", block.address)),
                    json!(block.bytes),
                    json!(block.category.as_str()),
                    json!(layer),
                    json!(line),
                ]);
            }
        }
        Some(Rows { columns, rows })
    }
}

impl SegmentsScreen {
    /// Puts the cursor on a piece, by addresses.
    pub fn select(&mut self, segment: u64, block: u64) {
        (self.segment, self.block) = (segment, block);
    }

    /// True if the scale of the map is not the one that fits the screen.
    pub fn is_zoomed(&self) -> bool {
        self.closer != 0
    }

    /// The map on the screen.
    pub fn drawn(&self) -> &DrawnMap {
        &self.drawn
    }
}

impl SegmentsScreen {
    /// Segments in their order.
    pub fn in_order<'c>(&self, context: &'c Context) -> Vec<&'c Segment> {
        context.segment_map().map_or_else(Vec::new, |map| self.order.of(map))
    }

    /// Segment under the cursor, with its position in the order. If it is gone, the one now at its position.
    pub fn selected_segment<'c>(&self, context: &'c Context) -> Option<(usize, &'c Segment)> {
        let map = context.segment_map()?;
        let wanted = self.segment;
        let segments = self.in_order(context);
        if wanted == 0 {
            return Some((0, *segments.first()?));
        }
        let before = map.segments.partition_point(|segment| segment.address <= wanted).saturating_sub(1);
        let segment = map.segments.get(before)?;
        let index = segments.iter().position(|other| other.address == segment.address).unwrap_or(0);
        Some((index, segment))
    }

    /// The piece under the cursor.
    pub fn selected_piece<'c>(&self, context: &'c Context) -> Option<Piece<'c>> {
        let (_, segment) = self.selected_segment(context)?;
        piece_at(segment, self.block)
    }

    /// Sums the map up, unless that is done already.
    pub(super) fn sum_up(&mut self, context: &Context) {
        let Some((map, names)) = map_and_names(context) else { return };
        let mut cache = FilterCache::new(&context.filter, &names);
        self.drawn.sum_up(&map, &context.filter_text, &mut cache);
    }

    /// Lays out a map of this size, and keeps the cursor visible.
    pub(super) fn lay_out(&mut self, columns: u16, rows: u16, context: &Context) {
        self.sum_up(context);
        let Some((map, names)) = map_and_names(context) else { return };
        let mut drawn = std::mem::take(&mut self.drawn);
        let page = usize::from(rows).max(1);
        let (order, closer) = (self.order, self.closer);
        drawn.lay_out(&map, MapParameters { order, columns: usize::from(columns), page, closer });
        let row = self.row_of_selected(&drawn.layout, context);
        let last = drawn.layout.rows().saturating_sub(page);
        let offset = self.offset.clamp((row + 1).saturating_sub(page), row).min(last);
        let shown = offset..(offset + page).min(drawn.layout.rows());
        drawn.show(&order.of(&map), shown, &mut FilterCache::new(&context.filter, &names));
        self.closer = closer.clamp(*drawn.layout.nearer.start(), *drawn.layout.nearer.end());
        (self.offset, self.page, self.drawn) = (offset, page, drawn);
    }

    /// Row of the map where the piece under the cursor starts.
    pub(super) fn row_of_selected(&self, layout: &Layout, context: &Context) -> usize {
        let (Some((index, segment)), Some(piece)) = (self.selected_segment(context), self.selected_piece(context))
        else {
            return 0;
        };
        layout.row_of(index, piece.address.saturating_sub(segment.address))
    }
}

fn map_and_names(context: &Context) -> Option<(Arc<SegmentMap>, Arc<SnapshotNames>)> {
    Some((context.device()?.segments.clone()?, context.process()?.names.clone()))
}
