//! The memory map: the segments, which part of them is on the screen, and the block under the cursor.

mod cells;
mod drawn;
mod layout;
mod pieces;

use std::sync::Arc;

use crossterm::event::KeyCode;
use memlab_trace::{BlockView, Segment, SegmentMap};

pub use self::cells::Cell;
pub use self::drawn::{Digest, Drawn};
use self::drawn::{Look, Sieve};
pub use self::layout::{Layout, Stretch};
pub use self::pieces::{Piece, neighbours, piece_at, pieces};
use self::pieces::{end, piece_after};
use super::App;
use crate::filter::{Field, Row};
use crate::snapshot::Names;
use crate::text::phase_name;

/// How segments are put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentOrder {
    /// By address.
    #[default]
    Address,
    /// The largest first.
    Size,
    /// Those with most free memory first.
    Free,
}

impl SegmentOrder {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Address => "by address",
            Self::Size => "largest first",
            Self::Free => "most free first",
        }
    }

    fn of(self, map: &SegmentMap) -> Vec<&Segment> {
        let mut segments: Vec<&Segment> = map.segments.iter().collect();
        match self {
            Self::Address => {}
            Self::Size => segments.sort_by_key(|segment| std::cmp::Reverse(segment.bytes)),
            Self::Free => segments.sort_by_key(|segment| std::cmp::Reverse(segment.free_bytes)),
        }
        segments
    }
}

/// How the map is shown.
#[derive(Clone, Debug, Default)]
pub struct SegmentsState {
    /// The order of segments.
    pub order: SegmentOrder,
    /// The address of the segment under the cursor; 0: the first one.
    pub segment: u64,
    /// The address of the block (or hole) in it under the cursor; 0: its first one.
    pub block: u64,
    /// The first row on the screen.
    pub offset: usize,
    /// How many rows fit on the screen; set when drawn.
    pub page: usize,
    /// How many scales nearer the map is than what fits the screen; below 0: further.
    closer: isize,
    drawn: Drawn,
}

impl SegmentsState {
    pub(super) fn sort_by_next(&mut self) {
        self.order = match self.order {
            SegmentOrder::Address => SegmentOrder::Size,
            SegmentOrder::Size => SegmentOrder::Free,
            SegmentOrder::Free => SegmentOrder::Address,
        };
    }

    /// Puts the cursor on a piece, by addresses.
    pub fn select(&mut self, segment: u64, block: u64) {
        (self.segment, self.block) = (segment, block);
    }

    /// Whether the map is to another scale than what fits the screen.
    pub fn is_zoomed(&self) -> bool {
        self.closer != 0
    }

    /// What is on the screen.
    pub fn drawn(&self) -> &Drawn {
        &self.drawn
    }
}

/// A block as filters see it.
pub struct BlockRow<'a> {
    /// The block.
    pub block: &'a BlockView,
    /// What its ids stand for.
    pub names: &'a Names,
    /// File and number of the line that asked.
    place: Option<String>,
}

impl<'a> BlockRow<'a> {
    /// A block and who asked for it.
    pub fn new(block: &'a BlockView, names: &'a Names) -> Self {
        let line = names.lines.get(&block.stack);
        Self { block, names, place: line.map(|line| crate::text::place(line, "")) }
    }
}

