//! Cells: the finest sums of the ledger.

use std::hash::{Hash, Hasher};

use super::classification::Classification;
use super::scope::SCOPES;
use memlab_format::record::Phase;

/// Common properties of the blocks in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellKey {
    pub(crate) stack: u32,
    pub(crate) layer: u32,
    /// Owner by tags ([`Symbols::owner`]); 0: none.
    pub(crate) owner: u32,
    /// Range of the allocating thread; 0: none.
    pub(crate) range: u32,
    pub(crate) classification: Classification,
    pub(crate) phase: Phase,
}

impl Hash for CellKey {
    /// Hashes two numbers instead of six, because every event looks up a key.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let pair = |one: u32, other: u32| u64::from(one) << 32 | u64::from(other);
        let kinds = (self.classification as u64) << 8 | self.phase as u64;
        state.write_u64(pair(self.stack, self.layer));
        state.write_u64(pair(self.owner, self.range) ^ kinds << 16);
    }
}

/// Bytes of all blocks with one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) key: CellKey,
    pub(crate) bytes: u64,
    pub(super) at_peak: u64,
    pub(super) epoch: u64,
    pub(crate) blocks: u64,
    /// Blocks allocated in this cell. They keep counting here after their classification changes.
    pub(crate) allocations: u64,
    pub(crate) allocated_bytes: u64,
    /// Slot in the line book of each scope.
    pub(super) lines: [u32; SCOPES],
    pub(super) layer: u32,
    /// True if operations that allocated here created autograd nodes.
    pub(crate) makes_graph: bool,
}

impl Cell {
    /// Returns the figures, and the line and layer slots, for a keyframe.
    pub(crate) fn figures(&self) -> ([u64; 6], [u32; SCOPES], u32) {
        let figures = [self.bytes, self.at_peak, self.epoch, self.blocks, self.allocations, self.allocated_bytes];
        (figures, self.lines, self.layer)
    }

    /// Returns the cell of a keyframe.
    pub(crate) fn of(key: CellKey, figures: [u64; 6], lines: [u32; SCOPES], layer: u32) -> Self {
        let [bytes, at_peak, epoch, blocks, allocations, allocated_bytes] = figures;
        Self { key, bytes, at_peak, epoch, blocks, allocations, allocated_bytes, lines, layer, makes_graph: false }
    }

    /// Returns the bytes at the peak. `epoch` is the ledger's.
    pub(super) fn at_peak(&self, epoch: u64) -> u64 {
        if self.epoch == epoch { self.at_peak } else { self.bytes }
    }
}
