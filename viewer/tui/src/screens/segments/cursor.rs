//! Moves the cursor over the memory map: by pieces, segments, rows and holes.

use memlab_trace::{BlockView, Segment};

use super::drawn::FilterCache;
use super::pieces::{Piece, end, neighbours, piece_after, piece_at, pieces};
use super::state::SegmentsScreen;
use crate::context::Context;

impl SegmentsScreen {
    /// Moves the cursor to the next piece or the previous one, across segments if necessary.
    ///
    /// With a filter, it moves to the next block that passes.
    pub(super) fn move_piece(&mut self, forward: bool, context: &mut Context) {
        let (Some((index, segment)), Some(piece)) = (self.selected_segment(context), self.selected_piece(context))
        else {
            return;
        };
        let segments = self.in_order(context);
        let found = if context.filter.is_empty() {
            let [before, after] = neighbours(segment, &piece);
            let beside = if forward { after } else { before }.map(|piece| (segment.address, piece.address));
            beside.or_else(|| {
                let next = *segments.get(if forward { index + 1 } else { index.checked_sub(1)? })?;
                let from = if forward { next.address } else { end(next) };
                Some((next.address, piece_at(next, from)?.address))
            })
        } else {
            next_passing(&segments, index, piece.address, forward, context)
        };
        match found {
            Some((segment, block)) => self.select(segment, block),
            None if !context.filter.is_empty() => context.notice = Some("no other block matches the filter".to_owned()),
            None => {}
        }
    }

    /// Moves by one segment, or by several rows of the map.
    pub(super) fn move_rows(&mut self, by: &dyn Fn(isize) -> isize, context: &Context) {
        let (Some((index, segment)), piece) = (self.selected_segment(context), self.selected_piece(context)) else {
            return;
        };
        let by = by(self.page.max(1) as isize);
        let segments = self.in_order(context);
        let layout = &self.drawn.layout;
        let (mut to, mut offset) = (index.saturating_add_signed(by).min(segments.len() - 1), 0);
        if by.abs() > 1 && layout.rows() > 0 {
            let row = self.row_of_selected(layout, context).saturating_add_signed(by);
            (to, offset) = layout.at(row).map_or((to, 0), |(to, offset)| (to.min(segments.len() - 1), offset));
            if row >= layout.rows() {
                (to, offset) = (segments.len() - 1, 0);
            }
        }
        let target = segments[to];
        let mut found = piece_at(target, target.address.saturating_add(offset));
        if by > 0 && target.address == segment.address && found == piece {
            // A piece longer than the page: move behind it.
            found = piece.and_then(|piece| piece_after(target, &piece)).or(found);
        }
        let (segment, block) = (target.address, found.map_or(0, |piece| piece.address));
        self.select(segment, block);
    }

    /// Moves the cursor to the next hole of the map; after the last, to the first.
    pub(super) fn go_to_next_hole(&mut self, context: &mut Context) {
        let Some((index, _)) = self.selected_segment(context) else { return };
        let here = self.selected_piece(context).map_or(0, |piece| piece.address);
        let segments = self.in_order(context);
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
            Some((segment, hole)) => self.select(segment, hole),
            None => context.notice = Some("no segment has a hole".to_owned()),
        }
    }

    /// Moves the cursor to the largest hole; from a hole, to the next smaller one.
    pub(super) fn go_to_large_hole(&mut self, context: &mut Context) {
        let Some(map) = context.segment_map() else { return };
        // Larger holes first; among equal ones, the lower address.
        let rank = |piece: &Piece<'_>| (piece.bytes, std::cmp::Reverse(piece.address));
        let holes = || {
            let of = |segment| pieces(segment).map(move |piece: Piece<'_>| (segment.address, piece));
            map.segments.iter().flat_map(of).filter(|(_, piece)| piece.block.is_none())
        };
        let here = self.selected_piece(context).filter(|piece| piece.block.is_none()).map(|piece| rank(&piece));
        let smaller = holes().filter(|(_, piece)| here.is_some_and(|here| rank(piece) < here));
        let next = smaller.max_by_key(|(_, piece)| rank(piece));
        match next.or_else(|| holes().max_by_key(|(_, piece)| rank(piece))) {
            Some((segment, hole)) => {
                let hole = hole.address;
                self.select(segment, hole);
            }
            None => context.notice = Some("no segment has a hole".to_owned()),
        }
    }
}

/// The next block that passes the filter: address of its segment, and its address.
fn next_passing(
    segments: &[&Segment],
    index: usize,
    from: u64,
    forward: bool,
    context: &Context,
) -> Option<(u64, u64)> {
    let names = context.process().map(|process| process.names.clone())?;
    let mut cache = FilterCache::new(&context.filter, &names);
    let here = &segments[index].blocks;
    let found = |segment: &Segment, block: Option<&BlockView>| block.map(|block| (segment.address, block.address));
    if forward {
        let after = here.partition_point(|block| block.address <= from);
        let rest = segments.get(index + 1..).unwrap_or_default();
        found(segments[index], here[after..].iter().find(|block| cache.passes(block))).or_else(|| {
            rest.iter().find_map(|segment| found(segment, segment.blocks.iter().find(|block| cache.passes(block))))
        })
    } else {
        let before = here.partition_point(|block| block.address < from);
        found(segments[index], here[..before].iter().rfind(|block| cache.passes(block))).or_else(|| {
            let mut rest = segments[..index].iter().rev();
            rest.find_map(|segment| found(segment, segment.blocks.iter().rfind(|block| cache.passes(block))))
        })
    }
}
