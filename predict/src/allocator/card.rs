//! The card: how much memory it has, and at which addresses it hands it out.

use std::collections::BTreeMap;

use crate::allocator::address_space::AddressSpace;
use crate::allocator::sizes::{ROUND_LARGE, round_up};
use crate::splitmix::{STEP, splitmix64};

/// At which addresses a card hands its memory out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// As NVIDIA's driver does as long as nobody else asks it for memory: see [`AddressSpace`].
    #[default]
    LikeNvidia,
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
    pub const UNLIMITED: Card = Card { total: 1 << 46, available: u64::MAX >> 1, placement: Placement::LikeNvidia };

    /// A card of which `available` bytes are left for the allocator.
    pub fn with_available(total: u64, available: u64) -> Card {
        Card { total, available, placement: Placement::LikeNvidia }
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
    addresses: Addresses,
}

#[derive(Debug)]
enum Addresses {
    LikeNvidia(AddressSpace),
    Scattered(Scattered),
}

const LOWEST_ADDRESS: u64 = 1 << 32;
const HIGHEST_ADDRESS: u64 = 1 << 62;

impl CardMemory {
    pub fn new(card: Card) -> CardMemory {
        let addresses = match card.placement {
            Placement::LikeNvidia => Addresses::LikeNvidia(AddressSpace::new(LOWEST_ADDRESS, HIGHEST_ADDRESS)),
            Placement::Scattered(seed) => Addresses::Scattered(Scattered { seed, ..Scattered::default() }),
        };
        CardMemory { card, taken: 0, addresses }
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

    /// Address space for a segment; `None` if there is none.
    pub fn address(&mut self, size: u64) -> Option<u64> {
        let size = round_up(size, ROUND_LARGE);
        match &mut self.addresses {
            Addresses::LikeNvidia(space) => space.take(0, size),
            Addresses::Scattered(scattered) => Some(scattered.take(size)),
        }
    }

    pub fn forget_address(&mut self, address: u64) {
        match &mut self.addresses {
            Addresses::LikeNvidia(space) => drop(space.give_back(address)),
            Addresses::Scattered(scattered) => drop(scattered.ranges.remove(&address)),
        }
    }
}

/// Segments anywhere, which do not overlap.
#[derive(Debug, Default)]
struct Scattered {
    seed: u64,
    /// How many segments were placed.
    placed: u64,
    /// Address ranges by their beginning, with their lengths.
    ranges: BTreeMap<u64, u64>,
}

/// Segments that are scattered lie so far from each other, or closer if there are very many.
const SCATTER_DISTANCE: u64 = 1 << 40;
const SCATTER_PLACES: u64 = 1 << 22;

impl Scattered {
    fn take(&mut self, size: u64) -> u64 {
        self.placed += 1;
        let from = LOWEST_ADDRESS + scattered(self.seed, self.placed) % SCATTER_PLACES * SCATTER_DISTANCE;
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
}

/// A number that looks random, the same for the same arguments.
fn scattered(seed: u64, index: u64) -> u64 {
    splitmix64((seed << 32 | index).wrapping_mul(STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn scattered_ranges_do_not_overlap_and_their_order_depends_on_the_seed() {
        let order = |seed| {
            let mut card = CardMemory::new(Card::UNLIMITED.placing(Placement::Scattered(seed)));
            let mut ranges: Vec<(u64, usize)> =
                (0..100).map(|index| (card.address(20 * MIB).unwrap(), index)).collect();
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
