//! The address space: blocks by address.

use std::collections::BTreeMap;

use crate::code::Code;

/// Origin of a block.
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
    /// `cuMemMap` of the physical memory with this handle; `accessible` is false until `cuMemSetAccess` allows access.
    Mapped { handle: usize, accessible: bool },
    /// `cuIpcOpenMemHandle`.
    Imported,
    /// A `__device__` variable of a module.
    Global,
}

/// A range of memory from one allocation.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub base: u64,
    /// Bytes that the caller requested.
    pub size: u64,
    /// Bytes of mapped address space.
    pub mapped: u64,
    pub kind: Kind,
    pub device: usize,
    pub context: usize,
    /// Bytes charged to the card.
    pub charged: u64,
    /// Unique in the process (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub id: u64,
    /// The memfd, if the block was exported to another process.
    pub file: Option<i32>,
    /// For imported blocks: inode of the memfd.
    pub id_of_file: u64,
    /// For imported blocks: number of times it was opened.
    pub references: u32,
}

impl Block {
    /// Returns a block of device memory that is not charged yet.
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

    /// Returns true if the memory belongs to the host.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host(_) | Kind::Registered(_))
    }

    /// Returns true if the driver can access it.
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
    /// Adds a block and assigns its id.
    pub fn insert(&mut self, mut block: Block) {
        self.ids += 1;
        block.id = self.ids;
        self.blocks.insert(block.base, block);
    }

    /// Returns the block that starts at `base`.
    pub fn get(&self, base: u64) -> Option<&Block> {
        self.blocks.get(&base)
    }

    /// Returns the block that starts at `base`.
    pub fn get_mut(&mut self, base: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&base)
    }

    /// Removes the block that starts at `base`.
    pub fn remove(&mut self, base: u64) -> Option<Block> {
        self.blocks.remove(&base)
    }

    /// Returns the block that contains `address`.
    pub fn find(&self, address: u64) -> Option<&Block> {
        self.blocks.range(..=address).next_back().map(|(_, block)| block).filter(|block| address < block.end())
    }

    /// Returns the blocks that overlap a range, in order.
    pub fn within(&self, address: u64, bytes: u64) -> impl Iterator<Item = &Block> {
        let first = self.find(address).map_or(address, |block| block.base);
        self.blocks.range(first..address.saturating_add(bytes).max(first)).map(|(_, block)| block)
    }

    /// Returns all blocks.
    pub fn all(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// Returns base and size of the reserved range that contains `address`.
    pub fn reservation(&self, address: u64) -> Option<(u64, u64)> {
        let (base, size) = self.reserved.range(..=address).next_back()?;
        (address < base + size).then_some((*base, *size))
    }

    /// Checks that the driver can access a range: inside one block, or in adjacent mappings of a reserved range.
    ///
    /// An address outside all blocks is plain host memory, which is allowed unless `device_only`.
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
