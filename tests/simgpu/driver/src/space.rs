//! The address space: which block of memory an address belongs to.

use std::collections::BTreeMap;

use crate::code::Code;

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemAllocAsync`, from the pool with this handle.
    Pool(usize),
    /// A graph's memory node.
    Graph,
    /// `cuMemHostAlloc` with these flags.
    Host(u32),
    /// `cuMemHostRegister` with these flags.
    Registered(u32),
    /// `cuMemMap` of the physical memory with this handle; false until `cuMemSetAccess` allows touching it.
    Mapped { handle: usize, accessible: bool },
    /// `cuIpcOpenMemHandle`.
    Imported,
    /// A `__device__` variable of a module.
    Global,
}

/// A stretch of memory that was handed out as one.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub base: u64,
    /// Bytes the caller asked for.
    pub size: u64,
    /// Bytes of address space behind it.
    pub mapped: u64,
    pub kind: Kind,
    pub device: usize,
    pub context: usize,
    /// Bytes taken off the card for it.
    pub charged: u64,
    /// Unique for the life of the process (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub id: u64,
    /// The file behind it, once it was exported to another process.
    pub file: Option<i32>,
    /// For an imported block, the number of the file behind it.
    pub id_of_file: u64,
    /// For an imported block, how often it was opened.
    pub references: u32,
}

impl Block {
    /// A block of device memory that nothing was charged for yet.
    pub fn new(base: u64, size: u64, mapped: u64, kind: Kind, device: usize) -> Block {
        Block {
            base,
            size,
            mapped,
            kind,
            device,
            context: 0,
            charged: 0,
            id: 0,
            file: None,
            id_of_file: 0,
            references: 0,
        }
    }

    /// Whether the memory belongs to the host.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host(_) | Kind::Registered(_))
    }

    /// Whether the driver may touch it.
    pub fn is_accessible(&self) -> bool {
        !matches!(self.kind, Kind::Mapped { accessible: false, .. })
    }

    fn end(&self) -> u64 {
        self.base + self.size.max(1)
    }
}

/// All blocks by address, and the reserved address ranges.
#[derive(Default)]
pub struct Space {
    blocks: BTreeMap<u64, Block>,
    /// `cuMemAddressReserve`: base and size.
    pub reserved: BTreeMap<u64, u64>,
    ids: u64,
}

impl Space {
    /// Adds a block and gives it its id.
    pub fn insert(&mut self, mut block: Block) {
        self.ids += 1;
        block.id = self.ids;
        self.blocks.insert(block.base, block);
    }

    /// The block that starts at `base`.
    pub fn get(&self, base: u64) -> Option<&Block> {
        self.blocks.get(&base)
    }

    /// The block that starts at `base`.
    pub fn get_mut(&mut self, base: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&base)
    }

    /// Takes out the block that starts at `base`.
    pub fn remove(&mut self, base: u64) -> Option<Block> {
        self.blocks.remove(&base)
    }

    /// The block that `address` lies in.
    pub fn find(&self, address: u64) -> Option<&Block> {
        self.blocks.range(..=address).next_back().map(|(_, block)| block).filter(|block| address < block.end())
    }

    /// The blocks that touch a range, in order.
    pub fn within(&self, address: u64, bytes: u64) -> impl Iterator<Item = &Block> {
        let first = self.find(address).map_or(address, |block| block.base);
        self.blocks.range(first..address.saturating_add(bytes).max(first)).map(|(_, block)| block)
    }

    /// All blocks.
    pub fn all(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// The reserved range that `address` lies in: base and size.
    pub fn reservation(&self, address: u64) -> Option<(u64, u64)> {
        let (base, size) = self.reserved.range(..=address).next_back()?;
        (address < base + size).then_some((*base, *size))
    }

    /// Checks that the driver may touch a range: inside one block, or in neighbouring mappings of a reserved range. An
    /// address that is in no block is plain host memory, which is fine unless `device_only`.
    pub fn check(&self, address: u64, bytes: u64, device_only: bool) -> Result<(), Code> {
        if bytes == 0 {
            return Ok(());
        }
        let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        let Some(block) = self.find(address) else {
            let plain_host = !device_only && self.reservation(address).is_none();
            return if plain_host { Ok(()) } else { Err(Code::INVALID_VALUE) };
        };
        if matches!(block.kind, Kind::Registered(_)) {
            return Ok(());
        }
        let mut block = block;
        loop {
            if !block.is_accessible() {
                return Err(Code::INVALID_VALUE);
            }
            if end <= block.base + block.size {
                return Ok(());
            }
            let next = self.blocks.get(&(block.base + block.size));
            match next {
                Some(next) if matches!(block.kind, Kind::Mapped { .. }) => block = next,
                _ => return Err(Code::INVALID_VALUE),
            }
        }
    }
}
