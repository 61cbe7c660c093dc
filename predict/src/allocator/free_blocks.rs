//! Free blocks of one pool and stream, in order of preference: the search for the best fit.
//!
//! A replay spends most of its time here. Blocks are in sorted bins by size, eight between two powers of two. Bit
//! operations find the bin of a request and the next non-empty one, so a search usually reads one short list.

use std::collections::VecDeque;

use crate::allocator::blocks::BlockId;
use crate::allocator::sizes::MIN_BLOCK;

/// Bins for sizes of one unit ([`MIN_BLOCK`]) to seven.
const FIRST_BINS: usize = 8;
const BINS_PER_POWER: usize = 8;
const BINS: usize = FIRST_BINS + (64 - 3 - 9) * BINS_PER_POWER;

/// Sort key of free blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub size: u64,
    /// Serial number of its segment, or 0 for all where age does not count.
    pub segment_age: u32,
    pub address: u64,
}

/// A position in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cursor {
    bin: usize,
    position: usize,
}

#[derive(Debug)]
pub(crate) struct FreeBlocks {
    /// Deques, because backward frees the memory of a forward at one end.
    bins: Vec<VecDeque<(Key, BlockId)>>,
    /// One bit for each non-empty bin.
    occupied: [u64; BINS.div_ceil(64)],
}

impl Default for FreeBlocks {
    fn default() -> FreeBlocks {
        FreeBlocks { bins: vec![VecDeque::new(); BINS], occupied: [0; BINS.div_ceil(64)] }
    }
}

/// Sizes are multiples of [`MIN_BLOCK`].
fn bin_of(size: u64) -> usize {
    let units = size / MIN_BLOCK;
    if units < FIRST_BINS as u64 {
        return units as usize;
    }
    let power = units.ilog2() as usize;
    let eighth = (units >> (power - 3)) as usize % BINS_PER_POWER;
    FIRST_BINS + (power - 3) * BINS_PER_POWER + eighth
}

impl FreeBlocks {
    pub fn insert(&mut self, key: Key, block: BlockId) {
        let bin = bin_of(key.size);
        let entries = &mut self.bins[bin];
        if entries.front().is_none_or(|(first, _)| key < *first) {
            entries.push_front((key, block));
        } else {
            let position = entries.partition_point(|(other, _)| *other < key);
            entries.insert(position, (key, block));
        }
        self.occupied[bin / 64] |= 1 << (bin % 64);
    }

    pub fn remove(&mut self, key: Key) {
        let bin = bin_of(key.size);
        let is_first = self.bins[bin].front().is_some_and(|(first, _)| *first == key);
        let position = if is_first { 0 } else { self.bins[bin].partition_point(|(other, _)| *other < key) };
        debug_assert_eq!(self.bins[bin][position].0, key);
        self.remove_at(Cursor { bin, position });
    }

    pub fn remove_at(&mut self, Cursor { bin, position }: Cursor) {
        self.bins[bin].remove(position);
        if self.bins[bin].is_empty() {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// Returns the first block of at least this size.
    pub fn best_fit(&self, size: u64) -> Option<Cursor> {
        let bin = bin_of(size);
        let position = self.bins[bin].partition_point(|(key, _)| key.size < size);
        if position < self.bins[bin].len() {
            return Some(Cursor { bin, position });
        }
        self.first_from(bin + 1)
    }

    /// Returns the next block.
    pub fn after(&self, Cursor { bin, position }: Cursor) -> Option<Cursor> {
        if position + 1 < self.bins[bin].len() {
            return Some(Cursor { bin, position: position + 1 });
        }
        self.first_from(bin + 1)
    }

    pub fn at(&self, Cursor { bin, position }: Cursor) -> BlockId {
        self.bins[bin][position].1
    }

    /// Iterates over all blocks, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = BlockId> + '_ {
        self.bins.iter().flatten().map(|(_, block)| *block)
    }

    fn first_from(&self, bin: usize) -> Option<Cursor> {
        let mut word = bin / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (bin % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(Cursor { bin: word * 64 + bits.trailing_zeros() as usize, position: 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::allocator::blocks::{Block, Blocks};

    proptest! {
        /// Checks that insertions and removals keep the order of a sorted set.
        #[test]
        fn as_a_sorted_set(steps in prop::collection::vec((1u64..1 << 27, 0u64..8, any::<bool>()), 1..200)) {
            let mut blocks = Blocks::default();
            let (mut free, mut twin) = (FreeBlocks::default(), BTreeSet::new());
            for (units, address, adds) in steps {
                let (size, address) = (units.pow(1 + (units % 2) as u32) % (1 << 34) * MIN_BLOCK, address << 40);
                let key = Key { size, segment_age: (address >> 41) as u32, address };
                if adds && twin.insert(key) {
                    free.insert(key, blocks.add(Block { segment_age: key.segment_age, ..Block::new(address, size, 0) }));
                } else if twin.remove(&key) {
                    free.remove(key);
                }
                let key_of = |id| { let Block { size, segment_age, address, .. } = blocks[id]; Key { size, segment_age, address } };
                let smallest = Key { size, segment_age: 0, address: 0 };
                let found = free.best_fit(size);
                prop_assert_eq!(found.map(|cursor| key_of(free.at(cursor))), twin.range(smallest..).next().copied());
                let after = found.and_then(|cursor| free.after(cursor));
                prop_assert_eq!(after.map(|cursor| key_of(free.at(cursor))), twin.range(smallest..).nth(1).copied());
                let all: Vec<_> = free.iter().map(key_of).collect();
                prop_assert!(all.iter().eq(&twin));
            }
        }
    }
}
