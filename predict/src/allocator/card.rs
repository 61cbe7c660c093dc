//! Model of the card: its memory size, and the addresses at which it hands memory out.

use std::collections::BTreeMap;

use crate::allocator::address_space::AddressSpace;
use crate::allocator::sizes::{ROUND_LARGE, round_up};
use crate::splitmix::{STEP, splitmix64};

/// Addresses at which a card hands out memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// As NVIDIA's driver does while nobody else requests memory from it: see [`AddressSpace`].
    #[default]
    LikeNvidia,
    /// Anywhere: kernels loaded meanwhile and other libraries also occupy addresses. Equal seeds give equal addresses.
    Scattered(u64),
}

/// A card as a process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Card {
    /// Total bytes. `per_process_memory_fraction` and the address space of expandable segments depend on them.
    pub total: u64,
    /// Bytes left for the allocator after the context, libraries and other processes.
    pub available: u64,
    /// Placement of segments.
    pub placement: Placement,
}

impl Card {
    /// A card that is never full.
    pub const UNLIMITED: Card = Card { total: 1 << 46, available: u64::MAX >> 1, placement: Placement::LikeNvidia };

    /// Returns a card with `available` bytes left for the allocator.
    pub fn with_available(total: u64, available: u64) -> Card {
        Card { total, available, placement: Placement::LikeNvidia }
    }

    /// Returns the same card with another placement.
    #[must_use]
    pub fn placing(self, placement: Placement) -> Card {
        Card { placement, ..self }
    }
}

/// Memory of the card during a replay.
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

    /// Takes physical memory; returns false if too little is left.
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

    /// Records memory that others take or give back. If they exceed the card, nothing is left.
    pub fn change_outside(&mut self, change: i64) {
        self.taken = self.taken.saturating_add(change);
    }

    /// Returns address space for a segment, or `None` if it is exhausted.
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

/// Segments at scattered addresses that do not overlap.
#[derive(Debug, Default)]
struct Scattered {
    seed: u64,
    /// Number of segments placed.
    placed: u64,
    /// Address ranges: lengths by first address.
    ranges: BTreeMap<u64, u64>,
}

/// Distance between scattered segments; they are closer if their number exceeds the places.
const SCATTER_DISTANCE: u64 = 1 << 40;
const SCATTER_PLACES: u64 = 1 << 22;

impl Scattered {
    fn take(&mut self, size: u64) -> u64 {
        self.placed += 1;
        let from = LOWEST_ADDRESS + scattered(self.seed, self.placed) % SCATTER_PLACES * SCATTER_DISTANCE;
        // A range that starts below may reach beyond.
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

/// Returns a pseudorandom number, equal for equal arguments.
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
        assert!(card.take(3 * MIB)); // Takes 4 MiB.
        assert!(!card.take(2 * MIB));
        card.change_outside(-(MIB as i64));
        assert!(card.take(2 * MIB));
    }
}
