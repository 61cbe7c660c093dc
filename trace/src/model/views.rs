//! Views of one moment: plain values, computed on request. Sizes are bytes, times nanoseconds.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::category::Category;
use super::line::Line;
use memlab_format::record::{DriverKind, Phase, TagCategory};

/// Current use and peaks of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceView {
    /// The CUDA ordinal as the process sees it.
    pub index: i32,
    /// Name of the device; empty if not known.
    pub name: String,
    /// PCI bus id of the device, the same in all processes of a host; `None`: not known.
    pub bus_id: Option<String>,
    /// Memory of the device in bytes; 0 if not known.
    pub total_bytes: u64,
    /// Bytes allocated by PyTorch now.
    pub allocated_bytes: u64,
    /// Bytes reserved by PyTorch's caching allocator now.
    pub reserved_bytes: u64,
    /// Bytes in use on the whole device now: driver memory and context of this process, and other processes.
    pub used_bytes: u64,
    /// True if the device's use was ever sampled; otherwise `used_bytes` is the driver memory of this process.
    pub used_is_known: bool,
    /// True if the driver reported the use of this process; otherwise context and other processes are one figure.
    pub process_is_known: bool,
    /// Bytes of this process's device memory that are offloaded or spilled to host memory now.
    ///
    /// The allocated and reserved bytes and the categories include them; `used_bytes` does not.
    pub host_bytes: u64,
    /// `host_bytes` at the peak.
    pub host_bytes_at_peak: u64,
    /// The peak of `host_bytes`.
    pub peak_host_bytes: u64,
    /// Bandwidth of the device's link to the host in one direction, in bytes per second; `None`: not known.
    pub link_bytes_per_second: Option<u64>,
    /// The limit that memlab sets for the process; `None`: no limit.
    pub limit_bytes: Option<u64>,
    /// True if memory beyond the limit, or beyond the device, spills to host memory.
    pub spills: bool,
    /// Number of allocations on the device that failed for lack of memory.
    pub ooms: u64,
    /// Other processes on the device with the peak bytes of each, largest first; empty if the driver does not report them.
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
    /// Time of the first peak; if PyTorch allocated nothing, of the peak of `used_bytes`.
    pub peak_time: u64,
    /// Number of events up to the peak, including the event that made it.
    pub peak_event: u64,
    /// Steps that ended before the peak.
    pub peak_step: u64,
    /// Bytes of other libraries' arrays, outside PyTorch's memory.
    pub other_array_bytes: u64,
    /// `other_array_bytes` at the peak.
    pub other_array_bytes_at_peak: u64,
    /// Part of `reserved_bytes_at_peak` in private pools of CUDA graphs.
    pub private_reserved_bytes_at_peak: u64,
    /// Part of `peak_allocated_bytes` in private pools of CUDA graphs.
    pub private_allocated_bytes_at_peak: u64,
    /// Segments held at the peak.
    pub segments_at_peak: u64,
    /// Segments held now.
    pub segments: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Blocks allocated over the run.
    pub allocations: u64,
    /// Blocks among them that PyTorch allocated directly from the driver (`backend:cudaMallocAsync`,
    /// `PYTORCH_NO_CUDA_MEMORY_CACHING`).
    ///
    /// Their sizes are as requested.
    pub async_allocations: u64,
}

impl DeviceView {
    /// Returns the bytes attributed to lines and layers at the peak: PyTorch's allocations and other arrays.
    pub fn attributed_bytes_at_peak(&self) -> u64 {
        self.peak_allocated_bytes.saturating_add(self.other_array_bytes_at_peak)
    }

    /// Returns the bytes attributed to lines and layers now.
    pub fn attributed_bytes(&self) -> u64 {
        self.allocated_bytes.saturating_add(self.other_array_bytes)
    }
}

/// Memory of one line on one device. The lines sum to the allocated bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineView {
    /// The line; `None`: no Python frame.
    pub line: Option<Arc<Line>>,
    /// True if code of torch.compile runs in place of the line, at least at times.
    pub is_compiled: bool,
    /// Blocks allocated over the run.
    pub allocations: u64,
    /// Bytes of these blocks.
    pub allocated_bytes: u64,
    /// Bytes live now.
    pub live_bytes: u64,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Bytes live at the device's peak.
    pub live_bytes_at_peak: u64,
    /// Peak of the line's live bytes.
    pub peak_live_bytes: u64,
    /// Part of `live_bytes` allocated in backward.
    pub backward_bytes: u64,
    /// Part of `live_bytes_at_peak` allocated in backward.
    pub backward_bytes_at_peak: u64,
}

