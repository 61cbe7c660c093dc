//! Long-lived blocks: averages of weights in a list, a cache, a copy for later.
//!
//! No tag names them. They differ from a batch, which the next batch replaces, and from a graph, which is freed within its
//! step.
//!
//! Blocks are therefore scanned at the ends of steps, after enough steps and forward passes since the last scan. If all
//! blocks of a stack were live at the last scan and still are, the stack keeps them for the run. A stack that allocated or
//! freed since then allocates batches, or parts of an unreleased graph.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::classification::Classification;
use super::device::{DeviceState, POSSIBLY_LONG_LIVED};
use super::symbols::Symbols;

/// Minimum number of steps, and of forward passes, between two scans.
///
/// A batch outlives one of either with two optimizers, or with gradients accumulated over several passes.
const SCAN_INTERVAL: u64 = 2;

/// The progress of the run at the last scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LongLivedScan {
    steps: u64,
    passes: u64,
}

impl LongLivedScan {
    /// Returns true if a scan is due after these steps and passes. If so, it counts as done.
    pub(super) fn is_due(&mut self, steps: u64, passes: u64) -> bool {
        let is_long =
            steps.saturating_sub(self.steps) >= SCAN_INTERVAL && passes.saturating_sub(self.passes) >= SCAN_INTERVAL;
        if is_long {
            *self = Self { steps, passes };
        }
        is_long
    }
}

impl DeviceState {
    /// Scans for long-lived blocks.
    pub(super) fn reclassify_long_lived(&mut self, symbols: &mut Symbols) {
        let last = std::mem::replace(&mut self.totals.born_at_last_scan, self.totals.born);
        let old: Vec<(u32, (u32, u32))> = self
            .blocks
            .listed(POSSIBLY_LONG_LIVED)
            .filter(|(_, block)| block.born <= last)
            .map(|(slot, block)| (slot, self.ledger.cells[block.cell as usize].key))
            .map(|(slot, key)| (slot, (key.stack, key.layer)))
            .collect();
        if old.is_empty() {
            return;
        }
        // Allocations of each stack and layer other than the old blocks: 0 if all blocks are old.
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
                self.reclassify(slot, Classification::Other, owner, symbols);
            }
        }
    }
}
