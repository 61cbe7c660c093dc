//! Tags: the tensors in each live block, and the peak bytes owned by each layer.

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use super::symbols::Symbols;
use memlab_format::record::TagCategory;

/// The granularity of PyTorch's allocations.
const ROUNDING: u64 = 512;

/// PyTorch splits a block whose unused rest exceeds this.
const MAX_UNSPLIT_BYTES: u64 = 1 << 20;

/// The categories of tags that belong to layers, in the order of the arrays below.
pub(crate) const CATEGORIES: [TagCategory; 4] =
    [TagCategory::Parameter, TagCategory::Gradient, TagCategory::OptimizerState, TagCategory::Buffer];

/// Marks a moved tensor, in place of its name. The category of its old block does not change.
const MOVED_TENSOR: u32 = u32::MAX;

/// One tensor in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct TaggedTensor {
    pub(crate) category: TagCategory,
    /// Bytes of the tensor, without rounding.
    pub(crate) bytes: u64,
    pub(crate) owner: u32,
    /// Number of the name in [`super::tensor_names::TensorNames`]; 0: not known.
    pub(crate) name: u32,
}

impl TaggedTensor {
    /// Returns the bytes that the tensor occupies in its block.
    pub(crate) fn rounded(self) -> u64 {
        rounded(self.bytes)
    }

    /// Returns true if the tensor has moved away.
    pub(crate) fn has_moved(self) -> bool {
        self.name == MOVED_TENSOR
    }

    /// Returns true for the gradient of a module's parameter, of which only one exists.
    ///
    /// Names outside modules are not unique, and parts of sparse gradients differ in size.
    fn is_unique(self, symbols: &Symbols) -> bool {
        let is_named = self.name != 0 && !self.has_moved();
        let in_module = || symbols.owner(self.owner).is_some_and(|owner| owner.root != 0);
        self.category == TagCategory::Gradient && is_named && in_module()
    }
}

/// The tensors of one block.
#[derive(Clone, Default, Debug)]
pub(crate) struct BlockTags {
    pub(crate) tensors: HashMap<u64, TaggedTensor>,
    bytes: [u64; 4],
    /// Largest tensor; its layer counts the block.
    pub(crate) largest: Option<(u64, TaggedTensor)>,
    /// Bytes of the block.
    size: u64,
}

impl BlockTags {
    /// Returns the rest of the block as part of the tensor that occupies most of it.
    ///
    /// PyTorch hands out blocks larger than requested. A larger rest belongs to tensors that are not known yet, as in a
    /// bucket.
    fn rest(&self) -> Option<TaggedTensor> {
        let tensor = self.tensors.get(&self.largest?.0).filter(|tensor| !tensor.has_moved())?;
        let bytes = self.size.saturating_sub(self.bytes.iter().sum());
        let is_rounding = bytes <= MAX_UNSPLIT_BYTES && tensor.rounded() > self.size / 2;
        is_rounding.then_some(TaggedTensor { bytes, ..*tensor })
    }
}

/// Bytes that one layer owns on one device, by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnedBytes {
    pub(crate) bytes: [u64; 4],
    pub(crate) peak: [u64; 4],
}

/// The tags of one device.
#[derive(Clone, Default)]
pub(crate) struct Tags {
    /// Tags by the slot of the block.
    pub(crate) blocks: HashMap<u32, BlockTags>,
    pub(crate) owners: HashMap<u32, OwnedBytes>,
    /// Position of each unique tensor: the slot of its block, and its address.
    places: HashMap<TaggedTensor, (u32, u64)>,
}

/// Rounds a tensor's size up as PyTorch does.
fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(ROUNDING).saturating_mul(ROUNDING)
}

impl Tags {
    /// Resets the peak of each layer to its current bytes.
    pub(crate) fn reset_peaks(&mut self) {
        for owned in self.owners.values_mut() {
            owned.peak = owned.bytes;
        }
    }

    /// Tags a tensor at `address` in the block of `size` bytes in `slot`.
    ///
    /// Returns category and owner of the block by all its tags, or `None` if nothing changed.
    pub(crate) fn tag(
        &mut self,
        (slot, size): (u32, u64),
        address: u64,
        tensor: TaggedTensor,
        symbols: &Symbols,
    ) -> Option<(TagCategory, u32)> {
        self.note_place(slot, address, tensor, symbols);
        let block = self.blocks.entry(slot).or_default();
        block.size = size;
        let rest = block.rest();
        let old = block.tensors.insert(address, tensor);
        if let Some(old) = old.filter(|old| *old != tensor) {
            leave(&mut self.places, old, (slot, address));
        }
        let counted = |tensor: TaggedTensor| (tensor.category, tensor.rounded(), tensor.owner, tensor.has_moved());
        if old.map(counted) == Some(counted(tensor)) {
            return None;
        }
        for left in old.into_iter().chain(rest) {
            release(&mut self.owners, left);
        }
        if let Some(old) = old {
            let bytes = &mut block.bytes[old.category as usize];
            *bytes = bytes.saturating_sub(old.rounded());
        }
        let bytes = &mut block.bytes[tensor.category as usize];
        *bytes = bytes.saturating_add(tensor.rounded());
        match block.largest {
            Some((at, largest)) if at != address && largest.rounded() >= tensor.rounded() => {}
            _ => block.largest = Some((address, tensor)),
        }
        let new_rest = block.rest();
        for held in [tensor].into_iter().chain(new_rest) {
            hold(&mut self.owners, held);
        }
        // On a tie the earlier category wins: max_by_key returns the last of equals.
        let category = (0..4).rev().max_by_key(|index| block.bytes[*index]).map(|index| CATEGORIES[index]);
        let owner = block.largest.map_or(0, |(_, largest)| largest.owner);
        if let Some(old) = old.filter(|old| (old.category, old.bytes) == (tensor.category, tensor.bytes)) {
            self.is_called(old.owner, tensor.owner, symbols);
        }
        Some((category.unwrap_or(tensor.category), owner))
    }

