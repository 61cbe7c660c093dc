//! What the model shows: plain values, computed when asked for. Sizes are bytes, times nanoseconds.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What memory is used for. In the order in which it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Parameters of modules.
    Parameter,
    /// Parameters' gradients, and what backward computes on the way.
    Gradient,
    /// What optimizers keep from step to step.
    OptimizerState,
    /// Buffers of modules.
    Buffer,
    /// Made in forward and kept when it ended.
    Activation,
    /// Made by the script outside modules: batches, labels.
    Input,
    /// Given back before the phase that made it ended.
    Temporary,
    /// Buffers for what ranks exchange: DDP's buckets, FSDP's gathered parameters and gradients to be reduced.
    Communication,
    /// Held by libraries: cuBLAS, cuDNN, NCCL.
    Workspace,
    /// Handed out by PyTorch before memlab was loaded, and not known to be anything else.
    BeforeMemlab,
    /// Reserved by PyTorch's caching allocator but not handed out.
    Cached,
    /// The CUDA context: kernels, stacks, printf buffers.
    Context,
    /// Other processes' memory on this device.
    OtherProcesses,
    /// Known to no rule.
    Other,
}

impl Category {
    /// How many there are.
    pub const COUNT: usize = 14;

    /// All categories, in the order in which they are shown.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Buffer,
        Self::Activation,
        Self::Input,
        Self::Temporary,
        Self::Communication,
        Self::Workspace,
        Self::BeforeMemlab,
        Self::Cached,
        Self::Context,
        Self::OtherProcesses,
        Self::Other,
    ];

    /// Its name in reports' JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer_state",
            Self::Buffer => "buffer",
            Self::Activation => "activation",
            Self::Input => "input",
            Self::Temporary => "temporary",
            Self::Communication => "communication",
            Self::Workspace => "workspace",
            Self::BeforeMemlab => "before_memlab",
            Self::Cached => "cached",
            Self::Context => "context",
            Self::OtherProcesses => "other_processes",
            Self::Other => "other",
        }
    }
}

/// One place in the code: the innermost frame of the user's, else of the best kind there is (see [`super::CodeOrigin`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Line {
    /// The source file, as Python names it.
    pub file: Arc<str>,
    /// The line, from 1; `None` where Python knows none.
    pub line: Option<u32>,
    /// The function's qualified name.
    pub function: Arc<str>,
}

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
    pub kind: crate::record::DriverKind,
    /// The outermost CUDA function called.
    pub call: Arc<str>,
    /// The file that called it.
    pub library: Arc<str>,
    /// Live now.
    pub live_bytes: u64,
    /// Allocations live now.
    pub live_allocations: u64,
}

/// A device's memory over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// How long one point is.
    pub width: u64,
    /// The points, in order of time; a gap means that nothing changed.
    pub points: Vec<TimelinePoint>,
    /// What the memory was used for, in fewer points; as was known at that moment. Empty if not known.
    pub categories: Vec<CategoryPoint>,
}

/// One stretch of a [`Timeline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// When it begins.
    pub time: u64,
    /// Allocated.
    pub allocated: Range,
    /// Reserved.
    pub reserved: Range,
    /// The whole device's use.
    pub used: Range,
}

/// Bytes of blocks by category, in the order of [`Category::ALL`]; 0 for those that are not of blocks.
pub type CategoryBytes = [u64; Category::COUNT];

/// What memory was used for in one stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryPoint {
    /// When it begins; it ends with the next one.
    pub time: u64,
    /// When most was allocated in it.
    pub most: CategoryBytes,
    /// At its end.
    pub last: CategoryBytes,
}

/// How a figure moved within a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
    /// At the end of the stretch.
    pub last: u64,
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
    pub phase: crate::record::Phase,
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

