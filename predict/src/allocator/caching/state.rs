//! State of the allocator: blocks, free blocks, pools and counters.

use std::collections::BTreeMap;

use crate::allocator::blocks::{Block, BlockId, Blocks, Use};
use crate::allocator::card::{Card, CardMemory};
use crate::allocator::counters::Counters;
use crate::allocator::free_blocks::{FreeBlocks, Key};
use crate::allocator::request::PoolKey;
use crate::allocator::settings::Settings;

/// Small or large blocks of one pool on one stream. A block never changes its stream pool.
#[derive(Debug)]
pub struct StreamPool {
    pub place: PoolKey,
    pub pool: usize,
    pub is_small: bool,
    pub free: FreeBlocks,
    /// Unmapped parts of expandable segments, by address.
    pub unmapped: BTreeMap<u64, BlockId>,
}

/// The common pool, or a private one.
#[derive(Debug)]
pub struct Pool {
    id: (u64, u64),
    /// True if unused segments may go back to the card. False while a graph or `MemPool` holds a private pool.
    pub is_releasable: bool,
    /// Number of searches for small and large blocks: the clock of the garbage collection.
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
    /// Number of segments taken from the card, counted only where age decides.
    pub segments_taken: u32,
    /// Limit on reserved bytes.
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

    /// Adds the two stream pools of a place: first its large blocks, then its small ones.
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

    /// Returns the number of searches of a stream pool's pool.
    pub fn searches(&mut self, stream_pool: u32) -> &mut u64 {
        let StreamPool { pool, is_small, .. } = *self.stream_pool(stream_pool);
        &mut self.pools[pool].searches[usize::from(is_small)]
    }

    /// Returns true if garbage is collected: PyTorch does so only below a memory fraction.
    pub fn collects_garbage(&self) -> bool {
        self.settings.memory_fraction.is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    /// Adds a block to the free blocks.
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

    /// Adds a block that fills a new segment.
    pub fn add_segment(&mut self, address: u64, size: u64, stream_pool: u32) -> BlockId {
        self.segments_taken += u32::from(self.settings.oldest_first);
        let segment_age = self.segments_taken;
        self.blocks.add(Block { segment_age, ..Block::new(address, size, stream_pool) })
    }

    /// Hands out a block that is not in the free blocks. The rest beyond `size` may become a separate block.
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

    /// Ends the allocation of a block whose tensor is gone.
    pub fn end_allocation(&mut self, id: BlockId) {
        self.blocks[id].used = Use::Pending;
        self.counters.allocated.subtract(self.blocks[id].size);
    }

    /// Frees a block and merges it with free neighbours.
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

    /// Merges a block that is not in the free blocks with neighbours that are. Returns their bytes.
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
