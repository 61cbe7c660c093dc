//! Views of one moment: plain values, computed when asked for. Sizes are bytes, times nanoseconds.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::category::Category;
use super::line::Line;
use crate::record::{DriverKind, Phase, TagCategory};

/// A device: its use now and at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceView {
    /// The CUDA ordinal as the process sees it.
    pub index: i32,
    /// Its name; empty if not known.
    pub name: String,
    /// Its PCI bus id, which is the same for all processes of a host; `None`: not known.
    pub bus_id: Option<String>,
    /// Its memory; 0 if not known.
    pub total_bytes: u64,
    /// Allocated by PyTorch now.
    pub allocated_bytes: u64,
    /// Reserved by PyTorch's caching allocator now.
    pub reserved_bytes: u64,
    /// The whole device's use now: this process's driver memory, its context, other processes.
    pub used_bytes: u64,
    /// Whether the use of the device was ever sampled; otherwise `used_bytes` is the driver memory of this process.
    pub used_is_known: bool,
    /// Whether the driver reported the use of this process; otherwise context and other processes are one figure.
    pub process_is_known: bool,
    /// Bytes of this process's device memory that are in host memory now: offloaded, or spilled. Allocated, reserved and the
    /// categories include them, `used_bytes` does not.
    pub host_bytes: u64,
    /// `host_bytes` at the peak.
    pub host_bytes_at_peak: u64,
    /// The peak of `host_bytes`.
    pub peak_host_bytes: u64,
    /// Bytes per second of its link to the host, in one direction; `None`: not known.
    pub link_bytes_per_second: Option<u64>,
    /// The limit that memlab sets for the process; `None`: no limit.
    pub limit_bytes: Option<u64>,
    /// Whether memory beyond the limit is put in host memory.
    pub spills: bool,
    /// Allocations on it that failed for want of memory.
    pub ooms: u64,
    /// Other processes on the device and the most that each was seen to hold, the largest first; empty where the driver does
    /// not report them.
    pub others: Vec<(u32, u64)>,
    /// The peak of `allocated_bytes`: *the peak*.
    pub peak_allocated_bytes: u64,
    /// The peak of `reserved_bytes`.
    pub peak_reserved_bytes: u64,
    /// The peak of `used_bytes`.
    pub peak_used_bytes: u64,
    /// `reserved_bytes` at the peak.
    pub reserved_bytes_at_peak: u64,
    /// `used_bytes` at the peak.
    pub used_bytes_at_peak: u64,
    /// When the peak was first reached; if PyTorch allocated nothing, the peak of `used_bytes`.
    pub peak_time: u64,
    /// Events until then, including the one that made it the peak.
    pub peak_event: u64,
    /// Steps ended before the peak.
    pub peak_step: u64,
    /// What other libraries' arrays hold beside PyTorch's memory.
    pub other_array_bytes: u64,
    /// The same at the peak.
    pub other_array_bytes_at_peak: u64,
    /// Of `reserved_bytes_at_peak`, what was in private pools of CUDA graphs.
    pub private_reserved_bytes_at_peak: u64,
    /// Of `peak_allocated_bytes`, what was in private pools of CUDA graphs.
    pub private_allocated_bytes_at_peak: u64,
    /// Segments held at the peak.
    pub segments_at_peak: u64,
    /// Segments held now.
    pub segments: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Blocks allocated over the run.
    pub allocations: u64,
    /// Those among them that were allocated straight from the driver (`backend:cudaMallocAsync`,
    /// `PYTORCH_NO_CUDA_MEMORY_CACHING`). Their sizes are as requested.
    pub async_allocations: u64,
}

impl DeviceView {
    /// What lines and layers held together at the peak: what PyTorch had allocated, and other arrays.
    pub fn attributed_bytes_at_peak(&self) -> u64 {
        self.peak_allocated_bytes.saturating_add(self.other_array_bytes_at_peak)
    }

    /// What they hold now.
    pub fn attributed_bytes(&self) -> u64 {
        self.allocated_bytes.saturating_add(self.other_array_bytes)
    }
}

/// What one line holds on one device. The lines sum to what is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineView {
    /// The line; `None`: no Python frame.
    pub line: Option<Arc<Line>>,
    /// Whether torch.compile's code runs in its place, at least at times.
    pub is_compiled: bool,
    /// Blocks allocated over the run.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Live now.
    pub live_bytes: u64,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Live at the device's peak.
    pub live_bytes_at_peak: u64,
    /// The most that the line held at once.
    pub peak_live_bytes: u64,
    /// Part of `live_bytes` allocated in backward.
    pub backward_bytes: u64,
    /// Part of `live_bytes_at_peak` allocated in backward.
    pub backward_bytes_at_peak: u64,
}