/// Memory of one layer on one device, without the layers inside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerView {
    /// The layer id of the outermost module; 0: not known, or no layer.
    pub root: u32,
    /// The outermost module's class, if known.
    pub root_class: Option<Arc<str>>,
    /// Name of the outermost module, if known.
    ///
    /// The name is its class. If several modules have that class, it is the variable that holds the module, or a number.
    pub root_name: Option<Arc<str>>,
    /// Qualified name in the outermost module (`""`: the module itself); `None`: outside any layer.
    ///
    /// While the name is unknown, this is the chain of class names in angle brackets.
    pub name: Option<Arc<str>>,
    /// The module's class, if known.
    pub class: Option<Arc<str>>,
    /// Bytes live now.
    pub live_bytes: u64,
    /// Bytes live at the device's peak.
    pub live_bytes_at_peak: u64,
    /// Bytes allocated in forward over the run.
    pub forward_bytes: u64,
    /// Bytes allocated in backward over the run.
    pub backward_bytes: u64,
    /// Peak bytes of the layer's parameters.
    pub parameter_bytes: u64,
    /// Peak bytes of gradients of its parameters.
    pub gradient_bytes: u64,
    /// Peak bytes of optimizer state for it.
    pub optimizer_state_bytes: u64,
    /// Peak bytes of its buffers.
    pub buffer_bytes: u64,
    /// Peak bytes of its activations.
    pub activation_bytes: u64,
    /// `live_bytes_at_peak` by category, in the order of [`Category::ALL`].
    pub categories_at_peak: [u64; Category::COUNT],
}

impl LayerView {
    /// Adds the bytes of `other` to these.
    pub fn add(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.live_bytes_at_peak, other.live_bytes_at_peak),
            (&mut self.forward_bytes, other.forward_bytes),
            (&mut self.backward_bytes, other.backward_bytes),
            (&mut self.parameter_bytes, other.parameter_bytes),
            (&mut self.gradient_bytes, other.gradient_bytes),
            (&mut self.optimizer_state_bytes, other.optimizer_state_bytes),
            (&mut self.buffer_bytes, other.buffer_bytes),
            (&mut self.activation_bytes, other.activation_bytes),
        ] {
            *to = to.saturating_add(from);
        }
        for (to, from) in std::iter::zip(&mut self.categories_at_peak, other.categories_at_peak) {
            *to = to.saturating_add(from);
        }
    }
}

/// Number and total duration of kernels, copies and fills on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkTotals {
    /// Number of kernels, copies and fills.
    pub calls: u64,
    /// Total run time in nanoseconds. Concurrent work counts twice.
    pub nanoseconds: u64,
    /// Bytes copied or filled.
    pub bytes: u64,
}

impl WorkTotals {
    /// Adds `other` to these totals.
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

/// Busy and idle nanoseconds of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyView {
    /// Nanoseconds in which something ran.
    pub busy: u64,
    /// Nanoseconds in which the GPU waited for the host: nothing ran, and the next work was not launched yet.
    pub waiting: u64,
    /// Nanoseconds in which nothing ran although work was launched.
    pub idle: u64,
}

impl BusyView {
    /// Returns the recorded time from the first work to the last, without gaps in the recording.
    pub fn total(&self) -> u64 {
        self.busy.saturating_add(self.waiting).saturating_add(self.idle)
    }
}

/// Work on a device launched in one or more optimizer steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepWorkView {
    /// First step. Work launched after the last finished step has the number of the next step.
    pub step: u64,
    /// Number of steps, usually 1.
    pub steps: u64,
    /// Number of kernels, copies and fills.
    pub calls: u64,
    /// Their total run time in nanoseconds.
    pub nanoseconds: u64,
    /// Bytes copied from the host.
    pub to_device_bytes: u64,
    /// Bytes copied to the host.
    pub to_host_bytes: u64,
}

