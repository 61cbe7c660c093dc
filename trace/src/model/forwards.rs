//! Memory of earlier forwards that is still allocated while a forward allocates the same again.
//!
//! A search for its holders is made where a forward begins beside it. From then on the blocks are watched until they are
//! freed: those whose stack allocates once more existed twice.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::blocks::LiveBlocks;
use super::category::Category;
use super::ledger::Ledger;

/// Blocks are watched for this number of forwards at most.
const MAX_FORWARDS: u32 = 256;

/// Blocks of earlier forwards that existed a second time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierForwards {
    /// Number of the search for what holds them.
    pub search: u32,
    /// The stacks that allocated them.
    pub stacks: BTreeSet<u32>,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of them that a backward freed: it used them.
    pub used_bytes: u64,
    /// The most memory allocated while at least half of them were.
    pub top_bytes: u64,
}

/// Blocks that were alive when a forward began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Watch {
    /// Bytes and stack by address.
    #[serde(with = "pairs")]
    alive: BTreeMap<u64, (u64, u32)>,
    #[serde(with = "pairs")]
    bytes_of: BTreeMap<u32, u64>,
    /// Bytes of those that exist twice.
    left: u64,
    forwards: u32,
    found: EarlierForwards,
}

/// The blocks that are watched on a device, and the most that was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Forwards {
    watch: Option<Box<Watch>>,
    most: EarlierForwards,
    /// Number of allocations before the last forward.
    began: u64,
}

impl Forwards {
    /// Watches the blocks that are alive at a search.
    pub(crate) fn begin(&mut self, search: u32, blocks: &LiveBlocks, ledger: &Ledger) {
        self.end();
        let mut watch = Watch { found: EarlierForwards { search, ..EarlierForwards::default() }, ..Watch::default() };
        let mut again = Vec::new();
        for block in blocks.sorted() {
            let cell = &ledger.cells[block.cell as usize];
            let key = cell.key;
            if block.born > self.began {
                again.push(key.stack);
            } else if is_of_forward(key.classification.category()) && !block.tagged {
                watch.alive.insert(block.address, (block.bytes, key.stack));
                let bytes = watch.bytes_of.entry(key.stack).or_default();
                *bytes = bytes.saturating_add(block.bytes);
            }
        }
        again.into_iter().for_each(|stack| watch.allocated(stack, 0));
        self.watch = Some(Box::new(watch));
    }

    /// Handles an allocation, after which this much is allocated.
    #[inline]
    pub(crate) fn allocated(&mut self, stack: u32, allocated: u64) {
        if let Some(watch) = &mut self.watch {
            watch.allocated(stack, allocated);
        }
    }

    /// Handles the release of the block at an address.
    #[inline]
    pub(crate) fn freed(&mut self, address: u64, in_backward: bool) {
        if let Some(watch) = &mut self.watch
            && watch.freed(address, in_backward)
        {
            self.end();
        }
    }

    /// Handles a thread that enters forward after this number of allocations.
    pub(crate) fn begin_forward(&mut self, allocations: u64) {
        self.began = allocations;
        if let Some(watch) = &mut self.watch {
            watch.forwards += 1;
            if watch.forwards > MAX_FORWARDS {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        if let Some(watch) = self.watch.take()
            && watch.found.bytes > self.most.bytes
        {
            self.most = watch.found;
        }
    }

    /// Returns the most that was found; `None`: nothing.
    pub(crate) fn most(&self) -> Option<&EarlierForwards> {
        let now = self.watch.as_ref().map_or(&self.most, |watch| &watch.found);
        let most = if now.bytes > self.most.bytes { now } else { &self.most };
        (most.bytes > 0).then_some(most)
    }
}

impl Watch {
    fn allocated(&mut self, stack: u32, allocated: u64) {
        if let Some(bytes) = self.bytes_of.remove(&stack) {
            self.found.stacks.insert(stack);
            self.found.bytes = self.found.bytes.saturating_add(bytes);
            self.left = self.left.saturating_add(bytes);
        }
        if self.left > 0 && self.left >= self.found.bytes / 2 {
            self.found.top_bytes = self.found.top_bytes.max(allocated);
        }
    }

    /// Returns true if nothing is left to watch.
    fn freed(&mut self, address: u64, in_backward: bool) -> bool {
        let Some((bytes, stack)) = self.alive.remove(&address) else { return false };
        if self.found.stacks.contains(&stack) {
            self.left = self.left.saturating_sub(bytes);
            if in_backward {
                self.found.used_bytes = self.found.used_bytes.saturating_add(bytes);
            }
        } else if let Some(left) = self.bytes_of.get_mut(&stack) {
            *left = left.saturating_sub(bytes);
        }
        self.alive.is_empty()
    }
}

/// True for memory that a forward may have allocated. Gradients that a forward computes are such memory.
const fn is_of_forward(category: Category) -> bool {
    matches!(category, Category::Activation | Category::Gradient | Category::Temporary | Category::Other)
}

/// Maps as lists of pairs: JSON has no numbers as keys.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<K, V>, D::Error> {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}
