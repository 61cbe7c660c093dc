//! The card: how much memory it has, and at which addresses it hands it out.

use std::collections::BTreeMap;

use crate::sizes::{ROUND_LARGE, round_up};

/// At which addresses a card hands its memory out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// In the lowest gap that is large enough, as NVIDIA's driver does as long as nobody else asks it for memory.
    #[default]
    LowestGap,
    /// Anywhere: kernels that are loaded meanwhile, and other libraries, have addresses too. Equal seeds give equal addresses.
    Scattered(u64),
}

/// A card as a process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Card {
    /// All its memory, in bytes: what `per_process_memory_fraction` and the address space of expandable segments depend on.
    pub total: u64,
    /// What is left for the allocator after the context, libraries and other processes, in bytes.
    pub available: u64,
    /// At which addresses.
    pub placement: Placement,
}

impl Card {
    /// A card that is never full.
    pub const ENDLESS: Card = Card { total: 1 << 46, available: u64::MAX >> 1, placement: Placement::LowestGap };

    /// A card of which `available` bytes are left for the allocator.
    pub fn with_available(total: u64, available: u64) -> Card {
        Card { total, available, placement: Placement::LowestGap }
    }

    /// The same card with other addresses.
    #[must_use]
    pub fn placing(self, placement: Placement) -> Card {
        Card { placement, ..self }
    }
}

/// The card's memory while a sequence runs.
#[derive(Debug)]
pub(crate) struct CardMemory {
    card: Card,
    taken: i64,
    /// Address ranges by their beginning, with their lengths.
    ranges: BTreeMap<u64, u64>,
    /// How many ranges were placed.
    placed: u64,
}

const LOWEST_ADDRESS: u64 = 1 << 32;

/// Segments that are scattered lie so far from each other, or closer if there are very many.
const PLACE: u64 = 1 << 40;
const PLACES: u64 = 1 << 22;

/// A number that looks random, the same for the same arguments (SplitMix64).
fn scattered(seed: u64, index: u64) -> u64 {
    let mut number = (seed << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

impl CardMemory {
    pub fn new(card: Card) -> CardMemory {
        CardMemory { card, taken: 0, ranges: BTreeMap::new(), placed: 0 }
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
        let from = match self.card.placement {
            Placement::LowestGap => LOWEST_ADDRESS,
            Placement::Scattered(seed) => {
                self.placed += 1;
                LOWEST_ADDRESS + scattered(seed, self.placed) % PLACES * PLACE
            }
        };
        // A range that begins below may reach beyond.
        let mut address = self.ranges.range(..from).next_back().map_or(from, |(begin, taken)| from.max(begin + taken));
        for (&begin, &taken) in self.ranges.range(from..) {
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
    fn scattered_ranges_do_not_overlap_and_their_order_depends_on_the_seed() {
        let order = |seed| {
            let mut card = CardMemory::new(Card::ENDLESS.placing(Placement::Scattered(seed)));
            let mut ranges: Vec<(u64, usize)> = (0..100).map(|index| (card.address(20 * MIB), index)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].0 + 20 * MIB <= pair[1].0));
            ranges.into_iter().map(|(_, index)| index).collect::<Vec<usize>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        assert_ne!(order(1), (0..100).collect::<Vec<usize>>());
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
