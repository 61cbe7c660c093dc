//! A row of the ranks: one device of one process.

use crate::context::Target;
use memlab_base::filter::{Field, Filterable};
use memlab_follow::snapshot::ProcessState;

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankItem {
    /// Index in [`Context::targets`](crate::context::Context::targets).
    pub target: usize,
    /// Its process and device in the snapshot.
    pub of: Target,
    /// Name beside others: `rank 3`, `rank 3 cuda:1` if a rank has several devices, `4242 cuda:1`.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Number of its ancestors among the displayed processes.
    pub depth: u16,
    /// Position among all rows: a process follows its parent.
    pub(super) order: usize,
    /// Rank in its job.
    pub rank: Option<u32>,
    /// State of the process.
    pub state: ProcessState,
    /// Location of its memory, in a word, if not on the device.
    pub moved: Option<&'static str>,
    /// Number and name of the device; empty: none used yet.
    pub device: String,
    /// Bytes allocated by PyTorch's allocator.
    pub allocated_bytes: u64,
    /// True if `allocated_bytes` is the maximum over an interval around the displayed moment: no model of the process
    /// is kept.
    pub is_about: bool,
    /// Peak of the allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Difference of its peak from the median of all ranks; `None`: nothing to compare with.
    pub over_median_bytes: Option<i64>,
    /// Growth of its lines after each step.
    pub growth_per_step: Option<f64>,
    /// Bytes reserved by PyTorch's allocator.
    pub reserved_bytes: u64,
    /// Bytes in use on the whole device.
    pub used_bytes: u64,
    /// Memory of the device; 0: none used yet, or not known.
    pub total_bytes: u64,
    /// Number of steps ended.
    pub steps_ended: u64,
    /// Number of out-of-memory errors.
    pub oom_count: u64,
    /// Command.
    pub command: String,
    /// Host.
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
