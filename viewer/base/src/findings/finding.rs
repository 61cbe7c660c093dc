//! A finding, and phrases that findings share.

use std::sync::Arc;

use memlab_trace::{DeviceView, Line};
use memlab_units::format::size;

use super::holder::HolderView;
use super::words::Words;

/// Subject of a finding, in order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An allocation failed.
    OutOfMemory,
    /// Memory grows from step to step.
    Leak,
    /// Memory of an earlier forward is allocated a second time.
    EarlierForwards,
    /// A limit moved memory of the device to the host.
    Spilling,
    /// Other processes hold memory of the device.
    OtherProcesses,
    /// PyTorch's allocator reserves much memory that it has not handed out.
    Fragmentation,
    /// Private pools of CUDA graphs hold much memory without tensors.
    GraphPools,
    /// JAX has reserved a share of the card, independent of its arrays.
    JaxPool,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::OutOfMemory,
        Self::Leak,
        Self::EarlierForwards,
        Self::Spilling,
        Self::OtherProcesses,
        Self::Fragmentation,
        Self::GraphPools,
        Self::JaxPool,
    ];

    /// First words of the finding.
    pub fn title(self) -> &'static str {
        match self {
            Self::OutOfMemory => "Out of memory",
            Self::Leak => "Growth",
            Self::EarlierForwards => "Earlier forwards",
            Self::Spilling => "Spilling",
            Self::OtherProcesses => "Other processes",
            Self::Fragmentation => "Fragmentation",
            Self::GraphPools => "Private pools",
            Self::JaxPool => "JAX's pool",
        }
    }

    /// Name in JSON reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::Leak => "leak",
            Self::EarlierForwards => "earlier_forwards",
            Self::Spilling => "spilling",
            Self::OtherProcesses => "other_processes",
            Self::Fragmentation => "fragmentation",
            Self::GraphPools => "graph_pools",
            Self::JaxPool => "jax_pool",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Subject.
    pub kind: Kind,
    /// Index of the device.
    pub device: i32,
    /// The line that requested or allocated the memory, if one line is named.
    pub line: Option<Arc<Line>>,
    /// Bytes concerned: requested, grown, or unavailable.
    pub bytes: u64,
    /// Subject and cause, in a few words.
    pub short: Words,
    /// Description, in a sentence or two.
    pub what: Words,
    /// Next action.
    pub next: String,
    /// The objects that keep the memory alive, if a search found them.
    pub holders: Vec<HolderView>,
}

/// True if bytes are significant: at least a hundredth of the peak.
pub(super) fn is_significant(bytes: u64, device: &DeviceView) -> bool {
    bytes > 0 && bytes >= device.peak_allocated_bytes.max(device.used_bytes_at_peak) / 100
}

/// ` on cuda:1` if the run has several devices, else empty.
pub(super) fn on(device: &DeviceView, several: bool) -> String {
    if several { format!(" on cuda:{}", device.index) } else { String::new() }
}

/// Processes with the bytes each holds: `pid 4242 (3.10 GiB), pid 977 (1.00 MiB) and 3 more`.
pub(super) fn processes(others: &[(u32, u64)]) -> String {
    const NAMED_PROCESSES: usize = 4;
    let named: Vec<String> =
        others.iter().take(NAMED_PROCESSES).map(|(pid, bytes)| format!("pid {pid} ({})", size(*bytes))).collect();
    let more = others.len().saturating_sub(NAMED_PROCESSES);
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}
