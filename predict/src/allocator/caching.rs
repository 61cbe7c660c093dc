//! Allocator that handles one request at a time.

mod expandable;
mod find;
mod release;
mod state;

use crate::allocator::blocks::{Block, BlockId, Use};
use crate::allocator::card::Card;
use crate::allocator::counters::Counters;
use crate::allocator::request::{OutOfMemory, PoolKey, Request, Requests};
use crate::allocator::settings::Settings;
use crate::allocator::sizes::SMALL_ALLOCATION;
use state::AllocatorState;

/// Use of a block of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Unused (`inactive`).
    Free,
    /// Holds a tensor (`active_allocated`).
    Allocated,
    /// The tensor is gone, but other streams may still use the memory (`active_pending_free`).
    Pending,
}

/// A block of a segment, as in `torch.cuda.memory_snapshot()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentBlock {
    /// Bytes of the block.
    pub size: u64,
    /// Requested bytes; 0 if the block is free.
    pub requested: u64,
    /// Use of the block.
    pub state: BlockState,
}

/// A segment: contiguous memory from the card, or an adjacent part of an expandable segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentState {
    /// Start in the model's address space.
    pub address: u64,
    /// Stream and pool whose requests it serves.
    pub place: PoolKey,
    /// True if it serves requests of at most 1 MiB.
    pub is_small: bool,
    /// True if it is part of an expandable segment.
    pub is_expandable: bool,
    /// Its blocks, in the order of their addresses.
    pub blocks: Vec<SegmentBlock>,
}

/// PyTorch's caching allocator for one card.
///
/// ```
/// use memlab_predict::allocator::{Allocator, Card, PoolKey, Settings};
/// let mut allocator = Allocator::new(Settings::default(), Card::UNLIMITED);
/// let place = allocator.place(PoolKey::default());
/// allocator.allocate(0, place, 1000).unwrap();
/// allocator.allocate(1, place, 3 << 20).unwrap();
/// let counters = allocator.counters();
/// assert_eq!(counters.allocated.current, 1024 + (3 << 20));
/// assert_eq!(counters.reserved.current, (2 << 20) + (20 << 20)); // A small segment and a large one.
/// ```
#[derive(Debug)]
pub struct Allocator {
    state: AllocatorState,
    /// First stream pool of each place.
    places: Vec<u32>,
    /// Block of each id.
    blocks: Vec<BlockId>,
}

impl Allocator {
    /// Returns an allocator without memory.
    pub fn new(settings: Settings, card: Card) -> Allocator {
        Allocator { state: AllocatorState::new(settings, card), places: Vec::new(), blocks: Vec::new() }
    }

    /// Registers a place and returns its index for requests.
    pub fn place(&mut self, place: PoolKey) -> u16 {
        self.places.push(self.state.add_stream_pools(place));
        self.places.len() as u16 - 1
    }

    /// Returns an allocator with the places and ids of these requests.
    pub fn for_requests(requests: &Requests, settings: Settings, card: Card) -> Allocator {
        let mut allocator = Allocator::new(settings, card);
        for place in &requests.places {
            allocator.place(*place);
        }
        allocator.blocks.resize(requests.ids as usize, BlockId::NONE);
        allocator
    }

    /// Carries out a request.
    ///
    /// # Errors
    ///
    /// If the card has no room for it. Unused memory has gone back to the card by then, and the id has no memory.
    pub fn apply(&mut self, request: Request) -> Result<(), OutOfMemory> {
        match request {
            Request::Allocate { id, place, size } => return self.allocate(id, place, size),
            Request::Free { id } => self.free(id),
            Request::FreeRequested { id } => self.request_free(id),
            Request::FreeCompleted { id } => self.complete_free(id),
            Request::EmptyCache => self.state.release_unused(),
            Request::ReleasePool { place } => {
                let pool = self.state.stream_pool(self.places[usize::from(place)]).pool;
                self.state.pools[pool].is_releasable = true;
            }
            Request::Outside { change } => self.state.card.change_outside(change),
        }
        Ok(())
    }