    /// Records the position of a unique tensor, and marks its earlier one as moved.
    ///
    /// A gradient may get other memory while the old block stays, as DDP's buckets do.
    fn note_place(&mut self, slot: u32, address: u64, tensor: TaggedTensor, symbols: &Symbols) {
        let place = (slot, address);
        if tensor.is_unique(symbols)
            && let Some(was) = self.places.insert(tensor, place)
            && was != place
            && let Some(block) = self.blocks.get_mut(&was.0)
            && block.tensors.get(&was.1) == Some(&tensor)
        {
            let rest = block.rest();
            block.tensors.entry(was.1).and_modify(|left| left.name = MOVED_TENSOR);
            release(&mut self.owners, tensor);
            if let (Some(rest), None) = (rest, block.rest()) {
                release(&mut self.owners, rest);
            }
        }
    }

    /// Moves the bytes of a module that was tagged before its first call.
    ///
    /// After the call, the module has its own name or is part of another module.
    fn is_called(&mut self, before: u32, now: u32, symbols: &Symbols) {
        let in_called = |owner: u32| symbols.owner(owner).is_some_and(|owner| owner.root != 0);
        let is_empty = self.owners.get(&before).is_some_and(|owned| owned.bytes == [0; 4]);
        if is_empty && in_called(now) && !in_called(before) {
            self.owners.remove(&before);
        }
    }

    /// Returns true if the tensors of a category have different names and fill most of its `bytes`.
    pub(crate) fn is_one_set(&self, category: TagCategory, bytes: u64) -> bool {
        let (mut known, mut tagged) = (HashSet::new(), 0_u64);
        for tensor in self.blocks.values().flat_map(|block| block.tensors.values()) {
            if tensor.category != category || tensor.has_moved() {
                continue;
            }
            if tensor.name != 0 && !known.insert((tensor.owner, tensor.name)) {
                return false;
            }
            tagged = tagged.saturating_add(tensor.rounded());
        }
        tagged >= bytes - bytes / 10
    }

    /// Restores a tensor from a keyframe. The sums of its owner are restored separately.
    pub(crate) fn restore(
        &mut self,
        (slot, size): (u32, u64),
        address: u64,
        tensor: TaggedTensor,
        largest: bool,
        symbols: &Symbols,
    ) {
        if tensor.is_unique(symbols) {
            self.places.insert(tensor, (slot, address));
        }
        let block = self.blocks.entry(slot).or_default();
        block.size = size;
        block.tensors.insert(address, tensor);
        let bytes = &mut block.bytes[tensor.category as usize];
        *bytes = bytes.saturating_add(tensor.rounded());
        if largest {
            block.largest = Some((address, tensor));
        }
    }

    /// Forgets the tensors of the freed block in `slot`.
    pub(crate) fn forget(&mut self, slot: u32) {
        let Some(block) = self.blocks.remove(&slot) else { return };
        if let Some(rest) = block.rest() {
            release(&mut self.owners, rest);
        }
        for (address, tensor) in block.tensors {
            release(&mut self.owners, tensor);
            leave(&mut self.places, tensor, (slot, address));
        }
    }
}

/// Removes a tensor from its position.
fn leave(places: &mut HashMap<TaggedTensor, (u32, u64)>, tensor: TaggedTensor, place: (u32, u64)) {
    if places.get(&tensor) == Some(&place) {
        places.remove(&tensor);
    }
}

fn hold(owners: &mut HashMap<u32, OwnedBytes>, tensor: TaggedTensor) {
    let owned = owners.entry(tensor.owner).or_default();
    let held = &mut owned.bytes[tensor.category as usize];
    *held = held.saturating_add(tensor.rounded());
    let peak = &mut owned.peak[tensor.category as usize];
    *peak = (*peak).max(*held);
}

fn release(owners: &mut HashMap<u32, OwnedBytes>, tensor: TaggedTensor) {
    if let (false, Some(owned)) = (tensor.has_moved(), owners.get_mut(&tensor.owner)) {
        let held = &mut owned.bytes[tensor.category as usize];
        *held = held.saturating_sub(tensor.rounded());
    }
}