/// What one layer holds on one device, without the layers inside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerView {
    /// The layer id of the outermost module; 0: not known, or no layer.
    pub root: u32,
    /// The outermost module's class, if known.
    pub root_class: Option<Arc<str>>,
    /// The name of the outermost module, if known: its class, or if several have that class, the variable that holds it or a
    /// number.
    pub root_name: Option<Arc<str>>,
    /// The qualified name in the outermost module (`""`: the module itself); while unknown, the chain of class names in angle
    /// brackets; `None`: outside any layer.
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
    /// The most bytes of its parameters.
    pub parameter_bytes: u64,
    /// The most bytes of gradients of its parameters.
    pub gradient_bytes: u64,
    /// The most bytes of optimizer state for it.
    pub optimizer_state_bytes: u64,
    /// The most bytes of its buffers.
    pub buffer_bytes: u64,
    /// The most bytes of its activations.
    pub activation_bytes: u64,
    /// `live_bytes_at_peak` by category, in the order of [`Category::ALL`].
    pub categories_at_peak: [u64; Category::COUNT],
}

/// How often something ran on a GPU, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkTotals {
    /// How often.
    pub calls: u64,
    /// How long, together. What runs at the same time counts twice.
    pub nanoseconds: u64,
    /// What was copied or filled.
    pub bytes: u64,
}

impl WorkTotals {
    /// Adds up.
    pub fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.nanoseconds = self.nanoseconds.saturating_add(other.nanoseconds);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(other.calls),
            nanoseconds: self.nanoseconds.saturating_sub(other.nanoseconds),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// For how long a GPU was busy and was not, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyView {
    /// Something ran.
    pub busy: u64,
    /// Nothing ran, and what ran next was not launched yet: it waited for the host.
    pub waiting: u64,
    /// Nothing ran, although something was launched.
    pub idle: u64,
}

impl BusyView {
    /// All of it: from the first piece of work to the last, without times in which nothing was recorded.
    pub fn total(&self) -> u64 {
        self.busy.saturating_add(self.waiting).saturating_add(self.idle)
    }
}

/// What ran on a device that was launched in some optimizer steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepWorkView {
    /// The first step. What was launched after the last step that ended has the number of the next.
    pub step: u64,
    /// The number of steps, usually 1.
    pub steps: u64,
    /// How many kernels, copies and fills.
    pub calls: u64,
    /// How long they ran, together.
    pub nanoseconds: u64,
    /// What was copied from the host.
    pub to_device_bytes: u64,
    /// What was copied to the host.
    pub to_host_bytes: u64,
}

impl StepWorkView {
    /// The last step.
    pub fn last(&self) -> u64 {
        self.step.saturating_add(self.steps.max(1) - 1)
    }
}

/// What ran on one device. Kernels, lines and layers each sum to the total; each list has the longest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuWorkView {
    /// All of it.
    pub total: WorkTotals,
    /// For how long something ran.
    pub busy: BusyView,
    /// By name.
    pub kernels: Vec<KernelView>,
    /// By line, in one scope.
    pub lines: Vec<LineWorkView>,
    /// By layer.
    pub layers: Vec<LayerWorkView>,
}

/// A kernel (by its mangled name), a kind of copy (`copy pinned to device`), or `fill`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelView {
    /// Its name.
    pub name: Arc<str>,
    /// How often and how long.
    pub totals: WorkTotals,
}

/// What one line had a device do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineWorkView {
    /// The line; `None`: no Python frame.
    pub line: Option<Arc<Line>>,
    /// How often and how long.
    pub totals: WorkTotals,
    /// Part of the time that was in backward.
    pub backward_nanoseconds: u64,
}

/// What one layer had a device do, without the layers inside it. Names are as in [`LayerView`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerWorkView {
    /// The layer id of the outermost module.
    pub root: u32,
    /// Its class.
    pub root_class: Option<Arc<str>>,
    /// Its name.
    pub root_name: Option<Arc<str>>,
    /// The qualified name in it.
    pub name: Option<Arc<str>>,
    /// The module's class.
    pub class: Option<Arc<str>>,
    /// How often and how long.
    pub totals: WorkTotals,
    /// Part of the time that was in forward.
    pub forward_nanoseconds: u64,
    /// Part of the time that was in backward.
    pub backward_nanoseconds: u64,
}

impl LayerWorkView {
    /// The layer, as one that holds nothing.
    pub fn to_layer(&self) -> LayerView {
        LayerView {
            root: self.root,
            root_class: self.root_class.clone(),
            root_name: self.root_name.clone(),
            name: self.name.clone(),
            class: self.class.clone(),
            ..LayerView::default()
        }
    }
}

/// The names of a range and of those around it, the outermost first; empty: outside any range.
pub type RangePath = Arc<[Arc<str>]>;

/// What was allocated in one range that the program names, without the ranges inside it. The ranges of a device, with the
/// one whose path is empty, sum to what is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeView {
    /// The range, and those around it.
    pub path: RangePath,
    /// Live now.
    pub live_bytes: u64,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Live at the device's peak.
    pub live_bytes_at_peak: u64,
    /// Blocks allocated over the run.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// `live_bytes_at_peak` by category, in the order of [`Category::ALL`].
    pub categories_at_peak: [u64; Category::COUNT],
}

