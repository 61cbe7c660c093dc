//! Pieces of segments: blocks, and holes between them.

use memlab_trace::{BlockView, Segment};

/// A piece of a segment: a block, or a hole between blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Start address.
    pub address: u64,
    /// Size.
    pub bytes: u64,
    /// The block; `None`: a hole.
    pub block: Option<&'a BlockView>,
}

impl<'a> Piece<'a> {
    /// Makes a piece from a block.
    pub fn of(block: &'a BlockView) -> Self {
        Self { address: block.address, bytes: block.bytes, block: Some(block) }
    }

    fn hole(from: u64, to: u64) -> Option<Self> {
        (to > from).then(|| Self { address: from, bytes: to - from, block: None })
    }

    /// Address after the last byte.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

/// Address after the last byte of a segment.
pub fn end(segment: &Segment) -> u64 {
    segment.address.saturating_add(segment.bytes)
}

/// Pieces of a segment from its start to its end.
pub fn pieces(segment: &Segment) -> impl Iterator<Item = Piece<'_>> {
    let mut from = segment.address;
    segment.blocks.iter().map(Some).chain([None]).flat_map(move |block| {
        let hole = Piece::hole(from, block.map_or(end(segment), |block| block.address));
        let piece = block.map(Piece::of);
        from = from.max(piece.map_or(0, |piece| piece.end()));
        hole.into_iter().chain(piece)
    })
}

/// Piece of a segment at an address; outside the segment: the first or the last one.
pub fn piece_at(segment: &Segment, address: u64) -> Option<Piece<'_>> {
    let address = address.clamp(segment.address, end(segment).saturating_sub(1).max(segment.address));
    let after = segment.blocks.partition_point(|block| block.address <= address);
    let before = after.checked_sub(1).map(|index| Piece::of(&segment.blocks[index]));
    if let Some(piece) = before.filter(|piece| piece.end() > address) {
        return Some(piece);
    }
    let from = before.map_or(segment.address, |piece| piece.end());
    let to = segment.blocks.get(after).map_or(end(segment), |block| block.address);
    Piece::hole(from, to).or(before)
}

/// Piece before the one at `address`, if the segment has one.
fn piece_before(segment: &Segment, address: u64) -> Option<Piece<'_>> {
    let before = address.checked_sub(1).filter(|before| *before >= segment.address)?;
    piece_at(segment, before).filter(|piece| piece.address < address)
}

/// Piece after the given one, if the segment has one.
pub fn piece_after<'a>(segment: &'a Segment, piece: &Piece<'_>) -> Option<Piece<'a>> {
    (piece.end() < end(segment)).then(|| piece_at(segment, piece.end()))?.filter(|next| next.address > piece.address)
}

/// Pieces before and after one of a segment.
pub fn neighbours<'a>(segment: &'a Segment, piece: &Piece<'_>) -> [Option<Piece<'a>>; 2] {
    [piece_before(segment, piece.address), piece_after(segment, piece)]
}

#[cfg(test)]
mod tests {
    use memlab_trace::Category;
    use memlab_trace::record::Phase;
    use proptest::prelude::*;

    use super::*;

    /// A segment at 1000 with blocks of these sizes, each after a hole of the other size.
    fn segment(parts: &[(u64, u64)], last: u64) -> Segment {
        let mut segment = Segment { address: 1000, ..Segment::default() };
        for (hole, bytes) in parts {
            let address = 1000 + segment.bytes + hole;
            let (category, phase) = (Category::Other, Phase::Other);
            let block =
                BlockView { address, bytes: *bytes, category, stack: 0, layer: 0, owner: 0, range: 0, phase, time: 0 };
            segment.blocks.push(block);
            segment.bytes += hole + bytes;
            segment.free_bytes += hole;
        }
        segment.bytes += last;
        segment.free_bytes += last;
        segment
    }

    proptest! {
        #[test]
        fn pieces_cover_a_segment_and_are_found_by_address(
            parts in proptest::collection::vec((0u64..4, 1u64..5), 0..12),
            last in 0u64..4,
        ) {
            let segment = segment(&parts, last);
            let all: Vec<_> = pieces(&segment).collect();
            // The bytes sum to the segment's, and those of the holes to the free bytes.
            prop_assert_eq!(all.iter().map(|piece| piece.bytes).sum::<u64>(), segment.bytes);
            let holes = all.iter().filter(|piece| piece.block.is_none());
            prop_assert_eq!(holes.map(|piece| piece.bytes).sum::<u64>(), segment.free_bytes);
            for (index, piece) in all.iter().enumerate() {
                for address in piece.address..piece.end() {
                    prop_assert_eq!(piece_at(&segment, address), Some(*piece));
                }
                prop_assert_eq!(piece_after(&segment, piece), all.get(index + 1).copied());
                let before = index.checked_sub(1).map(|index| all[index]);
                prop_assert_eq!(piece_before(&segment, piece.address), before);
            }
            prop_assert_eq!(piece_at(&segment, 0), all.first().copied());
            prop_assert_eq!(piece_at(&segment, u64::MAX), all.last().copied());
        }
    }
}
