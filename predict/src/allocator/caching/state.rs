//! Blocks, free blocks, pools and counters, and how they change together.

use std::collections::BTreeMap;

use crate::allocator::blocks::{Block, BlockId, Blocks, Use};
use crate::allocator::card::{Card, CardMemory};
use crate::allocator::counters::Counters;
use crate::allocator::free_blocks::{FreeBlocks, Key};
use crate::allocator::request::PoolKey;
use crate::allocator::settings::Settings;

/// The small or the large blocks of one pool on one stream. Blocks never change their stream pool.
#[derive(Debug)]
pub struct StreamPool {
    pub place: PoolKey,
    pub pool: usize,
    pub is_small: bool,
    pub free: FreeBlocks,
    /// Parts of expandable segments without memory, by address.
    pub unmapped: BTreeMap<u64, BlockId>,
}

/// The common pool, or a private one.
#[derive(Debug)]
pub struct Pool {
    id: (u64, u64),
    /// Whether unused segments may go back to the card: not while a graph or `MemPool` holds a private pool.
    pub is_releasable: bool,
    /// How often small and large blocks have been searched: the clock of the garbage collection.
    pub searches: [u64; 2],
}

#[derive(Debug)]
pub struct AllocatorState {
    pub settings: Settings,
    pub card: CardMemory,
    pub blocks: Blocks,
    pub stream_pools: Vec<StreamPool>,
    pub pools: Vec<Pool>,
    /// Blocks that wait for other streams, with their ids, in the order of their frees.
    pub pending: Vec<(u32, BlockId)>,
    pub counters: Counters,
    /// How many segments have been taken from the card, if that counts.
    pub segments_taken: u32,
    /// The most that may be reserved.
    pub allowed: u64,
}

impl AllocatorState {
    pub fn new(settings: Settings, card: Card) -> AllocatorState {
        let allowed = settings.memory_fraction.map_or(u64::MAX, |fraction| (fraction * card.total as f64) as u64);
        AllocatorState {
            settings,
            card: CardMemory::new(card),
            blocks: Blocks::default(),
            stream_pools: Vec::new(),
            pools: vec![Pool { id: (0, 0), is_releasable: true, searches: [0; 2] }],
            pending: Vec::new(),
            counters: Counters::default(),
            segments_taken: 0,
            allowed,
        }
    }

    /// The two stream pools of a place: its large and, after them, its small blocks.
    pub fn add_stream_pools(&mut self, place: PoolKey) -> u32 {
        let pool = self.pools.iter().position(|pool| pool.id == place.pool).unwrap_or_else(|| {
            self.pools.push(Pool { id: place.pool, is_releasable: false, searches: [0; 2] });
            self.pools.len() - 1
        });
        for is_small in [false, true] {
            self.stream_pools.push(StreamPool {
                place,
                pool,
                is_small,
                free: FreeBlocks::default(),
                unmapped: BTreeMap::new(),
            });
        }
        self.stream_pools.len() as u32 - 2
    }

    pub fn stream_pool(&self, stream_pool: u32) -> &StreamPool {
        &self.stream_pools[stream_pool as usize]
    }

    pub fn stream_pool_mut(&mut self, stream_pool: u32) -> &mut StreamPool {
        &mut self.stream_pools[stream_pool as usize]
    }

    /// How often the pool of a stream pool has been searched.
    pub fn searches(&mut self, stream_pool: u32) -> &mut u64 {
        let StreamPool { pool, is_small, .. } = *self.stream_pool(stream_pool);
        &mut self.pools[pool].searches[usize::from(is_small)]
    }

