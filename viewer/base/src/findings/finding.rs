//! One finding, and the words that findings share.

use memlab_trace::DeviceView;
use memlab_units::format::size;

use super::words::Words;

/// What a finding is about. In the order of their urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An allocation failed.
    OutOfMemory,
    /// Memory piles up.
    Leak,
    /// Memory of the device is in host memory.
    Spilling,
    /// Other processes hold memory of the device.
    OtherProcesses,
    /// PyTorch's allocator holds much that it has not handed out.
    Fragmentation,
    /// Private pools of CUDA graphs hold much that no tensor has.
    GraphPools,
    /// JAX has taken a share of the card, whatever its arrays need.
    JaxPool,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::OutOfMemory,
        Self::Leak,
        Self::Spilling,
        Self::OtherProcesses,
        Self::Fragmentation,
        Self::GraphPools,
        Self::JaxPool,
    ];

    /// The words it begins with.
    pub fn title(self) -> &'static str {
        match self {
            Self::OutOfMemory => "Out of memory",
            Self::Leak => "It grows",
            Self::Spilling => "Spilling",
            Self::OtherProcesses => "Other processes",
            Self::Fragmentation => "Fragmentation",
            Self::GraphPools => "Private pools",
            Self::JaxPool => "JAX's pool",
        }
    }

    /// Its name in reports' JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::Leak => "leak",
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
    /// What it is about.
    pub kind: Kind,
    /// Where.
    pub device: i32,
    /// The bytes it is about: what was asked for, what grew, what is not to be had.
    pub bytes: u64,
    /// What was found, in a sentence or two.
    pub what: Words,
    /// What to do about it.
    pub next: String,
}

/// Whether bytes are significant: at least a hundredth of the peak.
pub(super) fn is_significant(bytes: u64, device: &DeviceView) -> bool {
    bytes > 0 && bytes >= device.peak_allocated_bytes.max(device.used_bytes_at_peak) / 100
}

/// ` on cuda:1`, where there are several.
pub(super) fn on(device: &DeviceView, several: bool) -> String {
    if several { format!(" on cuda:{}", device.index) } else { String::new() }
}

/// Processes with what each holds: `pid 4242 (3.10 GiB), pid 977 (1.00 MiB) and 3 more`.
pub(super) fn processes(others: &[(u32, u64)]) -> String {
    const NAMED_PROCESSES: usize = 4;
    let named: Vec<String> =
        others.iter().take(NAMED_PROCESSES).map(|(pid, bytes)| format!("pid {pid} ({})", size(*bytes))).collect();
    let more = others.len().saturating_sub(NAMED_PROCESSES);
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}
