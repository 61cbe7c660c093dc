//! Live blocks of one device, by address, and on linked lists while their category may still change.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Marks a missing slot or list.
pub(crate) const NONE: u32 = u32::MAX;

/// A live block, sized to one cache line of the processor.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Number of the allocation on its device, from 1. Live blocks up to the number at the peak were live at the peak.
    pub(crate) born: u64,
    pub(crate) time: u64,
    /// Cell that counts the block.
    pub(crate) cell: u32,
    /// List that contains the block, if any.
    pub(crate) list: u32,
    previous: u32,
    next: u32,
    pub(crate) tagged: bool,
}

impl Block {
    pub(crate) fn new(address: u64, bytes: u64, born: u64, time: u64, cell: u32) -> Self {
        Self { address, bytes, born, time, cell, list: NONE, previous: NONE, next: NONE, tagged: false }
    }
}

/// Blocks of a device. A block keeps its slot while it lives.
#[derive(Clone, Default)]
pub(crate) struct LiveBlocks {
    slots: Vec<Block>,
    free: Vec<u32>,
    /// Slots by block address. The table omits the addresses, so that it fits into the processor's caches.
    by_address: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Built when a tag first names an address inside a block; maintained from then on.
    ordered: Option<BTreeMap<u64, u32>>,
    /// First block of each list.
    heads: Vec<u32>,
}

impl LiveBlocks {
    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Returns the approximate heap size in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let ordered = self.ordered.as_ref().map_or(0, BTreeMap::len);
        self.slots.capacity() * size_of::<Block>() + self.by_address.allocation_size() + ordered * 2 * size_of::<u64>()
    }

    /// Returns the slot of the block at exactly `address`.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<u32> {
        let is_at = |slot: &u32| self.slots[*slot as usize].address == address;
        self.by_address.find(self.hasher.hash_one(address), is_at).copied()
    }

    /// Returns the slot of the block that contains `address`.
    pub(crate) fn containing(&mut self, address: u64) -> Option<u32> {
        if let Some(slot) = self.find(address) {
            return Some(slot);
        }
        let (by_address, slots) = (&self.by_address, &self.slots);
        let in_order = || by_address.iter().map(|slot| (slots[*slot as usize].address, *slot)).collect();
        let ordered = self.ordered.get_or_insert_with(in_order);
        let (start, slot) = ordered.range(..=address).next_back()?;
        let block = &self.slots[*slot as usize];
        (address - start < block.bytes).then_some(*slot)
    }

    /// Prefetches the block at `address`, if any, for an event that follows soon.
    ///
    /// The slot is a guess: to verify it, the processor would have to wait for the block.
    #[inline]
    pub(crate) fn prefetch(&self, address: u64) {
        if let Some(slot) = self.by_address.iter_hash(self.hasher.hash_one(address)).next() {
            prefetch(&self.slots[*slot as usize]);
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &Block {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Block {
        &mut self.slots[slot as usize]
    }

    /// Adds a block at a free address.
    #[inline]
    pub(crate) fn insert(&mut self, block: Block) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = block;
                slot
            }
            None => {
                self.slots.push(block);
                (self.slots.len() - 1) as u32
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        let hash_of = |slot: &u32| hasher.hash_one(slots[*slot as usize].address);
        self.by_address.insert_unique(hasher.hash_one(block.address), slot, hash_of);
        if let Some(ordered) = &mut self.ordered {
            ordered.insert(block.address, slot);
        }
        slot
    }

    /// Removes the block at `address`. Its slot may be reused.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) -> Option<(u32, Block)> {
        let is_at = |slot: &u32| self.slots[*slot as usize].address == address;
        let found = self.by_address.find_entry(self.hasher.hash_one(address), is_at).ok()?;
        let (slot, _) = found.remove();
        if let Some(ordered) = &mut self.ordered {
            ordered.remove(&address);
        }
        let block = self.slots[slot as usize];
        self.unlink(slot);
        self.free.push(slot);
        Some((slot, block))
    }

    /// Adds a block to a list.
    #[inline]
    pub(crate) fn link(&mut self, slot: u32, list: u32) {
        if list as usize >= self.heads.len() {
            self.heads.resize(list as usize + 1, NONE);
        }
        let head = std::mem::replace(&mut self.heads[list as usize], slot);
        let block = &mut self.slots[slot as usize];
        (block.list, block.previous, block.next) = (list, NONE, head);
        if head != NONE {
            self.slots[head as usize].previous = slot;
        }
    }

    /// Removes a block from its list, if any.
    #[inline]
    pub(crate) fn unlink(&mut self, slot: u32) {
        let block = &mut self.slots[slot as usize];
        if block.list == NONE {
            return;
        }
        let (list, previous, next) = (block.list, block.previous, block.next);
        block.list = NONE;
        match previous {
            NONE => self.heads[list as usize] = next,
            _ => self.slots[previous as usize].next = next,
        }
        if next != NONE {
            self.slots[next as usize].previous = previous;
        }
    }

    /// Returns the first block of a list. Unlinking it makes the next one the first.
    pub(crate) fn first(&self, list: u32) -> Option<u32> {
        self.heads.get(list as usize).copied().filter(|slot| *slot != NONE)
    }

    /// Returns the blocks of a list with their slots.
    pub(crate) fn listed(&self, list: u32) -> impl Iterator<Item = (u32, &Block)> {
        let next = |slot: &u32| Some(self.slots[*slot as usize].next).filter(|next| *next != NONE);
        std::iter::successors(self.first(list), next).map(|slot| (slot, self.get(slot)))
    }

    /// Returns all blocks with their slots, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.by_address.iter().map(|slot| (*slot, &self.slots[*slot as usize]))
    }

    /// Returns all blocks by address.
    pub(crate) fn sorted(&self) -> Vec<&Block> {
        let mut blocks: Vec<_> = self.iter().map(|(_, block)| block).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks
    }

    /// Returns all blocks in the order of their lists, oldest first.
    ///
    /// Linking them again in this order restores the lists.
    pub(crate) fn by_age(&self) -> Vec<&Block> {
        let mut blocks: Vec<_> = self.iter().map(|(_, block)| block).collect();
        blocks.sort_unstable_by_key(|block| block.born);
        blocks
    }
}

/// Prefetches the block's cache line.
#[inline]
fn prefetch(block: &Block) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no observable effect.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(block).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}
