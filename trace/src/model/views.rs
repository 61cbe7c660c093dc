//! What the model shows of one moment: plain values, computed when asked for. Sizes are bytes, times nanoseconds.

use std::sync::Arc;

use super::category::Category;
use super::line::Line;
use crate::record::{DriverKind, Phase};

/// A device: what is used now and what was used at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceView {
    /// The CUDA ordinal as the process sees it.
    pub index: i32,
    /// Its name; empty if not known.
    pub name: String,
    /// Its memory; 0 if not known.
    pub total_bytes: u64,
    /// Handed out by PyTorch's caching allocator now.
    pub allocated_bytes: u64,
    /// Held by PyTorch's caching allocator now.
    pub reserved_bytes: u64,
    /// The whole device's use now: this process's driver memory, its context, other processes.
    pub used_bytes: u64,
    /// Whether the driver ever told the device's use; otherwise `used_bytes` is this process's driver memory.
    pub used_is_known: bool,
    /// Whether the driver told what it books for this process; otherwise context and other processes are not told apart.
    pub process_is_known: bool,
    /// Of what this process holds of the device, what lies in host memory now: offloaded, or spilled. Allocated, reserved
    /// and the categories count it, `used_bytes` does not.
    pub host_bytes: u64,
    /// `host_bytes` at the peak.
    pub host_bytes_at_peak: u64,
    /// The most `host_bytes` ever was.
    pub peak_host_bytes: u64,
    /// The most that memlab lets the process have there now; `None`: as much as there is.
    pub limit_bytes: Option<u64>,
    /// Whether what goes beyond the limit is put in host memory.
    pub spills: bool,
    /// Other processes on the device and the most that each was ever seen to hold, the largest first; empty where the driver
    /// does not tell them apart.
    pub others: Vec<(u32, u64)>,
    /// The most `allocated_bytes` ever was: *the peak*.
    pub peak_allocated_bytes: u64,
    /// The most `reserved_bytes` ever was.
    pub peak_reserved_bytes: u64,
    /// The most `used_bytes` ever was.
    pub peak_used_bytes: u64,
    /// `reserved_bytes` at the peak.
    pub reserved_bytes_at_peak: u64,
    /// `used_bytes` at the peak.
    pub used_bytes_at_peak: u64,
    /// When the peak was first reached; without any allocation by PyTorch, when most was in use.
    pub peak_time: u64,
    /// Events replayed by then, with the one that made it the peak.
    pub peak_event: u64,
    /// Steps ended before the peak.
    pub peak_step: u64,
    /// Segments held at the peak.
    pub segments_at_peak: u64,
    /// Segments held now.
    pub segments: u64,
    /// Blocks handed out now.
    pub live_blocks: u64,
    /// Blocks handed out over the run.
    pub allocations: u64,
    /// Those among them that came from the driver one by one (`backend:cudaMallocAsync`, `PYTORCH_NO_CUDA_MEMORY_CACHING`):
    /// their sizes are as requested.
    pub async_allocations: u64,
}

/// What one line of the user's code holds on one device. Lines sum to what is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineView {
    /// The line; `None`: no Python frame of the user's.
    pub line: Option<Arc<Line>>,
    /// Blocks handed out over the run.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Live now.
    pub live_bytes: u64,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Live at the device's peak.
    pub live_bytes_at_peak: u64,
    /// The most this line ever held at once.
    pub peak_live_bytes: u64,
    /// Part of `live_bytes` allocated in backward.
    pub backward_bytes: u64,
    /// Part of `live_bytes_at_peak` allocated in backward.
    pub backward_bytes_at_peak: u64,
}

/// What one layer holds on one device: its own bytes, without the layers inside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerView {
    /// The layer id of the outermost module; 0: not known, or no layer.
    pub root: u32,
    /// The outermost module's class, if known.
    pub root_class: Option<Arc<str>>,
    /// What to call the outermost module, if known: its class, or what tells it from others of that class on this device (the
    /// variable that holds it, or a number).
    pub root_name: Option<Arc<str>>,
    /// The qualified name in the outermost module (`""`: that itself), while unknown the chain of class names
    /// in angle brackets; `None`: allocated outside any layer.
    pub name: Option<Arc<str>>,
    /// The module's class, if known.
    pub class: Option<Arc<str>>,
    /// Live now.
    pub live_bytes: u64,
    /// Live at the device's peak.
    pub live_bytes_at_peak: u64,
    /// Allocated in forward over the run.
    pub forward_bytes: u64,
    /// Allocated in backward over the run.
    pub backward_bytes: u64,
    /// The most its parameters took at once.
    pub parameter_bytes: u64,
    /// The most its parameters' gradients took at once.
    pub gradient_bytes: u64,
    /// The most the optimizer kept for it at once.
    pub optimizer_state_bytes: u64,
    /// The most its buffers took at once.
    pub buffer_bytes: u64,
    /// The most its activations took at once.
    pub activation_bytes: u64,
    /// `live_bytes_at_peak` by category, in the order of [`Category::ALL`].
    pub categories_at_peak: [u64; Category::COUNT],
}