/// Time in which a program gave its GPUs no work, in one or more optimizer steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepWaitView {
    /// First step.
    pub step: u64,
    /// Number of steps, usually 1.
    pub steps: u64,
    /// Nanoseconds in which the steps' threads waited for batches of a DataLoader.
    pub data_ns: u64,
    /// Nanoseconds from the end of the previous step to the first launch, over `launch_steps`.
    pub launch_ns: u64,
    /// Number of steps whose first launch is known.
    pub launch_steps: u64,
}

impl StepWaitView {
    /// Returns the mean time of a step in which its thread waited for batches, in nanoseconds.
    pub fn data_ns_per_step(&self) -> u64 {
        self.data_ns / self.steps.max(1)
    }

    /// Returns the mean time from the end of the previous step to the first launch, in nanoseconds; `None`: unknown.
    pub fn launch_ns_per_step(&self) -> Option<u64> {
        self.launch_ns.checked_div(self.launch_steps)
    }
}

/// Work on one device.
///
/// Kernels, lines and layers each sum to the total. Each list has the longest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuWorkView {
    /// Totals of all work.
    pub total: WorkTotals,
    /// Busy and idle time.
    pub busy: BusyView,
    /// Work by kernel name.
    pub kernels: Vec<KernelView>,
    /// Work by line, in one scope.
    pub lines: Vec<LineWorkView>,
    /// Work by layer.
    pub layers: Vec<LayerWorkView>,
}

/// A kernel (by its mangled name), a kind of copy (`copy pinned to device`), or `fill`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelView {
    /// Name of the kernel, copy or fill.
    pub name: Arc<str>,
    /// Number and total duration.
    pub totals: WorkTotals,
}

/// Work that one line launched on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineWorkView {
    /// The line; `None`: no Python frame.
    pub line: Option<Arc<Line>>,
    /// Number and total duration.
    pub totals: WorkTotals,
    /// Part of the duration in backward.
    pub backward_nanoseconds: u64,
}

/// Work that one layer launched on a device, without the layers inside it.
///
/// Names are as in [`LayerView`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerWorkView {
    /// The layer id of the outermost module.
    pub root: u32,
    /// Class of the outermost module.
    pub root_class: Option<Arc<str>>,
    /// Name of the outermost module.
    pub root_name: Option<Arc<str>>,
    /// Qualified name of the layer in the outermost module.
    pub name: Option<Arc<str>>,
    /// The module's class.
    pub class: Option<Arc<str>>,
    /// Number and total duration.
    pub totals: WorkTotals,
    /// Part of the duration in forward.
    pub forward_nanoseconds: u64,
    /// Part of the duration in backward.
    pub backward_nanoseconds: u64,
}

impl LayerWorkView {
    /// Returns a [`LayerView`] of the layer with all figures 0.
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

/// Names of a range and its enclosing ranges, outermost first; empty: outside any range.
pub type RangePath = Arc<[Arc<str>]>;

/// Memory allocated in one range named by the program, without the ranges inside it.
///
/// The ranges of a device, including the one with an empty path, sum to the allocated bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeView {
    /// The range and its enclosing ranges.
    pub path: RangePath,
    /// Bytes live now.
    pub live_bytes: u64,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Bytes live at the device's peak.
    pub live_bytes_at_peak: u64,
    /// Blocks allocated over the run.
    pub allocations: u64,
    /// Bytes of these blocks.
    pub allocated_bytes: u64,
    /// `live_bytes_at_peak` by category, in the order of [`Category::ALL`].
    pub categories_at_peak: [u64; Category::COUNT],
}

impl RangeView {
    /// Returns a view of `path` with all figures 0.
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

/// Memory of one category on one device. The categories sum to the device's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryView {
    /// The category.
    pub category: Category,
    /// Bytes now.
    pub bytes: u64,
    /// Bytes at the device's peak.
    pub bytes_at_peak: u64,
}

/// Memory of one stack on one device; see [`super::Model::frames`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackView {
    /// Id of the stack; 0: none.
    pub stack: u32,
    /// Blocks allocated over the run.
    pub allocations: u64,
    /// Bytes of these blocks.
    pub allocated_bytes: u64,
    /// Bytes live now.
    pub live_bytes: u64,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Bytes live at the device's peak.
    pub live_bytes_at_peak: u64,
}

