//! Blocks of a segment, in the order of their addresses.

/// Index of a block in [`Blocks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockId(u32);

impl BlockId {
    pub const NONE: BlockId = BlockId(u32::MAX);

    /// Returns `None` for [`BlockId::NONE`].
    pub fn some(self) -> Option<BlockId> {
        (self != BlockId::NONE).then_some(self)
    }
}

/// Use of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Unused: it can be handed out or merged.
    Free,
    /// Holds a tensor.
    Allocated,
    /// The tensor is gone, but other streams may still use the memory.
    Pending,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub address: u64,
    pub size: u64,
    pub requested: u64,
    /// Pool and stream of the block: index of a `StreamPool`.
    pub stream_pool: u32,
    pub previous: BlockId,
    pub next: BlockId,
    /// Address of the expandable segment that contains it.
    pub expandable: Option<u64>,
    /// Serial number of its segment, counted as segments are taken from the card.
    pub segment_age: u32,
    pub used: Use,
    /// False for the part of an expandable segment without memory.
    pub is_mapped: bool,
    /// Number of searches of its pool before it became free.
    pub searches_before: u64,
}

impl Block {
    pub fn new(address: u64, size: u64, stream_pool: u32) -> Block {
        Block {
            address,
            size,
            requested: 0,
            stream_pool,
            previous: BlockId::NONE,
            next: BlockId::NONE,
            expandable: None,
            segment_age: 0,
            used: Use::Free,
            is_mapped: true,
            searches_before: 0,
        }
    }

    /// Returns true if its segment has other blocks.
    pub fn is_split(&self) -> bool {
        self.previous != BlockId::NONE || self.next != BlockId::NONE
    }
}

/// All blocks. Indices of removed blocks are reused.
#[derive(Default, Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    unused: Vec<BlockId>,
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }
}

impl Blocks {
    pub fn add(&mut self, block: Block) -> BlockId {
        match self.unused.pop() {
            Some(id) => {
                self[id] = block;
                id
            }
            None => {
                self.blocks.push(block);
                BlockId(self.blocks.len() as u32 - 1)
            }
        }
    }

    /// Adds a block after `previous`.
    pub fn add_after(&mut self, previous: BlockId, block: Block) -> BlockId {
        let next = self[previous].next;
        let id = self.add(Block { previous, next, ..block });
        self[previous].next = id;
        if let Some(next) = next.some() {
            self[next].previous = id;
        }
        id
    }

    /// Adds a block before `next`.
    pub fn add_before(&mut self, next: BlockId, block: Block) -> BlockId {
        let previous = self[next].previous;
        let id = self.add(Block { previous, next, ..block });
        self[next].previous = id;
        if let Some(previous) = previous.some() {
            self[previous].next = id;
        }
        id
    }

    /// Merges a neighbour into a block and removes the neighbour.
    pub fn absorb(&mut self, block: BlockId, neighbour: BlockId) {
        let Block { address, size, previous, next, .. } = self[neighbour];
        self[block].size += size;
        if self[block].previous == neighbour {
            self[block].address = address;
            self[block].previous = previous;
            if let Some(previous) = previous.some() {
                self[previous].next = block;
            }
        } else {
            self[block].next = next;
            if let Some(next) = next.some() {
                self[next].previous = block;
            }
        }
        self.remove(neighbour);
    }

    pub fn remove(&mut self, id: BlockId) {
        self.unused.push(id);
    }
}
