//! What goes back to the card: because it is full, because garbage is collected, or because the program asks.

use super::state::State;
use crate::blocks::{Block, BlockId};

impl State {
    /// Gives a segment of one free block back (`release_block`).
    fn release(&mut self, id: BlockId) {
        let Block { address, size, .. } = self.blocks[id];
        self.remove_free(id);
        self.blocks.remove(id);
        self.card.give_back(size);
        self.card.forget_address(address);
        self.counters.reserved.subtract(size);
        self.counters.device_frees += 1;
    }

    /// Gives back all that is unused, after waiting for other streams (`release_cached_blocks`).
    pub fn release_unused(&mut self) {
        for (_, id) in std::mem::take(&mut self.pending) {
            self.free(id);
        }
        for lane in 0..self.lanes.len() as u32 {
            if !self.pools[self.lane(lane).pool].is_releasable {
                continue;
            }
            let free: Vec<BlockId> = self.lane(lane).free.iter().collect();
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

    /// With `max_split_size_mb`: gives back one unsplittable block that is large enough, or several, largest first, until they
    /// are together (`release_available_cached_blocks`). False if that would not make enough room.
    pub fn release_oversize(&mut self, lane: u32, size: u64) -> bool {
        let limit = self.settings.max_split_size;
        if limit == u64::MAX {
            return false;
        }
        let wanted = size.max(limit);
        let free = &self.lane(lane).free;
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

    /// Gives back unused large segments of the common pool that have not been used for longest, until less than the threshold
    /// is reserved (`garbage_collect_cached_blocks`).
    pub fn collect_garbage(&mut self) {
        let threshold = (self.settings.garbage_collection_threshold * self.allowed as f64) as u64;
        let Some(target) = self.counters.reserved.current.checked_sub(threshold).filter(|target| *target > 0) else {
            return;
        };
        let searches = self.pools[0].searches[0];
        let large = self.lanes.iter().filter(|lane| lane.pool == 0 && !lane.is_small);
        let unused = large.flat_map(|lane| lane.free.iter()).filter(|id| {
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
