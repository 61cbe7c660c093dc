//! The figures of a pipeline.

use std::time::Duration;

/// Figures since the pipeline was created.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Forwards ended.
    pub forwards: u64,
    /// Units copied, without those that stay.
    pub copies: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Units among them that were needed before their copy was queued. Not counted where that is unavoidable: in the first
    /// forward, and at the begin of each once something was captured.
    pub on_demand: u64,
    /// Points reached in another order than in the schedule.
    pub out_of_order: u64,
    /// Units copied again because their bytes changed.
    pub reloads: u64,
    /// How often a thread waited for units of another one, or for a copy.
    pub waits: u64,
    /// How long those waits took.
    pub waited: Duration,
}