/// Driver memory outside PyTorch's caching allocator, by caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverView {
    /// The kind of memory.
    pub kind: DriverKind,
    /// The outermost CUDA function in the call.
    pub call: Arc<str>,
    /// The library that called the function.
    pub library: Arc<str>,
    /// Bytes live now.
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
    /// Bytes of the largest free range.
    pub largest_free_bytes: u64,
    /// 100 × (1 − largest free range ÷ free bytes): 0 when all free bytes are adjacent.
    pub fragmentation_percent: f64,
    /// Blocks outside known segments.
    pub stray_blocks: u64,
    /// Part of `free_bytes` in private pools of CUDA graphs.
    pub private_free_bytes: u64,
    /// Bytes of the largest free range outside private pools.
    pub largest_common_free_bytes: u64,
}

/// A private pool of CUDA graphs.
///
/// PyTorch's allocator serves only the captures of the pool's graphs from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivatePoolView {
    /// Number of the pool, as in [`Segment::pool`].
    pub pool: u64,
    /// PyTorch's id of the pool; `None`: its capture has not ended, or failed.
    pub id: Option<(u64, u64)>,
    /// Number of live graphs captured with the pool.
    pub graphs: u64,
    /// Number of graphs ever captured with the pool.
    pub captured: u64,
    /// Stacks that captured these graphs.
    pub stacks: Vec<u32>,
    /// Number of segments.
    pub segments: u64,
    /// Bytes in segments.
    pub reserved_bytes: u64,
    /// Bytes in segments that no tensor uses.
    pub free_bytes: u64,
}

/// One segment: a piece of driver memory, or adjacent pieces mapped into an expandable segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// True for an expandable segment, which is mapped piece by piece.
    pub is_expandable: bool,
    /// Private pool of the segment, as in [`PrivatePoolView::pool`]; 0: none.
    pub pool: u64,
    /// Blocks by address; the ranges between them are free.
    pub blocks: Vec<BlockView>,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes of the largest free range.
    pub largest_free_bytes: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Category of the block.
    pub category: Category,
    /// The stack that allocated it; 0: none.
    pub stack: u32,
    /// The layer that allocated it; 0: none.
    pub layer: u32,
    /// Owner of the block by tags, see [`super::Model::layer_of`]; 0: none.
    pub owner: u32,
    /// Range of the allocation, see [`super::Model::range_path`]; 0: none.
    pub range: u32,
    /// Phase of the allocation.
    pub phase: Phase,
    /// Time of the allocation.
    pub time: u64,
}

/// A tagged tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// Address of the tensor.
    pub address: u64,
    /// numel × itemsize; for a sharded tensor, of this rank's shard.
    pub bytes: u64,
    /// Category of the tensor.
    pub category: TagCategory,
    /// Name, as in [`memlab_format::record::Tag::name`].
    pub name: Arc<str>,
    /// Sharding, as in [`memlab_format::record::Tag::shard`]; `None`: not sharded.
    pub shard: Option<Arc<str>>,
}

/// Layer that counts a block: the block's owner by tags, else the layer that allocated it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockLayer {
    /// Layer id of the outermost module, as in [`LayerView::root`].
    pub root: u32,
    /// Qualified name, as in [`LayerView::name`].
    pub name: Option<Arc<str>>,
}

/// Memory of one combination of line, layer and category on one device.
///
/// The combinations sum to the allocated bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributionView {
    /// Line, as in [`LineView::line`].
    pub line: Option<Arc<Line>>,
    /// Layer that holds the memory.
    pub layer: BlockLayer,
    /// The layer's class, if known.
    pub class: Option<Arc<str>>,
    /// The category.
    pub category: Category,
    /// Bytes live now.
    pub live_bytes: u64,
    /// Bytes live at the device's peak.
    pub live_bytes_at_peak: u64,
}

/// The totals of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TotalsView {
    /// Allocated bytes, as in [`DeviceView::allocated_bytes`].
    pub allocated_bytes: u64,
    /// Reserved bytes, as in [`DeviceView::reserved_bytes`].
    pub reserved_bytes: u64,
    /// Used bytes, as in [`DeviceView::used_bytes`].
    pub used_bytes: u64,
}

/// Live driver memory at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverAllocationView {
    /// Size in bytes.
    pub bytes: u64,
    /// True for a segment of PyTorch's caching allocator, or physical memory of one.
    pub is_segment: bool,
    /// True for a block that PyTorch allocated directly from the driver.
    pub is_block: bool,
}