/// An optimizer step, or several that were joined to bound memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepView {
    /// The step's number, from 0; of the last one joined.
    pub index: u64,
    /// How many steps were joined, usually 1.
    pub steps: u64,
    /// When it ended.
    pub end_time: u64,
    /// The most allocated during it.
    pub peak_allocated_bytes: u64,
    /// Allocated when it ended.
    pub allocated_bytes_at_end: u64,
    /// Events replayed by then, with the one that ended it; 0: not known.
    #[serde(default)]
    pub end_event: u64,
}

/// How what one line holds at the ends of steps changed over the run.
#[derive(Clone, Debug, PartialEq)]
pub struct GrowthView {
    /// The line; `None`: no Python frame of the user's.
    pub line: Option<Arc<Line>>,
    /// Steps ended by the moment of reference, after warm-up.
    pub from_step: u64,
    /// Steps ended by the last moment compared.
    pub to_step: u64,
    /// Held then.
    pub from_bytes: u64,
    /// Held at the last moment.
    pub to_bytes: u64,
    /// What it held more, for each step between.
    pub bytes_per_step: f64,
    /// Whether it went up time and again, rather than at once or by chance.
    pub is_steady: bool,
}

/// An out-of-memory of PyTorch's, and who held what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomView {
    /// The device.
    pub device: i32,
    /// When.
    pub time: u64,
    /// Events replayed by then, with this one; 0: not known.
    pub event: u64,
    /// Steps ended before it.
    pub step: u64,
    /// The bytes asked for.
    pub requested_bytes: u64,
    /// Allocated, by PyTorch's word.
    pub allocated_bytes: u64,
    /// Reserved, by PyTorch's word.
    pub reserved_bytes: u64,
    /// The largest hole in PyTorch's segments.
    pub largest_free_block_bytes: u64,
    /// Bytes free in PyTorch's segments.
    pub free_bytes: u64,
    /// The device's use, by the last word of the driver before, or, before it said anything, by its first word on the
    /// context and other processes.
    pub used_bytes: u64,
    /// Whether the driver ever told the device's use; otherwise `used_bytes` is this process's driver memory.
    pub used_is_known: bool,
    /// The device's memory; 0 if not known.
    pub total_bytes: u64,
    /// The most that memlab let the process have there; `None`: as much as there was.
    pub limit_bytes: Option<u64>,
    /// What of the process's memory of the device lay in host memory.
    pub host_bytes: u64,
    /// Other processes on the device and what each held, the largest first; empty where the driver did not tell.
    pub others: Vec<(u32, u64)>,
    /// The whole stack that asked; 0: none.
    pub stack: u32,
    /// The line that asked.
    pub line: Option<Arc<Line>>,
    /// The layer that asked: its name as in [`LayerView`].
    pub layer: Option<Arc<str>>,
    /// The lines that held most.
    pub lines: Vec<(Option<Arc<Line>>, u64)>,
    /// The layers that held most.
    pub layers: Vec<(Option<Arc<str>>, u64)>,
    /// What every category held.
    pub categories: Vec<(Category, u64)>,
}

/// What did not add up while replaying; harmless, but worth a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anomalies {
    /// Blocks given back that were not known.
    pub unknown_frees: u64,
    /// Blocks handed out where one already lived: its free was lost.
    pub lost_frees: u64,
    /// Driver memory given back that was not known.
    pub unknown_driver_frees: u64,
    /// Driver memory taken where some already was.
    pub lost_driver_frees: u64,
    /// Tags of addresses in no live block.
    pub unknown_tags: u64,
    /// Events that cannot be: devices or sizes out of range.
    pub impossible_events: u64,
    /// Records of kinds this memlab does not know.
    pub unknown_records: u64,
}

impl Anomalies {
    /// All of them together.
    pub fn total(&self) -> u64 {
        [
            self.unknown_frees,
            self.lost_frees,
            self.unknown_driver_frees,
            self.lost_driver_frees,
            self.unknown_tags,
            self.impossible_events,
            self.unknown_records,
        ]
        .iter()
        .fold(0, |sum: u64, count| sum.saturating_add(*count))
    }
}
