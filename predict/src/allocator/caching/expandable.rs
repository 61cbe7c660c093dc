//! Segments that grow (`expandable_segments:True`).
//!
//! Each is a range of addresses somewhat larger than the card. A block without memory (`is_mapped` is false) covers the
//! part that is not backed yet. Pages back it from its start.

use super::state::AllocatorState;
use crate::allocator::blocks::{Block, BlockId, Use};
use crate::allocator::sizes::round_up;

impl AllocatorState {
    /// Returns a block of at least `size` bytes at the lowest address with room, and backs it with memory.
    ///
    /// The block is not in the free blocks. Returns `None` if the card or the address space is full.
    pub fn grow(&mut self, stream_pool: u32, size: u64) -> Option<BlockId> {
        let mut block = self.lowest_room(stream_pool, size)?;
        if !self.blocks[block].is_mapped && !self.map(block, size) {
            return None;
        }
        while self.blocks[block].size < size {
            let next = self.blocks[block].next;
            if !self.map(next, size - self.blocks[block].size) {
                return None;
            }
            block = next;
        }
        self.remove_free(block);
        Some(block)
    }

    /// Returns the first of the adjacent free blocks, mapped or not, that together have room.
    ///
    /// Adds a segment if none has.
    fn lowest_room(&mut self, stream_pool: u32, size: u64) -> Option<BlockId> {
        let is_free = |id: BlockId| self.blocks[id].used == Use::Free;
        for &unmapped in self.stream_pool(stream_pool).unmapped.values() {
            let before = self.blocks[unmapped].previous.some();
            let first = before.filter(|before| is_free(*before)).unwrap_or(unmapped);
            let mut room = 0;
            let mut next = Some(first);
            while room < size
                && let Some(block) = next.filter(|block| is_free(*block))
            {
                room += self.blocks[block].size;
                next = self.blocks[block].next.some();
            }
            if room >= size {
                return Some(first);
            }
        }
        let page = self.settings.page_size(self.stream_pool(stream_pool).is_small);
        let room = round_up(self.card.total() + self.card.total() / 8, page);
        if size > room {
            return None;
        }
        let base = self.card.address(room)?;
        let id =
            self.blocks.add(Block { expandable: Some(base), is_mapped: false, ..Block::new(base, room, stream_pool) });
        self.stream_pool_mut(stream_pool).unmapped.insert(base, id);
        Some(id)
    }

    /// Backs the start of an unmapped block with up to `size` bytes, merges it with its neighbours and frees it.
    fn map(&mut self, id: BlockId, size: u64) -> bool {
        let Block { address, size: room, stream_pool, expandable, .. } = self.blocks[id];
        let mapped = round_up(size.min(room), self.settings.page_size(self.stream_pool(stream_pool).is_small));
        if !self.card.take(mapped) {
            return false;
        }
        self.stream_pool_mut(stream_pool).unmapped.remove(&address);
        self.blocks[id].is_mapped = true;
        if mapped < room {
            let rest =
                Block { expandable, is_mapped: false, ..Block::new(address + mapped, room - mapped, stream_pool) };
            let rest = self.blocks.add_after(id, rest);
            self.blocks[id].size = mapped;
            self.stream_pool_mut(stream_pool).unmapped.insert(address + mapped, rest);
        }
        self.join_neighbours(id);
        self.insert_free(id);
        self.counters.reserved.add(mapped);
        self.counters.device_allocations += 1;
        true
    }

    /// Gives the whole pages of a free block back to the card, and the addresses too if the segment is then empty.
    pub fn unmap(&mut self, id: BlockId) {
        let Block { address, size, stream_pool, expandable, .. } = self.blocks[id];
        let page = self.settings.page_size(self.stream_pool(stream_pool).is_small);
        let base = expandable.expect("only blocks of expandable segments are unmapped");
        let begin = base + round_up(address - base, page);
        let end = base + (address + size - base) / page * page;
        if begin >= end {
            return;
        }
        self.remove_free(id);
        if begin > address {
            let front = Block { expandable, ..Block::new(address, begin - address, stream_pool) };
            let front = self.blocks.add_before(id, front);
            self.insert_free(front);
        }
        if end < address + size {
            let back = Block { expandable, ..Block::new(end, address + size - end, stream_pool) };
            let back = self.blocks.add_after(id, back);
            self.insert_free(back);
        }
        let block = &mut self.blocks[id];
        (block.address, block.size, block.is_mapped) = (begin, end - begin, false);
        self.join_neighbours(id);
        let address = self.blocks[id].address;
        self.stream_pool_mut(stream_pool).unmapped.insert(address, id);
        self.card.give_back(end - begin);
        self.counters.reserved.subtract(end - begin);
        self.counters.device_frees += 1;
        if !self.blocks[id].is_split() {
            self.stream_pool_mut(stream_pool).unmapped.remove(&address);
            self.blocks.remove(id);
            self.card.forget_address(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::allocator::{Allocator, Card, PoolKey, Settings};

    #[test]
    fn requests_beyond_all_addresses_run_out_of_memory() {
        // GIVEN a card that is never full, with and without a block; WHEN a block is requested that no address range
        // can hold
        for (before, power) in [0, 1].into_iter().flat_map(|before| (47..64).map(move |power| (before, power))) {
            let mut allocator = Allocator::new(Settings::parse("expandable_segments:True").unwrap(), Card::UNLIMITED);
            allocator.place(PoolKey::default());
            (0..before).for_each(|id| allocator.allocate(id, 0, 1 << 22).unwrap());
            // THEN it is refused
            assert!(allocator.allocate(before, 0, 1 << power).is_err(), "2^{power}");
        }
    }
}
