//! The card: how much memory it has, and at which addresses it hands it out.

use std::collections::BTreeMap;

use crate::sizes::{ROUND_LARGE, round_up};

/// A card as a process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Card {
    /// All its memory, in bytes: what `per_process_memory_fraction` and the address space of expandable segments depend on.
    pub total: u64,
    /// What is left for the allocator after the context, libraries and other processes, in bytes.
    pub available: u64,
}

impl Card {
    /// A card that is never full.
    pub const ENDLESS: Card = Card { total: 1 << 46, available: u64::MAX >> 1 };

    /// A card of which `available` bytes are left for the allocator.
    pub fn with_available(total: u64, available: u64) -> Card {
        Card { total, available }
    }
}

/// The card's memory while a sequence runs.
#[derive(Debug)]
pub(crate) struct CardMemory {
    card: Card,
    taken: i64,
    /// Address ranges by their beginning, with their lengths.
    ranges: BTreeMap<u64, u64>,
}

const LOWEST_ADDRESS: u64 = 1 << 32;

impl CardMemory {
    pub fn new(card: Card) -> CardMemory {
        CardMemory { card, taken: 0, ranges: BTreeMap::new() }
    }

    pub fn total(&self) -> u64 {
        self.card.total
    }

    /// Takes physical memory; false if there is not enough.
    pub fn take(&mut self, size: u64) -> bool {
        let size = round_up(size, ROUND_LARGE) as i64;
        let fits = self.taken.saturating_add(size) <= i64::try_from(self.card.available).unwrap_or(i64::MAX);
        if fits {
            self.taken += size;
        }
        fits
    }

    pub fn give_back(&mut self, size: u64) {
        self.taken -= round_up(size, ROUND_LARGE) as i64;
    }

    /// Memory that others take or give back. They may take more than there is: then nothing is left.
    pub fn change_outside(&mut self, change: i64) {
        self.taken = self.taken.saturating_add(change);
    }

    /// Address space for a segment: the lowest gap that is large enough, as NVIDIA's driver chooses it.
    pub fn address(&mut self, size: u64) -> u64 {
        let size = round_up(size, ROUND_LARGE);
        let mut address = LOWEST_ADDRESS;
        for (&begin, &taken) in &self.ranges {
            if begin - address >= size {
                break;
            }
            address = begin + taken;
        }
        self.ranges.insert(address, size);
        address
    }

    pub fn forget_address(&mut self, address: u64) {
        self.ranges.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_lowest_gap_is_taken() {
        let mut card = CardMemory::new(Card::ENDLESS);
        let [first, second, third] = [20, 2, 20].map(|size| card.address(size * MIB));
        assert_eq!((second, third), (first + 20 * MIB, first + 22 * MIB));
        card.forget_address(first);
        assert_eq!(card.address(22 * MIB), third + 20 * MIB, "too large for the gap");
        assert_eq!([card.address(10 * MIB), card.address(10 * MIB)], [first, first + 10 * MIB]);
    }

    #[test]
    fn memory_is_taken_in_whole_pages_up_to_the_end() {
        let mut card = CardMemory::new(Card::with_available(8 * MIB, 5 * MIB));
        assert!(card.take(3 * MIB)); // Takes 4.
        assert!(!card.take(2 * MIB));
        card.change_outside(-(MIB as i64));
        assert!(card.take(2 * MIB));
    }
}