impl Row for BlockRow<'_> {
    fn texts(&self) -> Vec<&str> {
        let line = self.names.lines.get(&self.block.stack);
        let layer = self.names.layers.get(&self.block.layer);
        let texts = line.into_iter().flat_map(|line| [&*line.file, &*line.function]);
        texts.chain(layer.map(|layer| &**layer)).chain([self.block.category.as_str()]).collect()
    }

    fn bytes(&self) -> u64 {
        self.block.bytes
    }

    fn field(&self, field: Field) -> Vec<&str> {
        let line = self.names.lines.get(&self.block.stack);
        match field {
            Field::Layer => self.names.layers.get(&self.block.layer).map(|layer| &**layer).into_iter().collect(),
            Field::Category => vec![self.block.category.as_str()],
            Field::Line => self.place.as_deref().into_iter().collect(),
            Field::Phase => vec![phase_name(self.block.phase)],
            Field::Function => line.map(|line| &*line.function).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl App {
    /// The memory map shown, if it has come.
    pub fn segment_map(&self) -> Option<&SegmentMap> {
        self.device()?.segments.as_deref()
    }

    /// The segments in their order.
    pub fn segments_in_order(&self) -> Vec<&Segment> {
        self.segment_map().map_or_else(Vec::new, |map| self.segments.order.of(map))
    }

    /// The segment under the cursor: its place in the order, and itself. If it is gone, the one that is where it was.
    pub fn selected_segment(&self) -> Option<(usize, &Segment)> {
        let map = self.segment_map()?;
        let wanted = self.segments.segment;
        let segments = self.segments_in_order();
        if wanted == 0 {
            return Some((0, *segments.first()?));
        }
        let before = map.segments.partition_point(|segment| segment.address <= wanted).saturating_sub(1);
        let segment = map.segments.get(before)?;
        let index = segments.iter().position(|other| other.address == segment.address).unwrap_or(0);
        Some((index, segment))
    }

    /// The piece under the cursor.
    pub fn selected_piece(&self) -> Option<Piece<'_>> {
        let (_, segment) = self.selected_segment()?;
        piece_at(segment, self.segments.block)
    }

    /// Whether a block passes the filter.
    pub fn block_passes(&self, block: &BlockView) -> bool {
        let names = self.process().map(|process| process.names.clone()).unwrap_or_default();
        self.filter.passes(&BlockRow::new(block, &names))
    }

    /// Sums the map up, if that was not done yet.
    pub fn sum_up_segments(&mut self) {
        let Some((map, names)) = self.map_and_names() else { return };
        let mut sieve = Sieve::new(&self.filter, &names);
        self.segments.drawn.sum_up(&map, &self.filter_text, &mut sieve);
    }

    /// Makes what is on a map of this size, with the cursor on it.
    pub fn draw_segments(&mut self, columns: u16, rows: u16) {
        self.sum_up_segments();
        let Some((map, names)) = self.map_and_names() else { return };
        let mut drawn = std::mem::take(&mut self.segments.drawn);
        let page = usize::from(rows).max(1);
        let SegmentsState { order, closer, .. } = self.segments;
        drawn.lay_out(&map, Look { order, columns: usize::from(columns), page, closer });
        let row = self.row_of_selected(&drawn.layout);
        let last = drawn.layout.rows().saturating_sub(page);
        let offset = self.segments.offset.clamp((row + 1).saturating_sub(page), row).min(last);
        let shown = offset..(offset + page).min(drawn.layout.rows());
        drawn.show(&order.of(&map), shown, &mut Sieve::new(&self.filter, &names));
        self.segments.closer = closer.clamp(*drawn.layout.nearer.start(), *drawn.layout.nearer.end());
        (self.segments.offset, self.segments.page, self.segments.drawn) = (offset, page, drawn);
    }

    fn map_and_names(&self) -> Option<(Arc<SegmentMap>, Arc<Names>)> {
        Some((self.device()?.segments.clone()?, self.process()?.names.clone()))
    }

    /// The row of the map where the piece under the cursor begins.
    fn row_of_selected(&self, layout: &Layout) -> usize {
        let (Some((index, segment)), Some(piece)) = (self.selected_segment(), self.selected_piece()) else { return 0 };
        layout.row_of(index, piece.address.saturating_sub(segment.address))
    }

    pub(super) fn on_segments_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('l') => self.move_piece(true),
            KeyCode::Char('h') => self.move_piece(false),
            KeyCode::Char('f') => self.go_to_next_hole(),
            KeyCode::Char('F') => self.go_to_large_hole(),
            KeyCode::Char('+' | '=') => self.segments.closer += 1,
            KeyCode::Char('-') => self.segments.closer -= 1,
            KeyCode::Char('0') => self.segments.closer = 0,
            _ => {}
        }
    }

    /// Puts the cursor on the next piece or the one before, if need be in another segment; with a filter, on the next
    /// block that passes.
    fn move_piece(&mut self, forward: bool) {
        let (Some((index, segment)), Some(piece)) = (self.selected_segment(), self.selected_piece()) else { return };
        let segments = self.segments_in_order();
        let found = if self.filter.is_empty() {
            let [before, after] = neighbours(segment, &piece);
            let beside = if forward { after } else { before }.map(|piece| (segment.address, piece.address));
            beside.or_else(|| {
                let next = *segments.get(if forward { index + 1 } else { index.checked_sub(1)? })?;
                let from = if forward { next.address } else { end(next) };
                Some((next.address, piece_at(next, from)?.address))
            })
        } else {
            self.next_passing(&segments, index, piece.address, forward)
        };
        match found {
            Some((segment, block)) => self.segments.select(segment, block),
            None if !self.filter.is_empty() => self.notice = Some("no further block passes the filter".to_owned()),
            None => {}
        }
    }

    /// The next block that passes the filter: its segment's address and its own.
    fn next_passing(&self, segments: &[&Segment], index: usize, from: u64, forward: bool) -> Option<(u64, u64)> {
        let names = self.process().map(|process| process.names.clone())?;
        let mut sieve = Sieve::new(&self.filter, &names);
        let here = &segments[index].blocks;
        let found = |segment: &Segment, block: Option<&BlockView>| block.map(|block| (segment.address, block.address));
        if forward {
            let after = here.partition_point(|block| block.address <= from);
            let rest = segments.get(index + 1..).unwrap_or_default();
            found(segments[index], here[after..].iter().find(|block| sieve.passes(block))).or_else(|| {
                rest.iter().find_map(|segment| found(segment, segment.blocks.iter().find(|block| sieve.passes(block))))
            })
        } else {
            let before = here.partition_point(|block| block.address < from);
            found(segments[index], here[..before].iter().rfind(|block| sieve.passes(block))).or_else(|| {
                let mut rest = segments[..index].iter().rev();
                rest.find_map(|segment| found(segment, segment.blocks.iter().rfind(|block| sieve.passes(block))))
            })
        }
    }

    /// One segment further; by more than one: so many rows of the map.
    pub(super) fn scroll_segments(&mut self, by: impl Fn(isize) -> isize) {
        let (Some((index, segment)), piece) = (self.selected_segment(), self.selected_piece()) else { return };
        let by = by(self.segments.page.max(1) as isize);
        let segments = self.segments_in_order();
        let layout = &self.segments.drawn.layout;
        let (mut to, mut offset) = (index.saturating_add_signed(by).min(segments.len() - 1), 0);
        if by.abs() > 1 && layout.rows() > 0 {
            let row = self.row_of_selected(layout).saturating_add_signed(by);
            (to, offset) = layout.at(row).map_or((to, 0), |(to, offset)| (to.min(segments.len() - 1), offset));
            if row >= layout.rows() {
                (to, offset) = (segments.len() - 1, 0);
            }
        }
        let target = segments[to];
        let mut found = piece_at(target, target.address.saturating_add(offset));
        if by > 0 && target.address == segment.address && found == piece {
            // A piece longer than the page: behind it.
            found = piece.and_then(|piece| piece_after(target, &piece)).or(found);
        }
        let (segment, block) = (target.address, found.map_or(0, |piece| piece.address));
        self.segments.select(segment, block);
    }

    /// Puts the cursor on the next hole of the map; after the last one, on the first.
    fn go_to_next_hole(&mut self) {
        let Some((index, _)) = self.selected_segment() else { return };
        let here = self.selected_piece().map_or(0, |piece| piece.address);
        let segments = self.segments_in_order();
        let holes = |segment: &Segment, after: Option<u64>| {
            let is_after = |piece: &Piece<'_>| after.is_none_or(|after| piece.address > after);
            pieces(segment)
                .find(|piece| piece.block.is_none() && is_after(piece))
                .map(|hole| (segment.address, hole.address))
        };
        let (before, from) = segments.split_at(index);
        let found = holes(from[0], Some(here))
            .or_else(|| from[1..].iter().chain(before).chain(&from[..1]).find_map(|segment| holes(segment, None)));
        match found {
            Some((segment, hole)) => self.segments.select(segment, hole),
            None => self.notice = Some("no segment has a hole".to_owned()),
        }
    }

    /// Puts the cursor on the largest hole; from a hole, on the next smaller one.
    fn go_to_large_hole(&mut self) {
        let Some(map) = self.segment_map() else { return };
        // Larger holes first, of equals the one with the lower address.
        let rank = |piece: &Piece<'_>| (piece.bytes, std::cmp::Reverse(piece.address));
        let holes = || {
            let of = |segment| pieces(segment).map(move |piece: Piece<'_>| (segment.address, piece));
            map.segments.iter().flat_map(of).filter(|(_, piece)| piece.block.is_none())
        };
        let here = self.selected_piece().filter(|piece| piece.block.is_none()).map(|piece| rank(&piece));
        let smaller = holes().filter(|(_, piece)| here.is_some_and(|here| rank(piece) < here));
        let next = smaller.max_by_key(|(_, piece)| rank(piece));
        match next.or_else(|| holes().max_by_key(|(_, piece)| rank(piece))) {
            Some((segment, hole)) => {
                let hole = hole.address;
                self.segments.select(segment, hole);
            }
            None => self.notice = Some("no segment has a hole".to_owned()),
        }
    }

    /// Shows the source of who asked for the block under the cursor.
    pub(super) fn show_block_source(&mut self) {
        let Some(piece) = self.selected_piece() else { return };
        let Some(block) = piece.block else {
            self.notice = Some("this is free: nobody asked for it".to_owned());
            return;
        };
        let line = self.process().and_then(|process| process.names.lines.get(&block.stack)).cloned();
        match line {
            Some(line) => self.open_source(line),
            None => self.notice = Some("no Python line is known for this".to_owned()),
        }
    }
}
