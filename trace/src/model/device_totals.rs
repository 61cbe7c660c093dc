//! The figures of one device that change with events, and what other processes hold on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The scalars of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) allocated: u64,
    pub(crate) allocations: u64,
    /// Those allocated straight from the driver.
    #[serde(default)]
    pub(crate) async_blocks: u64,
    /// The number of the latest allocation.
    pub(crate) born: u64,
    pub(crate) peak_used: u64,
    #[serde(default)]
    pub(crate) ooms: u64,
    /// Of `allocated`, what is in private pools of CUDA graphs.
    #[serde(default)]
    pub(crate) private_allocated: u64,
    pub(crate) in_backward: bool,
    pub(crate) peak: Peak,
    /// The number of the latest allocation at the last scan for long-lived blocks.
    #[serde(default, rename = "looked")]
    pub(crate) born_at_last_scan: u64,
}

/// The moment with the most bytes allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peak {
    pub(crate) allocated: u64,
    pub(crate) time: u64,
    pub(crate) step: u64,
    /// Events until then, including the one that made it the peak.
    #[serde(default)]
    pub(crate) event: u64,
    /// The number of the latest allocation then: blocks with a higher number were not live at the peak.
    pub(crate) born: u64,
    pub(crate) reserved: u64,
    pub(crate) libraries: u64,
    /// Of that, NCCL's.
    #[serde(default)]
    pub(crate) nccl: u64,
    /// Of it, other arrays.
    #[serde(default)]
    pub(crate) arrays: u64,
    pub(crate) context: u64,
    pub(crate) other_processes: u64,
    pub(crate) segments: u64,
    /// In private pools of CUDA graphs: of `allocated`, and of `reserved`.
    #[serde(default)]
    pub(crate) private_allocated: u64,
    #[serde(default)]
    pub(crate) private_reserved: u64,
    /// Bytes of it that were in host memory.
    #[serde(default)]
    pub(crate) moved: u64,
    /// Whether the use of the whole device had been sampled by then.
    pub(crate) sampled: bool,
}

impl Peak {
    /// Bytes that PyTorch's allocator held at the peak: never less than it had allocated, even if memlab was loaded too late to
    /// see its segments.
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
    /// The range that the thread is in; 0: none.
    pub(crate) range: u32,
    /// Whether any thread has entered forward so far.
    pub(crate) seen_forward: bool,
    pub(crate) reached: RunProgress,
}

/// Progress of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunProgress {
    /// Steps ended.
    pub(crate) steps: u64,
    /// Events, the current one included.
    pub(crate) events: u64,
}

/// The most other processes kept per device; a card has a few.
const MAX_OTHER_PROCESSES: usize = 64;

/// Other processes on a device, as the driver reports them.
#[derive(Clone, Default)]
pub(crate) struct OtherProcesses {
    /// Now.
    pub(crate) now: Vec<(u32, u64)>,
    /// The most bytes that each was seen to hold.
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
