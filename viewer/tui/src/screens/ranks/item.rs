//! A row of the ranks: one device of one process.

use crate::context::Target;
use memlab_base::filter::{Field, Filterable};
use memlab_follow::snapshot::ProcessState;

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankItem {
    /// Its place in [`Context::targets`](crate::context::Context::targets).
    pub target: usize,
    /// Its process and device in the snapshot.
    pub of: Target,
    /// What it is called beside others: `rank 3`, `rank 3 cuda:1` where a rank has several, `4242 cuda:1`.
    pub name: String,
    /// The process id.
    pub pid: u32,
    /// How many of its parents, and of theirs, are among those shown.
    pub depth: u16,
    /// Its place among all rows: a process comes after its parent.
    pub(super) order: usize,
    /// The rank in its job.
    pub rank: Option<u32>,
    /// Whether it still writes.
    pub state: ProcessState,
    /// Where its memory is, in a word, if not on the device.
    pub moved: Option<&'static str>,
    /// The device's number and name; empty: it uses none yet.
    pub device: String,
    /// Handed out by PyTorch's allocator.
    pub allocated_bytes: u64,
    /// `allocated_bytes` is the most of a part of the run around the moment shown: no model is kept of it.
    pub is_about: bool,
    /// The most of that.
    pub peak_allocated_bytes: u64,
    /// By how much its peak is over the median of all ranks, or under it; `None`: there is none to compare with.
    pub over_median_bytes: Option<i64>,
    /// How much more its lines hold after each step.
    pub growth_per_step: Option<f64>,
    /// Held by PyTorch's allocator.
    pub reserved_bytes: u64,
    /// The whole device's use.
    pub used_bytes: u64,
    /// The device's memory; 0: it uses none yet, or that is not known.
    pub total_bytes: u64,
    /// Steps ended.
    pub steps_ended: u64,
    /// Out-of-memories.
    pub oom_count: u64,
    /// What it runs.
    pub command: String,
    /// Where.
    pub host: String,
}

impl Filterable for RankItem {
    fn texts(&self) -> Vec<&str> {
        vec![&self.name, &self.command, &self.device, &self.host]
    }

    fn bytes(&self) -> u64 {
        self.allocated_bytes
    }

    fn field(&self, field: Field) -> Vec<&str> {
        if field == Field::Device { vec![&self.device] } else { Vec::new() }
    }
}
