//! The configuration of a pipeline.

use crate::range::ByteRange;

/// Number of a unit: weights that are copied together.
pub type Unit = u32;

/// Weights of a unit: a range of the arena and its address on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightRange {
    /// Range in the arena.
    pub arena: ByteRange,
    /// Device address of the first byte.
    pub device_address: u64,
}

/// Sources, targets and schedule of the copies.
#[derive(Clone, Default, Debug)]
pub struct Configuration {
    /// Weights of each unit.
    pub units: Vec<Vec<WeightRange>>,
    /// Placement of each unit in the ring; `None` for a unit that stays on the device, outside the ring.
    pub placements: Vec<Option<ByteRange>>,
    /// Points of a forward: (key, units needed from here to the next point).
    pub schedule: Vec<(i64, Vec<Unit>)>,
    /// Keys outside the schedule, and the units they need.
    pub fallback: Vec<(i64, Vec<Unit>)>,
    /// Largest number of units loaded ahead; `None`: as many as the ring holds, 0: none.
    pub lookahead: Option<usize>,
    /// Fewest bytes of a unit to copy without a wait between them, where a part of its place is free first.
    pub least_piece: u64,
}
