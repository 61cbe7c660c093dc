//! What the model shows of the past: memory over time, optimizer steps, growth, out-of-memory events. Sizes are bytes, times
//! nanoseconds.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::category::{Category, CategoryBytes};
use super::line::Line;

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
