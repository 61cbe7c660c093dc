//! Blocks, in the order of their addresses within a segment.

/// The number of a block in [`Blocks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockId(u32);

impl BlockId {
    pub const NONE: BlockId = BlockId(u32::MAX);

    /// `None` for [`BlockId::NONE`].
    pub fn some(self) -> Option<BlockId> {
        (self != BlockId::NONE).then_some(self)
    }
}

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Nothing: it can be handed out or merged.
    Free,
    /// A tensor.
    Allocated,
    /// The tensor is gone, but other streams may still use the memory.
    Pending,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub address: u64,
    pub size: u64,
    pub requested: u64,
    /// The pool and stream that it belongs to: index of a `StreamPool`.
    pub stream_pool: u32,
    pub previous: BlockId,
    pub next: BlockId,
    /// The address of the expandable segment that it is part of.
    pub expandable: Option<u64>,
    /// When its segment was taken from the card: a number that counts up.
    pub segment_age: u32,
    pub used: Use,
    /// False for the part of an expandable segment without memory.
    pub is_mapped: bool,
    /// How often its pool had been searched when it became free.
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

    /// Whether its segment has other blocks.
    pub fn is_split(&self) -> bool {
        self.previous != BlockId::NONE || self.next != BlockId::NONE
    }
}

/// All blocks. Numbers of removed blocks are used again.
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

    /// Adds a block between a block and the one after it.
    pub fn add_after(&mut self, previous: BlockId, block: Block) -> BlockId {
        let next = self[previous].next;
        let id = self.add(Block { previous, next, ..block });
        self[previous].next = id;
        if let Some(next) = next.some() {
            self[next].previous = id;
        }
        id
    }

    /// Adds a block between a block and the one before it.
    pub fn add_before(&mut self, next: BlockId, block: Block) -> BlockId {
        let previous = self[next].previous;
        let id = self.add(Block { previous, next, ..block });
        self[next].previous = id;
        if let Some(previous) = previous.some() {
            self[previous].next = id;
        }
        id
    }

    /// Joins a block with a neighbour, which is removed.
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
