//! The card: how much memory it has, and at which addresses it hands it out.

use std::collections::BTreeMap;

use crate::sizes::{ROUND_LARGE, round_up};

/// How addresses of segments follow each other. Blocks of equal size are taken in the order of their addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AddressOrder {
    /// The lowest gap that is large enough, as NVIDIA's driver does.
    #[default]
    Lowest,
    /// The highest gap that is large enough, as Linux does for `mmap`.
    Highest,
}

/// A card as a process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Card {
    /// All its memory, in bytes: what `per_process_memory_fraction` and the address space of expandable segments depend on.
    pub total: u64,
    /// What is left for the allocator after the context, libraries and other processes, in bytes.
    pub available: u64,
    /// How addresses follow each other.
    pub order: AddressOrder,
}

impl Card {
    /// A card that is never full.
    pub const ENDLESS: Card = Card { total: 1 << 46, available: u64::MAX >> 1, order: AddressOrder::Lowest };

    /// A card of which `available` bytes are left for the allocator.
    pub fn with_available(total: u64, available: u64) -> Card {
        Card { total, available, order: AddressOrder::Lowest }
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
const HIGHEST_ADDRESS: u64 = 1 << 62;

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

    /// Address space for a segment.
    pub fn address(&mut self, size: u64) -> u64 {
        let size = round_up(size, ROUND_LARGE);
        let address = match self.card.order {
            AddressOrder::Lowest => self.lowest(size),
            AddressOrder::Highest => self.highest(size),
        };
        self.ranges.insert(address, size);
        address
    }

    pub fn forget_address(&mut self, address: u64) {
        self.ranges.remove(&address);
    }

    fn lowest(&self, size: u64) -> u64 {
        let mut end = LOWEST_ADDRESS;
        for (&address, &taken) in &self.ranges {
            if address - end >= size {
                break;
            }
            end = address + taken;
        }
        end
    }

    fn highest(&self, size: u64) -> u64 {
        let mut begin = HIGHEST_ADDRESS;
        for (&address, &taken) in self.ranges.iter().rev() {
            if begin - (address + taken) >= size {
                break;
            }
            begin = address;
        }
        begin - size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn gaps_are_filled_from_the_end_that_the_order_names() {
        for (order, sign) in [(AddressOrder::Lowest, 1), (AddressOrder::Highest, -1)] {
            let mut card = CardMemory::new(Card { order, ..Card::ENDLESS });
            let first = card.address(20 * MIB);
            let second = card.address(2 * MIB);
            let third = card.address(20 * MIB);
            assert_eq!((second > first, third > second), (sign > 0, sign > 0));
            card.forget_address(first);
            // Too large for the gap, then two that fit.
            assert_ne!(card.address(22 * MIB), first);
            let (one, other) = (card.address(10 * MIB), card.address(10 * MIB));
            assert!([one, other].contains(&first));
            assert_eq!(other as i64 - one as i64, sign * 10 * MIB as i64);
        }
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
