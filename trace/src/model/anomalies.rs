//! Contradictions in a trace.

use serde::{Deserialize, Serialize};

/// Contradictions found while replaying. They are counted and otherwise ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anomalies {
    /// Frees of unknown blocks.
    pub unknown_frees: u64,
    /// Allocations at the address of a live block, whose free was lost.
    pub lost_frees: u64,
    /// Frees of unknown driver memory.
    pub unknown_driver_frees: u64,
    /// Driver allocations at the address of live driver memory.
    pub lost_driver_frees: u64,
    /// Tags of addresses outside live blocks.
    pub unknown_tags: u64,
    /// Impossible events: devices or sizes out of range, keyframe lines that refer to something unknown.
    pub impossible_events: u64,
    /// Records of unknown kinds.
    pub unknown_records: u64,
}

impl Anomalies {
    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        [
            self.unknown_frees,
            self.lost_frees,
            self.unknown_driver_frees,
            self.lost_driver_frees,
            self.unknown_tags,
            self.impossible_events,
            self.unknown_records,
        ]
        .iter()
        .fold(0, |sum: u64, count| sum.saturating_add(*count))
    }
}
