//! Pieces in which a unit is copied over others.
//!
//! The part that is free first is copied first, so that a copy starts while another part of its place is still in use.

use crate::range::ByteRange;

/// A part of a unit's place, and the time when its contents are no longer used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<T> {
    /// Position in the ring.
    pub range: ByteRange,
    /// Orders pieces in time.
    ///
    /// Holes have the default.
    pub freed: T,
}

/// Divides a unit's place into the pieces to copy, in copy order.
///
/// Each copy and each wait has a fixed cost. Parts that become free one after another are therefore merged until they have
/// `least` bytes, and copied after the last of them is free. Such a piece is one copy, unless its parts are not adjacent.
///
/// `pieces` is, on entry, the contents of the place by address and clipped to it, and on return the pieces to copy.
pub fn divide<T: Ord + Copy + Default>(place: ByteRange, least: u64, pieces: &mut Vec<Piece<T>>) {
    if place.length / 2 < least || pieces.is_empty() {
        let freed = pieces.iter().map(|piece| piece.freed).max().unwrap_or_default();
        pieces.clear();
        pieces.push(Piece { range: place, freed });
        return;
    }
    add_holes(place, pieces);
    pieces.sort_unstable_by_key(|piece| (piece.freed, piece.range.start));
    let (mut begin, mut bytes, mut left) = (0, 0, place.length);
    for index in 0..pieces.len() {
        bytes += pieces[index].range.length;
        if index + 1 == pieces.len() || bytes >= least && left - bytes >= least {
            let freed = pieces[index].freed;
            pieces[begin..=index].iter_mut().for_each(|piece| piece.freed = freed);
            (begin, left, bytes) = (index + 1, left - bytes, 0);
        }
    }
    pieces.sort_unstable_by_key(|piece| (piece.freed, piece.range.start));
    pieces.dedup_by(|next, before| {
        let continues = before.freed == next.freed && before.range.end() == next.range.start;
        if continues {
            before.range.length += next.range.length;
        }
        continues
    });
}

fn add_holes<T: Default>(place: ByteRange, pieces: &mut Vec<Piece<T>>) {
    let occupied = pieces.len();
    let mut end = place.start;
    for index in 0..=occupied {
        let next = if index < occupied { pieces[index].range } else { ByteRange::new(place.end(), 0) };
        if next.start > end {
            pieces.push(Piece { range: ByteRange::new(end, next.start - end), freed: T::default() });
        }
        end = next.end();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn divided(place: (u64, u64), least: u64, parts: &[(u64, u64, u32)]) -> Vec<(u64, u64, u32)> {
        let mut pieces: Vec<_> =
            parts.iter().map(|&(start, length, freed)| Piece { range: ByteRange::new(start, length), freed }).collect();
        divide(ByteRange::new(place.0, place.1), least, &mut pieces);
        pieces.iter().map(|piece| (piece.range.start, piece.range.length, piece.freed)).collect()
    }

    #[test]
    fn the_first_free_piece_is_copied_first() {
        // GIVEN a place whose start was used last, its middle before that, and whose end is free
        let parts = [(100, 40, 7), (140, 20, 3)];
        // WHEN it is divided, THEN the pieces go from the end to the start
        assert_eq!(divided((100, 100), 20, &parts), [(160, 40, 0), (140, 20, 3), (100, 40, 7)]);
        // WHEN pieces must be larger, THEN a small one waits with the next, and merges with it where the two are adjacent
        assert_eq!(divided((100, 100), 30, &parts), [(160, 40, 0), (100, 60, 7)]);
        assert_eq!(divided((100, 100), 50, &parts), [(100, 100, 7)]);
        // WHEN it has no room for two pieces, THEN it is one piece, which waits for all parts
        assert_eq!(divided((100, 100), 51, &parts), [(100, 100, 7)]);
        assert_eq!(divided((100, 100), 0, &[]), [(100, 100, 0)]);
    }

    proptest! {
        #[test]
        fn pieces_are_the_place(
            lengths in prop::collection::vec((1u64..20, prop::option::of(0u32..6)), 1..8), least in 0u64..30,
        ) {
            // GIVEN a place with holes, and with parts that become free at any time
            let mut end = 5;
            let mut parts = Vec::new();
            for (length, freed) in lengths {
                parts.extend(freed.map(|freed| (end, length, freed)));
                end += length;
            }
            // WHEN it is divided
            let pieces = divided((5, end - 5), least, &parts);
            // THEN the pieces cover the whole place once, in the order in which they become free, none before its contents
            // are free,
            let mut by_address = pieces.clone();
            by_address.sort_unstable();
            prop_assert_eq!(by_address.iter().fold(5, |at, &(start, length, _)| if at == start { at + length } else { 0 }), end);
            prop_assert!(pieces.is_sorted_by_key(|piece| piece.2));
            for (start, length, freed) in parts {
                let there = ByteRange::new(start, length);
                let over = pieces.iter().find(|piece| ByteRange::new(piece.0, piece.1).overlaps(there)).unwrap();
                prop_assert!(over.0 <= start && over.0 + over.1 >= start + length && over.2 >= freed);
            }
            // AND the pieces that become free at the same time have at least the least bytes, or are the whole place.
            for &(.., freed) in &pieces {
                let together: u64 = pieces.iter().filter(|piece| piece.2 == freed).map(|piece| piece.1).sum();
                prop_assert!(together >= least || together == end - 5);
            }
        }
    }
}