    /// Whether age counts: PyTorch collects garbage only below a memory fraction.
    pub fn collects_garbage(&self) -> bool {
        self.settings.memory_fraction.is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    /// Puts a free block among those that can be found.
    pub fn insert_free(&mut self, id: BlockId) {
        let stream_pool = self.blocks[id].stream_pool;
        self.blocks[id].searches_before = *self.searches(stream_pool);
        let key = key(&self.blocks[id]);
        self.stream_pool_mut(stream_pool).free.insert(key, id);
    }

    pub fn remove_free(&mut self, id: BlockId) {
        let (stream_pool, key) = (self.blocks[id].stream_pool, key(&self.blocks[id]));
        self.stream_pool_mut(stream_pool).free.remove(key);
    }

    /// A block that is a whole new segment.
    pub fn add_segment(&mut self, address: u64, size: u64, stream_pool: u32) -> BlockId {
        self.segments_taken += u32::from(self.settings.oldest_first);
        let segment_age = self.segments_taken;
        self.blocks.add(Block { segment_age, ..Block::new(address, size, stream_pool) })
    }

    /// Hands out a block that was found or made, and that is not among the free ones any more. What it has beyond `size` may
    /// become a block of its own.
    pub fn hand_out(&mut self, id: BlockId, size: u64, requested: u64) -> BlockId {
        let block = &self.blocks[id];
        let (stream_pool, is_expandable, was_split) = (block.stream_pool, block.expandable.is_some(), block.is_split());
        let remaining = block.size - size;
        let mut handed_out = id;
        if self.settings.splits(self.stream_pool(stream_pool).is_small, size, remaining) {
            let (expandable, segment_age) = (block.expandable, block.segment_age);
            let front = Block { expandable, segment_age, ..Block::new(block.address, size, stream_pool) };
            self.blocks[id].address += size;
            self.blocks[id].size = remaining;
            handed_out = self.blocks.add_before(id, front);
            self.insert_free(id);
            match (is_expandable, was_split) {
                (true, _) => {}
                (false, true) => self.counters.inactive_split.subtract(size),
                (false, false) => self.counters.inactive_split.add(remaining),
            }
        } else if was_split && !is_expandable {
            self.counters.inactive_split.subtract(self.blocks[id].size);
        }
        let block = &mut self.blocks[handed_out];
        block.used = Use::Allocated;
        block.requested = requested;
        self.counters.allocated.add(block.size);
        self.counters.active.add(block.size);
        self.counters.requested.add(requested);
        handed_out
    }

    /// The tensor of a block is gone.
    pub fn end_allocation(&mut self, id: BlockId) {
        self.blocks[id].used = Use::Pending;
        self.counters.allocated.subtract(self.blocks[id].size);
    }

    /// Makes a block free, and joins it with free neighbours.
    pub fn free(&mut self, id: BlockId) {
        let Block { size, requested, expandable, .. } = self.blocks[id];
        self.blocks[id].used = Use::Free;
        let joined = self.join_neighbours(id);
        self.insert_free(id);
        if expandable.is_none() {
            if self.blocks[id].is_split() {
                self.counters.inactive_split.add(self.blocks[id].size - joined);
            } else {
                // The segment is whole again.
                self.counters.inactive_split.subtract(joined);
            }
        }
        self.counters.active.subtract(size);
        self.counters.requested.subtract(requested);
    }

    /// Joins a free block, which is not among those that can be found, with the neighbours that can. Returns their bytes.
    pub fn join_neighbours(&mut self, id: BlockId) -> u64 {
        let Block { previous, next, .. } = self.blocks[id];
        self.join(id, previous) + self.join(id, next)
    }

    fn join(&mut self, id: BlockId, neighbour: BlockId) -> u64 {
        let Some(neighbour) = neighbour.some() else { return 0 };
        let Block { size, address, stream_pool, used, is_mapped, .. } = self.blocks[neighbour];
        if used != Use::Free || is_mapped != self.blocks[id].is_mapped {
            return 0;
        }
        if is_mapped {
            self.remove_free(neighbour);
        } else {
            self.stream_pool_mut(stream_pool).unmapped.remove(&address);
        }
        self.blocks.absorb(id, neighbour);
        size
    }
}

fn key(block: &Block) -> Key {
    let Block { size, segment_age, address, .. } = *block;
    Key { size, segment_age, address }
}