impl RangeView {
    /// Zeros.
    pub fn of(path: RangePath) -> Self {
        Self {
            path,
            live_bytes: 0,
            live_blocks: 0,
            live_bytes_at_peak: 0,
            allocations: 0,
            allocated_bytes: 0,
            categories_at_peak: [0; Category::COUNT],
        }
    }
}

/// What one category holds on one device. The categories sum to the use of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryView {
    /// The category.
    pub category: Category,
    /// Now.
    pub bytes: u64,
    /// At the device's peak.
    pub bytes_at_peak: u64,
}

/// What one stack holds on one device; see [`super::Model::frames`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackView {
    /// The stack's id; 0: none.
    pub stack: u32,
    /// Blocks allocated over the run.
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

/// Driver memory outside PyTorch's caching allocator, by caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverView {
    /// The kind of memory.
    pub kind: DriverKind,
    /// The outermost CUDA function called.
    pub call: Arc<str>,
    /// The library that called it.
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
    /// Free bytes in segments.
    pub free_bytes: u64,
    /// The largest free range.
    pub largest_free_bytes: u64,
    /// 100 × (1 − largest free range ÷ free bytes): 0 when all free bytes are adjacent.
    pub fragmentation_percent: f64,
    /// Blocks outside known segments.
    pub stray_blocks: u64,
    /// Of `free_bytes`, those in private pools of CUDA graphs.
    pub private_free_bytes: u64,
    /// The largest free range outside of them.
    pub largest_common_free_bytes: u64,
}

/// A private pool of CUDA graphs, from which PyTorch's allocator serves nothing but captures of its graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivatePoolView {
    /// Names it, as in [`Segment::pool`].
    pub pool: u64,
    /// PyTorch's id of it; `None`: its capture has not ended, or failed.
    pub id: Option<(u64, u64)>,
    /// Graphs that were captured with it and are there.
    pub graphs: u64,
    /// Graphs that were captured with it.
    pub captured: u64,
    /// The stacks that captured them.
    pub stacks: Vec<u32>,
    /// Segments.
    pub segments: u64,
    /// Bytes in segments.
    pub reserved_bytes: u64,
    /// Bytes in segments that no tensor has.
    pub free_bytes: u64,
}

/// One segment: a piece of driver memory, or the adjacent pieces mapped into an expandable segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The address of its first byte.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it is mapped piece by piece, and can grow.
    pub is_expandable: bool,
    /// The private pool that it belongs to, as in [`PrivatePoolView::pool`]; 0: none.
    pub pool: u64,
    /// Its blocks, by address; the ranges between them are free.
    pub blocks: Vec<BlockView>,
    /// Free bytes.
    pub free_bytes: u64,
    /// The largest free range.
    pub largest_free_bytes: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// The address of its first byte.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What it is used for.
    pub category: Category,
    /// The stack that allocated it; 0: none.
    pub stack: u32,
    /// The layer that allocated it; 0: none.
    pub layer: u32,
    /// Its owner by tags, see [`super::Model::layer_of`]; 0: none.
    pub owner: u32,
    /// The range in which it was allocated, see [`super::Model::range_path`]; 0: none.
    pub range: u32,
    /// The phase in which it was allocated.
    pub phase: Phase,
    /// When it was allocated.
    pub time: u64,
}

/// A tensor that is known by a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// Where it begins.
    pub address: u64,
    /// numel × itemsize; of a sharded tensor, those of this rank's shard.
    pub bytes: u64,
    /// What it is.
    pub category: TagCategory,
    /// As [`crate::record::Tag::name`].
    pub name: Arc<str>,
    /// How it is sharded, as [`crate::record::Tag::shard`]; `None`: it is not.
    pub shard: Option<Arc<str>>,
}

/// The layer that counts a block: its owner by tags, else the layer that allocated it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockLayer {
    /// As [`LayerView::root`].
    pub root: u32,
    /// As [`LayerView::name`].
    pub name: Option<Arc<str>>,
}

/// What one combination of line, layer and category holds on one device. They sum to what is allocated.
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

/// The totals of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TotalsView {
    /// As [`DeviceView::allocated_bytes`].
    pub allocated_bytes: u64,
    /// As [`DeviceView::reserved_bytes`].
    pub reserved_bytes: u64,
    /// As [`DeviceView::used_bytes`].
    pub used_bytes: u64,
}

/// Live driver memory at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverAllocationView {
    /// Its size.
    pub bytes: u64,
    /// Whether it is a segment of PyTorch's caching allocator, or physical memory of one.
    pub is_segment: bool,
    /// Whether it is a block that PyTorch allocated straight from the driver.
    pub is_block: bool,
}
