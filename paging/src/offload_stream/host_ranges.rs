//! Host memory of the copies: pieces of pinned memory, and their free ranges.

use std::collections::BTreeMap;

use crate::arena::{Arena, PAGE_SIZE, PIN_GRANULE};
use crate::error::{Error, Result};

/// Size of the first piece.
///
/// Later ones double the total, up to [`PIN_GRANULE`].
const FIRST_PIECE: u64 = 64 << 20;

/// A range of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceRange {
    piece: usize,
    offset: u64,
    bytes: u64,
}

#[derive(Default)]
pub struct HostRanges {
    pieces: Vec<Arena>,
    /// Bytes of the free ranges, by piece and offset.
    ///
    /// Neighbours are merged into one range.
    free: BTreeMap<(usize, u64), u64>,
}

impl HostRanges {
    /// Takes the smallest free range that is large enough, or returns `None`.
    pub fn take(&mut self, bytes: u64) -> Option<PieceRange> {
        let bytes = bytes.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
        let fitting = self.free.iter().filter(|&(_, &length)| length >= bytes);
        let (&(piece, offset), &length) = fitting.min_by_key(|&(_, &length)| length)?;
        self.free.remove(&(piece, offset));
        if length > bytes {
            self.free.insert((piece, offset + bytes), length - bytes);
        }
        Some(PieceRange { piece, offset, bytes })
    }

    /// Frees a range.
    pub fn give(&mut self, place: PieceRange) {
        let PieceRange { piece, mut offset, mut bytes } = place;
        if let Some((&(before, start), &length)) = self.free.range(..(piece, offset)).next_back()
            && before == piece
            && start + length == offset
        {
            self.free.remove(&(piece, start));
            (offset, bytes) = (start, bytes + length);
        }
        if let Some(length) = self.free.remove(&(piece, offset + bytes)) {
            bytes += length;
        }
        self.free.insert((piece, offset), bytes);
    }

    /// Size of the piece to add for a range of `bytes`.
    pub fn growth(&self, bytes: u64) -> u64 {
        let doubled = self.bytes().clamp(FIRST_PIECE, PIN_GRANULE);
        bytes.next_multiple_of(PAGE_SIZE).max(doubled)
    }

    /// Adds a piece, pinned for `device` if one is given.
    pub fn grow(&mut self, bytes: u64, device: Option<i32>) -> Result<()> {
        let piece = Arena::new(bytes)?;
        if let Some(device) = device
            && !piece.pin(device)
        {
            return Err(Error::Memory(piece.pin_failure().unwrap_or_default()));
        }
        self.free.insert((self.pieces.len(), 0), bytes);
        self.pieces.push(piece);
        Ok(())
    }

    /// Total bytes, free or not.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(Arena::bytes).sum()
    }

    /// Splits the first `bytes` of a place into the parts that one copy can reach: (address, bytes).
    pub fn parts(&self, place: PieceRange, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let piece = &self.pieces[place.piece];
        let (mut at, end) = (place.offset, place.offset + bytes);
        std::iter::from_fn(move || {
            let length = piece.chunk_end(at).min(end).checked_sub(at).filter(|&length| length > 0)?;
            at += length;
            Some((piece.address() + at - length, length))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places_never_overlap_and_all_come_back() {
        // GIVEN a piece, WHEN ranges of any sizes are taken and freed in any order, THEN no two taken ranges overlap, and in
        // the end one range can take the whole piece.
        let actions = prop::collection::vec((1u64..2 << 20, any::<prop::sample::Index>(), any::<bool>()), 1..200);
        proptest!(|(actions in actions)| {
            let mut places = HostRanges::default();
            places.grow(16 << 20, None).unwrap();
            let mut taken: Vec<PieceRange> = Vec::new();
            for (bytes, which, takes) in actions {
                if takes {
                    let Some(place) = places.take(bytes) else { continue };
                    let end = place.offset + place.bytes;
                    prop_assert!(end <= 16 << 20);
                    prop_assert!(taken.iter().all(|other| end <= other.offset || other.offset + other.bytes <= place.offset));
                    taken.push(place);
                } else if !taken.is_empty() {
                    places.give(taken.swap_remove(which.index(taken.len())));
                }
            }
            for place in taken {
                places.give(place);
            }
            prop_assert_eq!(places.take(16 << 20).map(|place| place.offset), Some(0));
        });
    }

    #[test]
    fn copies_are_split_where_pinned_chunks_end() {
        // GIVEN a range across the border of two chunks, WHEN it is split, THEN it is split at the border.
        let mut places = HostRanges::default();
        places.grow(PIN_GRANULE + (1 << 20), None).unwrap();
        let place = places.take(PIN_GRANULE + 4096).unwrap();
        let parts: Vec<_> = places.parts(place, PIN_GRANULE + 100).collect();
        let address = parts[0].0;
        assert_eq!(parts, [(address, PIN_GRANULE), (address + PIN_GRANULE, 100)]);
    }
}
