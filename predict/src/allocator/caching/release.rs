//! Gives memory back to the card: when it is full, for garbage collection, or at the program's request.

use super::state::AllocatorState;
use crate::allocator::blocks::{Block, BlockId};

impl AllocatorState {
    /// Gives back a segment of one free block (`release_block`).
    fn release(&mut self, id: BlockId) {
        let Block { address, size, .. } = self.blocks[id];
        self.remove_free(id);
        self.blocks.remove(id);
        self.card.give_back(size);
        self.card.forget_address(address);
        self.counters.reserved.subtract(size);
        self.counters.device_frees += 1;
    }

    /// Gives back all unused memory, after waiting for other streams (`release_cached_blocks`).
    pub fn release_unused(&mut self) {
        for (_, id) in std::mem::take(&mut self.pending) {
            self.free(id);
        }
        for stream_pool in 0..self.stream_pools.len() as u32 {
            if !self.pools[self.stream_pool(stream_pool).pool].is_releasable {
                continue;
            }
            let free: Vec<BlockId> = self.stream_pool(stream_pool).free.iter().collect();
            let (expandable, whole): (Vec<_>, Vec<_>) =
                free.into_iter().partition(|id| self.blocks[*id].expandable.is_some());
            for id in whole {
                if !self.blocks[id].is_split() {
                    self.release(id);
                }
            }
            for id in expandable {
                self.unmap(id);
            }
        }
    }

    /// With `max_split_size_mb`: gives back one unsplittable block that is large enough, or several, largest first, until
    /// their sum is (`release_available_cached_blocks`).
    ///
    /// Returns false if that would not make enough room.
    pub fn release_oversize(&mut self, stream_pool: u32, size: u64) -> bool {
        let limit = self.settings.max_split_size;
        if limit == u64::MAX {
            return false;
        }
        let wanted = size.max(limit);
        let free = &self.stream_pool(stream_pool).free;
        if let Some(cursor) = free.best_fit(wanted) {
            let id = free.at(cursor);
            self.release(id);
            return true;
        }
        let largest: Vec<BlockId> = free.iter().rev().take_while(|id| self.blocks[*id].size >= limit).collect();
        let mut released = 0;
        for id in largest {
            if released >= wanted {
                break;
            }
            released += self.blocks[id].size;
            self.release(id);
        }
        released >= wanted
    }

    /// Gives back the least recently used large segments of the common pool until fewer bytes than the threshold are
    /// reserved (`garbage_collect_cached_blocks`).
    pub fn collect_garbage(&mut self) {
        let threshold = (self.settings.garbage_collection_threshold * self.allowed as f64) as u64;
        let Some(target) = self.counters.reserved.current.checked_sub(threshold).filter(|target| *target > 0) else {
            return;
        };
        let searches = self.pools[0].searches[0];
        let large = self.stream_pools.iter().filter(|stream_pool| stream_pool.pool == 0 && !stream_pool.is_small);
        let unused = large.flat_map(|stream_pool| stream_pool.free.iter()).filter(|id| {
            let block = &self.blocks[*id];
            !block.is_split() && block.expandable.is_none()
        });
        let mut unused: Vec<(BlockId, u64)> =
            unused.map(|id| (id, searches - self.blocks[id].searches_before)).collect();
        let mut reclaimed = 0;
        while reclaimed < target && !unused.is_empty() {
            let mut total_age: u64 = unused.iter().map(|(_, age)| age).sum();
            let oldest = total_age as f64 / unused.len() as f64;
            let before = unused.len();
            unused.retain(|&(id, age)| {
                let stays = (age as f64) < oldest;
                if !stays {
                    reclaimed += self.blocks[id].size;
                    total_age -= age;
                    self.release(id);
                }
                stays
            });
            if unused.len() == before {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, Card, PoolKey, Request, Settings};

    const MIB: u64 = 1 << 20;

    /// An allocator on a card of `card` MiB, with blocks of `sizes`, numbered from 0.
    fn with_blocks(settings: &str, card: u64, sizes: &[u64]) -> Allocator {
        let card = Card::with_available(card * MIB, card * MIB);
        let mut allocator = Allocator::new(Settings::parse(settings).unwrap(), card);
        allocator.place(PoolKey::default());
        for (id, &size) in (0..).zip(sizes) {
            allocator.allocate(id, 0, size * MIB).unwrap();
        }
        allocator
    }

    fn free(allocator: &mut Allocator, id: u32) {
        allocator.apply(Request::Free { id }).unwrap();
    }

    #[test]
    fn unsplittable_blocks_are_released_until_the_request_fits() {
        // GIVEN a card full of free blocks, all at or above the split limit WHEN a request needs two of them
        let mut allocator = with_blocks("max_split_size_mb:40", 124, &[44, 40, 40]);
        (0..3).for_each(|id| free(&mut allocator, id));
        allocator.allocate(3, 0, 84 * MIB).unwrap();
        // THEN two go back, and the third stays
        let counters = allocator.counters();
        assert_eq!((counters.reserved.current, counters.device_frees, counters.retries), (124 * MIB, 2, 0));
    }

    #[test]
    fn garbage_of_one_age_goes_back_together() {
        // GIVEN two free blocks of equal age, on a card with a lower threshold for garbage collection
        let settings = "garbage_collection_threshold:0.5,per_process_memory_fraction:1.0";
        let mut allocator = with_blocks(settings, 100, &[30, 30]);
        (0..2).for_each(|id| free(&mut allocator, id));
        // WHEN a larger block is requested, THEN both go back.
        allocator.allocate(2, 0, 40 * MIB).unwrap();
        assert_eq!(allocator.counters().reserved.current, 40 * MIB);
    }

    #[test]
    fn garbage_goes_back_until_the_threshold_is_reached() {
        // GIVEN an old and a young free block; the old one has exactly the size of the excess over the threshold of 62
        // MiB
        let settings = "garbage_collection_threshold:0.060546875,per_process_memory_fraction:1.0";
        let mut allocator = with_blocks(settings, 1024, &[32, 50, 12]);
        free(&mut allocator, 0);
        free(&mut allocator, 2);
        allocator.allocate(3, 0, 12 * MIB).unwrap();
        free(&mut allocator, 1);
        // WHEN a larger block is requested, THEN only the old one goes back.
        allocator.allocate(4, 0, 60 * MIB).unwrap();
        assert_eq!(allocator.counters().reserved.current, (50 + 12 + 60) * MIB);
    }
}
