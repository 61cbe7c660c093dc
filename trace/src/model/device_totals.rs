//! Totals of one device that change with events, and the memory of other processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Scalar totals of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) allocated: u64,
    pub(crate) allocations: u64,
    /// Allocations directly from the driver.
    #[serde(default)]
    pub(crate) async_blocks: u64,
    /// Number of the latest allocation.
    pub(crate) born: u64,
    pub(crate) peak_used: u64,
    #[serde(default)]
    pub(crate) ooms: u64,
    /// Part of `allocated` in private pools of CUDA graphs.
    #[serde(default)]
    pub(crate) private_allocated: u64,
    pub(crate) in_backward: bool,
    pub(crate) peak: Peak,
    /// Number of the latest allocation at the last scan for long-lived blocks.
    #[serde(default, rename = "looked")]
    pub(crate) born_at_last_scan: u64,
}

/// The moment with the most bytes allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peak {
    pub(crate) allocated: u64,
    pub(crate) time: u64,
    pub(crate) step: u64,
    /// Number of events up to the peak, including the event that made it.
    #[serde(default)]
    pub(crate) event: u64,
    /// Number of the latest allocation at the peak. Blocks with a higher number were not live then.
    pub(crate) born: u64,
    pub(crate) reserved: u64,
    pub(crate) libraries: u64,
    /// Part of `libraries` that NCCL holds.
    #[serde(default)]
    pub(crate) nccl: u64,
    /// Part of `libraries` in other arrays.
    #[serde(default)]
    pub(crate) arrays: u64,
    pub(crate) context: u64,
    pub(crate) other_processes: u64,
    pub(crate) segments: u64,
    /// Parts of `allocated` and `reserved` in private pools of CUDA graphs.
    #[serde(default)]
    pub(crate) private_allocated: u64,
    #[serde(default)]
    pub(crate) private_reserved: u64,
    /// Bytes in host memory.
    #[serde(default)]
    pub(crate) moved: u64,
    /// True if the use of the whole device had been sampled by then.
    pub(crate) sampled: bool,
}

impl Peak {
    /// Returns the bytes that PyTorch's allocator held at the peak.
    ///
    /// They are never less than its allocations, even if memlab was loaded too late to see its segments.
    pub(crate) fn torch(&self) -> u64 {
        self.reserved.max(self.allocated)
    }

    pub(crate) fn used(&self) -> u64 {
        let own = self.torch().saturating_add(self.libraries).saturating_sub(self.moved);
        own.saturating_add(self.context).saturating_add(self.other_processes)
    }
}

/// The context of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationContext {
    /// Index of the thread.
    pub(crate) thread: u32,
    /// Range of the thread; 0: none.
    pub(crate) range: u32,
    /// True if any thread has entered forward so far.
    pub(crate) seen_forward: bool,
    pub(crate) reached: RunProgress,
}

/// Progress of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunProgress {
    /// Steps ended.
    pub(crate) steps: u64,
    /// Number of events, including the current one.
    pub(crate) events: u64,
}

/// Maximum number of other processes kept per device; a card has a few.
const MAX_OTHER_PROCESSES: usize = 64;

/// Other processes on a device, as the driver reports them.
#[derive(Clone, Default)]
pub(crate) struct OtherProcesses {
    /// Bytes of each process now.
    pub(crate) now: Vec<(u32, u64)>,
    /// Peak bytes of each process.
    pub(crate) most: BTreeMap<u32, u64>,
}

impl OtherProcesses {
    pub(crate) fn note(&mut self, mut processes: Vec<(u32, u64)>) {
        processes.truncate(MAX_OTHER_PROCESSES);
        for (pid, bytes) in &processes {
            if self.most.len() < MAX_OTHER_PROCESSES || self.most.contains_key(pid) {
                let most = self.most.entry(*pid).or_default();
                *most = (*most).max(*bytes);
            }
        }
        self.now = processes;
    }
}
