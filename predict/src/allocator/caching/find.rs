//! Search for a free block (`get_free_block`).

use super::state::AllocatorState;
use crate::allocator::blocks::BlockId;
use crate::allocator::free_blocks::{Cursor, FreeBlocks};

impl AllocatorState {
    /// Takes the best-fitting free block, if the settings permit its use.
    pub fn find(&mut self, stream_pool: u32, size: u64) -> Option<BlockId> {
        if self.collects_garbage() {
            *self.searches(stream_pool) += 1;
        }
        let free = &self.stream_pool(stream_pool).free;
        let mut cursor = free.best_fit(size)?;
        if self.blocks[free.at(cursor)].expandable.is_some() {
            cursor = self.prefer_holes(free, cursor);
        }
        let id = free.at(cursor);
        let found = self.blocks[id].size;
        let limit = self.settings.max_split_size;
        let is_allowed = if size < limit {
            found < limit
        } else {
            found < size.saturating_add(self.settings.max_non_split_rounding)
        };
        if !is_allowed {
            return None;
        }
        self.stream_pool_mut(stream_pool).free.remove_at(cursor);
        Some(id)
    }

    /// Ranks the last block of an expandable segment by the size to which it can grow.
    ///
    /// A larger block that cannot grow therefore comes first.
    fn prefer_holes(&self, free: &FreeBlocks, first: Cursor) -> Cursor {
        let can_grow_to = |cursor: Cursor| {
            let block = &self.blocks[free.at(cursor)];
            let next = block.next.some().map(|next| &self.blocks[next]);
            block.size + next.filter(|next| !next.is_mapped).map_or(0, |next| next.size)
        };
        let mut chosen = first;
        while self.blocks[free.at(chosen)].expandable.is_some()
            && let Some(next) = free.after(chosen)
            && can_grow_to(next) < can_grow_to(chosen)
        {
            chosen = next;
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::sizes::MIN_BLOCK;
    use crate::allocator::{Allocator, Card, PoolKey, Request, Settings};

    const MIB: u64 = 1 << 20;

    /// An allocator with a free block of each size, one per segment, in this order.
    fn with_free_blocks(settings: &str, sizes: &[u64]) -> Allocator {
        let mut allocator = Allocator::new(Settings::parse(settings).unwrap(), Card::UNLIMITED);
        allocator.place(PoolKey::default());
        for (id, &size) in (100..).zip(sizes) {
            allocator.allocate(id, 0, size).unwrap();
            assert_eq!(allocator.block_size(id), Some(size));
        }
        for (id, _) in (100..).zip(sizes) {
            allocator.apply(Request::Free { id }).unwrap();
        }
        allocator
    }

    /// Returns the bytes of the block for a request, and of the segments taken from the card for it.
    fn allocate(allocator: &mut Allocator, id: u32, size: u64) -> (u64, u64) {
        let before = allocator.counters().reserved.current;
        allocator.allocate(id, 0, size).unwrap();
        (allocator.block_size(id).unwrap(), allocator.counters().reserved.current - before)
    }

    #[test]
    fn a_block_of_the_size_of_the_request_fits() {
        // GIVEN free blocks of 20 and 30 MiB
        let mut allocator = with_free_blocks("", &[30 * MIB, 20 * MIB]);
        // WHEN exactly these are requested, THEN both are used, and nothing is taken from the card
        assert_eq!(allocate(&mut allocator, 0, 20 * MIB), (20 * MIB, 0));
        assert_eq!(allocate(&mut allocator, 1, 30 * MIB), (30 * MIB, 0));
        // WHEN a request exceeds the free block by a byte, THEN it gets a new segment.
        let mut allocator = with_free_blocks("", &[20 * MIB]);
        assert_eq!(allocate(&mut allocator, 0, 20 * MIB + 1), (20 * MIB + MIN_BLOCK, 22 * MIB));
    }

    #[test]
    fn the_smallest_block_that_fits_is_taken() {
        // GIVEN free blocks of several sizes, the smallest in the middle, WHEN a request fits three of them
        let mut allocator = with_free_blocks("", &[40 * MIB, 12 * MIB, 24 * MIB, 26 * MIB]);
        allocator.allocate(0, 0, 23 * MIB).unwrap();
        // THEN it takes the one of 24 MiB: those of 40 and 26 are still whole.
        assert_eq!(allocate(&mut allocator, 1, 26 * MIB), (26 * MIB, 0));
        assert_eq!(allocate(&mut allocator, 2, 40 * MIB), (40 * MIB, 0));
    }

    #[test]
    fn the_rest_of_a_large_block_is_split_off_above_one_mebibyte() {
        // GIVEN a free block of 20 MiB WHEN a request leaves 1 MiB of it, THEN it gets all of it
        let mut allocator = with_free_blocks("", &[20 * MIB]);
        assert_eq!(allocate(&mut allocator, 0, 19 * MIB), (20 * MIB, 0));
        // WHEN it leaves a little more, THEN the rest becomes a separate block, and a request of its size finds it.
        let mut allocator = with_free_blocks("", &[20 * MIB]);
        assert_eq!(allocate(&mut allocator, 0, 19 * MIB - MIN_BLOCK), (19 * MIB - MIN_BLOCK, 0));
        assert_eq!(allocate(&mut allocator, 1, MIB + MIN_BLOCK), (MIB + MIN_BLOCK, 0));
    }

    #[test]
    fn the_rest_of_a_small_block_is_split_off_from_the_smallest_block_on() {
        // GIVEN a small segment of 2 MiB WHEN all but one block of minimum size is in use, THEN that block can be
        // allocated
        let mut allocator = Allocator::new(Settings::default(), Card::UNLIMITED);
        allocator.place(PoolKey::default());
        assert_eq!(allocate(&mut allocator, 0, MIB), (MIB, 2 * MIB));
        assert_eq!(allocate(&mut allocator, 1, MIB - MIN_BLOCK), (MIB - MIN_BLOCK, 0));
        assert_eq!(allocate(&mut allocator, 2, 1), (MIN_BLOCK, 0));
        assert_eq!(allocate(&mut allocator, 3, 1), (MIN_BLOCK, 2 * MIB));
        // AND a request of a byte more than 1 MiB is a large one.
        assert_eq!(allocate(&mut allocator, 4, MIB + 1), (MIB + MIN_BLOCK, 20 * MIB));
    }

    #[test]
    fn segments_have_the_size_of_requests_from_ten_mebibytes_on() {
        let mut allocator = Allocator::new(Settings::default(), Card::UNLIMITED);
        allocator.place(PoolKey::default());
        assert_eq!(allocate(&mut allocator, 0, 10 * MIB - MIN_BLOCK), (10 * MIB - MIN_BLOCK, 20 * MIB));
        let mut allocator = Allocator::new(Settings::default(), Card::UNLIMITED);
        allocator.place(PoolKey::default());
        assert_eq!(allocate(&mut allocator, 0, 10 * MIB), (10 * MIB, 10 * MIB));
    }

    #[test]
    fn blocks_from_the_largest_size_to_split_on_serve_only_requests_from_it_on() {
        // GIVEN a free block below the split limit, and one at the limit
        let settings = "max_split_size_mb:40,max_non_split_rounding_mb:20";
        let blocks = [40 * MIB - 2 * MIB, 40 * MIB];
        // WHEN smaller requests come, THEN the first is split, and the second is not used
        let mut allocator = with_free_blocks(settings, &blocks);
        assert_eq!(allocate(&mut allocator, 0, 30 * MIB), (30 * MIB, 0));
        assert_eq!(allocate(&mut allocator, 1, 36 * MIB), (36 * MIB, 36 * MIB));
        // WHEN a request at the limit comes, THEN it gets the second.
        assert_eq!(allocate(&mut allocator, 2, 40 * MIB), (40 * MIB, 0));
    }

    #[test]
    fn a_block_that_is_not_split_is_less_than_the_rounding_larger() {
        // GIVEN a free block of 80 MiB that is not split WHEN a request is 20 MiB smaller, THEN it gets another one
        let settings = "max_split_size_mb:40,max_non_split_rounding_mb:20";
        let mut allocator = with_free_blocks(settings, &[80 * MIB]);
        assert_eq!(allocate(&mut allocator, 0, 60 * MIB), (60 * MIB, 60 * MIB));
        // WHEN the difference is slightly smaller, THEN it gets the whole block.
        assert_eq!(allocate(&mut allocator, 1, 60 * MIB + MIN_BLOCK), (80 * MIB, 0));
        // AND so does the smallest request that cannot be split off.
        let mut allocator = with_free_blocks(settings, &[58 * MIB]);
        assert_eq!(allocate(&mut allocator, 0, 40 * MIB), (58 * MIB, 0));
    }

    /// Returns the blocks of an expandable segment of five blocks of 20 MiB, after these are freed and 10 MiB are
    /// allocated.
    fn expandable_after(freed: &[u32]) -> Vec<u64> {
        let mut allocator = Allocator::new(Settings::parse("expandable_segments:True").unwrap(), Card::UNLIMITED);
        allocator.place(PoolKey::default());
        for id in 0..5 {
            assert_eq!(allocate(&mut allocator, id, 20 * MIB), (20 * MIB, 20 * MIB));
        }
        for &id in freed {
            allocator.apply(Request::Free { id }).unwrap();
        }
        assert_eq!(allocate(&mut allocator, 5, 10 * MIB), (10 * MIB, 0));
        allocator.segments()[0].blocks.iter().map(|block| block.size / MIB).collect()
    }

    #[test]
    fn a_block_that_cannot_grow_is_taken_before_one_that_can() {
        // GIVEN a hole of 40 MiB, and 20 free MiB at the end WHEN 10 MiB are requested, THEN they come from the hole
        assert_eq!(expandable_after(&[1, 2, 4]), [20, 10, 30, 20, 20]);
        // AND of two equal holes, from the first.
        assert_eq!(expandable_after(&[1, 3]), [20, 10, 10, 20, 20, 20]);
    }
}
