//! What the script keeps for good: averages of weights in a list, a cache, a copy for later. Nothing tells what such blocks
//! are, but their lives tell what they are not: a batch is replaced by the next, and a graph dies with its step.
//!
//! So there is a look at the end of a step, once there have been steps and forward passes since the last look. A stack all of
//! whose blocks were there at the last look, and still are, keeps them. One that made more, or gave any back, makes batches,
//! or a graph that somebody fails to let go.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::device::{DeviceState, MAY_LAST};
use super::kind::Kind;
use super::symbols::Symbols;

/// So many steps, and so many times forward is entered, lie between two looks. Two of each, since with two optimizers, or
/// with gradients accumulated over several passes, one batch lives on through one of either.
const APART: u64 = 2;

/// How far the run was at the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LongLivedScan {
    steps: u64,
    passes: u64,
}

impl LongLivedScan {
    /// Whether it is time to look again, after so many steps and passes. If so, that is done now.
    pub(super) fn is_due(&mut self, steps: u64, passes: u64) -> bool {
        let is_long = steps.saturating_sub(self.steps) >= APART && passes.saturating_sub(self.passes) >= APART;
        if is_long {
            *self = Self { steps, passes };
        }
        is_long
    }
}

impl DeviceState {
    /// Decides what is kept for good.
    pub(super) fn reclassify_long_lived(&mut self, symbols: &mut Symbols) {
        let last = std::mem::replace(&mut self.totals.looked, self.totals.born);
        let old: Vec<(u32, (u32, u32))> = self
            .blocks
            .listed(MAY_LAST)
            .filter(|(_, block)| block.born <= last)
            .map(|(slot, block)| (slot, self.ledger.cells[block.cell as usize].key))
            .map(|(slot, key)| (slot, (key.stack, key.layer)))
            .collect();
        if old.is_empty() {
            return;
        }
        // What each place has made, less what of it is old: nothing is left where all is.
        let mut others: HashMap<(u32, u32), u64> = old.iter().map(|(_, place)| (*place, 0)).collect();
        for cell in &self.ledger.cells {
            if let Some(others) = others.get_mut(&(cell.key.stack, cell.key.layer)) {
                *others = others.saturating_add(cell.allocations);
            }
        }
        for (_, place) in &old {
            if let Some(others) = others.get_mut(place) {
                *others = others.saturating_sub(1);
            }
        }
        for (slot, place) in old {
            self.blocks.unlink(slot);
            if others.get(&place) == Some(&0) {
                let owner = self.ledger.cells[self.blocks.get(slot).cell as usize].key.owner;
                self.reclassify(slot, Kind::Other, owner, symbols);
            }
        }
    }
}