    /// Allocates `size` bytes as `id`. See [`Allocator::apply`].
    ///
    /// # Errors
    ///
    /// If the card has no room for it.
    pub fn allocate(&mut self, id: u32, place: u16, requested: u64) -> Result<(), OutOfMemory> {
        let size = self.state.settings.round(requested);
        let stream_pool = self.places[usize::from(place)] + u32::from(size <= SMALL_ALLOCATION);
        let found = self.state.find(stream_pool, size).or_else(|| self.take_from_card(stream_pool, size));
        let index = id as usize;
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, BlockId::NONE);
        }
        let Some(found) = found else {
            self.blocks[index] = BlockId::NONE;
            let Counters { allocated, reserved, .. } = self.state.counters;
            return Err(OutOfMemory {
                size: requested,
                segment: self.state.settings.segment_size(size),
                allocated: allocated.current,
                reserved: reserved.current,
            });
        };
        self.blocks[index] = self.state.hand_out(found, size, requested);
        Ok(())
    }

    /// Takes a block from a new or grown segment. If the card is full, gives unused memory back first.
    fn take_from_card(&mut self, stream_pool: u32, size: u64) -> Option<BlockId> {
        let state = &mut self.state;
        if state.collects_garbage() {
            state.collect_garbage();
        }
        if let Some(block) = new_block(state, stream_pool, size) {
            return Some(block);
        }
        if state.release_oversize(stream_pool, size)
            && let Some(block) = new_block(state, stream_pool, size)
        {
            return Some(block);
        }
        state.release_unused();
        state.counters.retries += 1;
        new_block(state, stream_pool, size)
    }

    /// Frees the block of a tensor for reuse.
    fn free(&mut self, id: u32) {
        if let Some(block) = self.take(id) {
            self.state.end_allocation(block);
            self.state.free(block);
        }
    }

    fn request_free(&mut self, id: u32) {
        if let Some(block) = self.take(id) {
            self.state.end_allocation(block);
            self.state.pending.push((id, block));
        }
    }

    /// Completes a free. The memory may already be free, because a full card waits for other streams.
    fn complete_free(&mut self, id: u32) {
        if let Some(position) = self.state.pending.iter().position(|(pending, _)| *pending == id) {
            let (_, block) = self.state.pending.remove(position);
            self.state.free(block);
        }
    }

    /// Removes the block from an id and returns it.
    fn take(&mut self, id: u32) -> Option<BlockId> {
        self.blocks.get_mut(id as usize).and_then(|block| std::mem::replace(block, BlockId::NONE).some())
    }

    /// Returns the bytes of an id's block, or `None`.
    ///
    /// A block that PyTorch does not split may be larger than the request.
    pub fn block_size(&self, id: u32) -> Option<u64> {
        let block = self.blocks.get(id as usize)?.some()?;
        Some(self.state.blocks[block].size)
    }

    /// Returns the current counters.
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }

    /// Returns all segments, in the order of their addresses.
    pub fn segments(&self) -> Vec<SegmentState> {
        let state = &self.state;
        let held =
            self.blocks.iter().filter_map(|block| block.some()).chain(state.pending.iter().map(|(_, block)| *block));
        let all = state.stream_pools.iter().flat_map(|stream_pool| stream_pool.free.iter()).chain(held);
        let begins_a_segment = |id: &BlockId| {
            let previous = state.blocks[*id].previous.some();
            previous.is_none_or(|previous| !state.blocks[previous].is_mapped)
        };
        let mut first: Vec<BlockId> = all.filter(begins_a_segment).collect();
        first.sort_by_key(|id| state.blocks[*id].address);
        first.dedup();
        first.into_iter().map(|id| self.segment_from(id)).collect()
    }

    fn segment_from(&self, first: BlockId) -> SegmentState {
        let state = &self.state;
        let Block { address, stream_pool, expandable, .. } = state.blocks[first];
        let mut blocks = Vec::new();
        let mut next = Some(first);
        while let Some(block) = next.map(|id| &state.blocks[id]).filter(|block| block.is_mapped) {
            let (state, requested) = match block.used {
                Use::Free => (BlockState::Free, 0),
                Use::Allocated => (BlockState::Allocated, block.requested),
                Use::Pending => (BlockState::Pending, block.requested),
            };
            blocks.push(SegmentBlock { size: block.size, requested, state });
            next = block.next.some();
        }
        let stream_pool = state.stream_pool(stream_pool);
        SegmentState {
            address,
            place: stream_pool.place,
            is_small: stream_pool.is_small,
            is_expandable: expandable.is_some(),
            blocks,
        }
    }
}

/// Takes a block from a new segment or a grown expandable segment (`alloc_block`). It is not in the free blocks.
fn new_block(state: &mut AllocatorState, stream_pool: u32, size: u64) -> Option<BlockId> {
    let segment = state.settings.segment_size(size);
    if state.counters.reserved.current.saturating_add(segment) > state.allowed {
        return None;
    }
    if state.settings.expandable_segments {
        return state.grow(stream_pool, size);
    }
    if !state.card.take(segment) {
        return None;
    }
    let Some(address) = state.card.address(segment) else {
        state.card.give_back(segment);
        return None;
    };
    state.counters.reserved.add(segment);
    state.counters.device_allocations += 1;
    Some(state.add_segment(address, segment, stream_pool))
}