/// What one category holds on one device. Categories sum to what the device has in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryView {
    /// The category.
    pub category: Category,
    /// Now.
    pub bytes: u64,
    /// At the device's peak.
    pub bytes_at_peak: u64,
}

/// What one whole stack holds on one device; see [`super::Model::frames`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackView {
    /// The stack's id; 0: none.
    pub stack: u32,
    /// Blocks handed out over the run.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Live now.
    pub live_bytes: u64,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Live at the device's peak.
    pub live_bytes_at_peak: u64,
}

/// Driver memory that is not PyTorch's caching allocator's, by who took it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverView {
    /// The kind of memory.
    pub kind: DriverKind,
    /// The outermost CUDA function called.
    pub call: Arc<str>,
    /// The file that called it.
    pub library: Arc<str>,
    /// Live now.
    pub live_bytes: u64,
    /// Allocations live now.
    pub live_allocations: u64,
}

/// The segments of PyTorch's caching allocator on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SegmentMap {
    /// The segments, by address.
    pub segments: Vec<Segment>,
    /// Bytes in segments.
    pub reserved_bytes: u64,
    /// Bytes in segments that no block takes.
    pub free_bytes: u64,
    /// The largest hole.
    pub largest_free_bytes: u64,
    /// 100 × (1 − largest hole ÷ free bytes): 0 when all that is free is in one piece.
    pub fragmentation_percent: f64,
    /// Blocks that lie in no segment known.
    pub stray_blocks: u64,
}

/// One segment: a piece of driver memory, or the adjacent pieces mapped into an expandable segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it is mapped piece by piece, and can grow.
    pub is_expandable: bool,
    /// Its blocks, by address; what lies between them is free.
    pub blocks: Vec<BlockView>,
    /// Bytes that no block takes.
    pub free_bytes: u64,
    /// The largest hole.
    pub largest_free_bytes: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What it is used for.
    pub category: Category,
    /// The stack that asked for it; 0: none.
    pub stack: u32,
    /// The layer that asked for it; 0: none.
    pub layer: u32,
    /// The layer that owns it by tags, see [`super::Model::layer_of`]; 0: none.
    pub owner: u32,
    /// The phase in which it was handed out.
    pub phase: Phase,
    /// When it was handed out.
    pub time: u64,
}

/// The layer that a block counts for: its owner by tags, else the layer that asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockLayer {
    /// As [`LayerView::root`].
    pub root: u32,
    /// As [`LayerView::name`].
    pub name: Option<Arc<str>>,
}

/// What one line, one layer and one category have in common on one device. They sum to what is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributionView {
    /// As [`LineView::line`].
    pub line: Option<Arc<Line>>,
    /// The layer that holds it.
    pub layer: BlockLayer,
    /// The layer's class, if known.
    pub class: Option<Arc<str>>,
    /// The category.
    pub category: Category,
    /// Live now.
    pub live_bytes: u64,
    /// Live at the device's peak.
    pub live_bytes_at_peak: u64,
}

/// The scalars of a device that change with events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TotalsView {
    /// As [`DeviceView::allocated_bytes`].
    pub allocated_bytes: u64,
    /// As [`DeviceView::reserved_bytes`].
    pub reserved_bytes: u64,
    /// As [`DeviceView::used_bytes`].
    pub used_bytes: u64,
}

/// Driver memory held at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverAllocationView {
    /// Its size.
    pub bytes: u64,
    /// Whether it is a segment of PyTorch's caching allocator, or physical memory of one.
    pub is_segment: bool,
    /// Whether it is a block of PyTorch's allocator by itself.
    pub is_block: bool,
}
