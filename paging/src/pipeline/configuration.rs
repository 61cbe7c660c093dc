//! What a pipeline is configured with.

use crate::range::ByteRange;

/// The number of a unit: weights that are copied together.
pub type Unit = u32;

/// Weights of a unit: a range of the arena, and its address on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightRange {
    /// In the arena.
    pub arena: ByteRange,
    /// The device address of its first byte.
    pub device_address: u64,
}

/// What is copied to where, and when it is needed.
#[derive(Clone, Default, Debug)]
pub struct Configuration {
    /// The weights of each unit.
    pub units: Vec<Vec<WeightRange>>,
    /// The placement of each unit in the ring; `None` for a unit that stays on the device, outside the ring.
    pub placements: Vec<Option<ByteRange>>,
    /// The points of a forward: (key, units needed from here to the next point).
    pub schedule: Vec<(i64, Vec<Unit>)>,
    /// Keys outside the schedule, and the units they need.
    pub fallback: Vec<(i64, Vec<Unit>)>,
    /// The most units loaded ahead; `None`: as many as the ring holds, 0: none.
    pub lookahead: Option<usize>,
    /// The fewest bytes of a unit that are copied without a wait between them, where a part of its place is free first.
    pub least_piece: u64,
}
