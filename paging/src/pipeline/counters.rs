//! Counters of a pipeline.

use std::time::Duration;

/// Counts since the pipeline was created.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Completed forwards.
    pub forwards: u64,
    /// Copies of units, without the units that stay.
    pub copies: u64,
    /// Bytes of those copies.
    pub copied_bytes: u64,
    /// Copies that were queued only when the unit was needed.
    ///
    /// Excludes unavoidable ones: in the first forward, and at the start of each forward after a capture.
    pub on_demand: u64,
    /// Points reached in another order than the schedule's.
    pub out_of_order: u64,
    /// Units copied again because their bytes changed.
    pub reloads: u64,
    /// Number of waits of a thread for another thread's units or for a copy.
    pub waits: u64,
    /// Total time of those waits.
    pub waited: Duration,
}
