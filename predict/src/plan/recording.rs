//! Requests to PyTorch's allocator, in order, with their places in the program.

pub mod read;

use std::fmt;
use std::sync::Arc;

use crate::allocator::{PoolKey, Request, Requests};
use crate::plan::stage::Stages;
use memlab_trace::record::Flags;
use memlab_trace::{BlockLayer, BlockView, Category, Line, Model, ReadError};

/// A request for memory. Its index in [`Recording::allocations`] is its id.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// Requested bytes, or those of the block if the trace does not contain them.
    pub size: u64,
    /// Index in [`Recording::places`].
    pub place: u16,
    /// Python stack in [`Recording::model`]; 0: none.
    pub stack: u32,
    /// Layer in [`Recording::model`]; 0: none.
    pub layer: u32,
    /// Layer that owns it by tags; 0: none.
    pub owner: u32,
    /// Final category of its memory.
    pub category: Category,
    /// Facts known at allocation.
    pub flags: Flags,
}

/// An event of the recording.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// A tensor is gone, and its memory can be reused.
    Free(u32),
    /// A tensor is gone, but other streams may still use its memory.
    FreeRequested(u32),
    /// The other streams have finished.
    FreeCompleted(u32),
    /// The program emptied the cache.
    EmptyCache,
    /// Memory was requested.
    Allocate(u32),
}

/// Data that a line read back from the device.
#[derive(Clone, Debug)]
pub struct ReadBacks {
    /// The line; `None`: outside Python.
    pub line: Option<Arc<Line>>,
    /// Number of reads.
    pub count: u64,
    /// Total bytes.
    pub bytes: u64,
}

/// A recorded run on one device.
pub struct Recording {
    /// Index of the device.
    pub device: i32,
    /// Requests for memory, by id.
    pub allocations: Vec<Allocation>,
    /// All events, in order. Frees between two allocations are sorted by id.
    pub events: Vec<Event>,
    /// Streams and private pools.
    pub places: Vec<PoolKey>,
    /// Indices of the `events` after which an optimizer step ended. Those after the last training step are left out.
    pub steps: Vec<usize>,
    /// Indices of the `events` before which a forward pass began.
    pub passes: Vec<usize>,
    /// Training, evaluation and saving.
    pub stages: Stages,
    /// True if sizes are requested bytes, rather than block sizes.
    pub has_requested_sizes: bool,
    /// True if a request for memory failed.
    pub ran_out_of_memory: bool,
    /// Peak device bytes of the process outside PyTorch's allocator, such as workspaces of libraries.
    pub outside: u64,
    /// Data that the program read back from the device, by line. A simulated card returns zeros.
    pub read_backs: Vec<ReadBacks>,
    /// Final state of the process, with all names.
    pub model: Model,
}

impl Recording {
    /// Returns the recorded version of PyTorch, (2, 11) for 2.11, or the newest if it is unknown.
    pub fn torch_version(&self) -> (u32, u32) {
        let software = self.model.software().iter().find(|software| software.software == "torch");
        let version = software.and_then(|torch| {
            let mut numbers = torch.version.split('.').map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??))
        });
        version.unwrap_or((u32::MAX, 0))
    }

    /// Returns the allocator request of an event; `size` maps ids to bytes.
    pub fn request(&self, event: Event, size: impl Fn(u32) -> u64) -> Request {
        match event {
            Event::Allocate(id) => Request::Allocate { id, place: self.allocations[id as usize].place, size: size(id) },
            Event::Free(id) => Request::Free { id },
            Event::FreeRequested(id) => Request::FreeRequested { id },
            Event::FreeCompleted(id) => Request::FreeCompleted { id },
            Event::EmptyCache => Request::EmptyCache,
        }
    }

    /// Returns all requests to PyTorch's allocator.
    pub fn requests(&self) -> Requests {
        let request = |event: &Event| self.request(*event, |id| self.allocations[id as usize].size);
        Requests {
            places: self.places.clone(),
            requests: self.events.iter().map(request).collect(),
            ids: self.allocations.len() as u32,
        }
    }

    /// Returns true if evaluation, saving or other parts to be planned follow the steps.
    pub(crate) fn has_parts_after_steps(&self) -> bool {
        self.stages.first_after(&self.steps).is_some()
    }

    /// Returns the peak bytes of one category in the first step, with allocations of these sizes.
    ///
    /// Later steps may also hold outputs of the previous step.
    pub fn most_held_in_first_step(&self, category: Category, sizes: &[u64]) -> u64 {
        let end = self.steps.first().map_or(self.events.len(), |step| self.events.len().min(step + 1));
        peak_live_bytes(&self.events[..end], |id| (self.allocations[id].category == category).then_some(sizes[id]))
    }

    /// Returns the line that requested the memory.
    pub fn line(&self, allocation: &Allocation) -> Option<Arc<Line>> {
        self.model.line_of(allocation.stack)
    }

    /// Returns the layer that its memory is counted under: its owner, else the layer that requested it.
    pub fn layer(&self, allocation: &Allocation) -> BlockLayer {
        let Allocation { owner, layer, category, stack, .. } = *allocation;
        let view = BlockView {
            address: 0,
            bytes: allocation.size,
            category,
            stack,
            layer,
            owner,
            range: 0,
            phase: allocation.flags.phase(),
            time: 0,
        };
        self.model.layer_of(&view)
    }
}

/// Returns the peak bytes of the allocations for which `size` returns a value.
pub fn peak_live_bytes(events: &[Event], size: impl Fn(usize) -> Option<u64>) -> u64 {
    let (mut bytes, mut most) = (0, 0);
    for event in events {
        match *event {
            Event::Allocate(id) => bytes += size(id as usize).unwrap_or(0),
            Event::Free(id) | Event::FreeRequested(id) => bytes -= size(id as usize).unwrap_or(0),
            Event::FreeCompleted(_) | Event::EmptyCache => {}
        }
        most = most.max(bytes);
    }
    most
}

/// Reason that a trace cannot be planned with.
#[derive(Debug)]
pub enum RecordingError {
    /// The trace cannot be read.
    Read(ReadError),
    /// PyTorch's allocator received no request, and no device was used.
    NoAllocations,
    /// PyTorch's allocator received no request, but others allocated on the device.
    OutsideOfPyTorch,
    /// PyTorch's allocator refused the first request.
    FirstRequestFailed,
    /// Events are missing, so the live blocks are unknown.
    Incomplete,
    /// The trace has more events than the reader's limit.
    TooLong,
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::NoAllocations => {
                f.write_str("PyTorch's allocator received no requests: the program did not use a GPU")
            }
            Self::OutsideOfPyTorch => f.write_str(
                "PyTorch's allocator received no requests: this program allocated GPU memory by other means",
            ),
            Self::FirstRequestFailed => f.write_str(
                "the first allocation ran out of memory, so no saving is possible: `memlab report` shows the cause",
            ),
            Self::Incomplete => f.write_str("the trace misses events, so it cannot be replayed: record a shorter run"),
            Self::TooLong => f.write_str("the trace is too long: `memlab advise` reads traces of any length"),
        }
    }
}

impl std::error::Error for RecordingError {}

impl From<ReadError> for RecordingError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}
