//! Contradictions in a trace.

use serde::{Deserialize, Serialize};

/// What did not add up while replaying; harmless, but worth a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anomalies {
    /// Blocks given back that were not known.
    pub unknown_frees: u64,
    /// Blocks handed out where one already lived: its free was lost.
    pub lost_frees: u64,
    /// Driver memory given back that was not known.
    pub unknown_driver_frees: u64,
    /// Driver memory taken where some already was.
    pub lost_driver_frees: u64,
    /// Tags of addresses in no live block.
    pub unknown_tags: u64,
    /// Events that cannot be: devices or sizes out of range.
    pub impossible_events: u64,
    /// Records of kinds this memlab does not know.
    pub unknown_records: u64,
}

impl Anomalies {
    /// All of them together.
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
