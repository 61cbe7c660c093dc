//! What PyTorch's allocator was asked for, in order, and where in the program.

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
    /// Bytes that were asked for; those of the block if the trace does not tell.
    pub size: u64,
    /// Index in [`Recording::places`].
    pub place: u16,
    /// The Python stack in [`Recording::model`]; 0: none.
    pub stack: u32,
    /// The layer in [`Recording::model`]; 0: none.
    pub layer: u32,
    /// The layer that owns it by tags; 0: none.
    pub owner: u32,
    /// The category that its memory turned out to have.
    pub category: Category,
    /// What was known when it was allocated.
    pub flags: Flags,
}

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// A tensor is gone, and its memory can be used again.
    Free(u32),
    /// A tensor is gone, but other streams may still use its memory.
    FreeRequested(u32),
    /// They have finished.
    FreeCompleted(u32),
    /// The program emptied the cache.
    EmptyCache,
    /// Memory was asked for.
    Allocate(u32),
}

/// What a line read back from the device.
#[derive(Clone, Debug)]
pub struct ReadBacks {
    /// The line; `None`: outside Python.
    pub line: Option<Arc<Line>>,
    /// How often.
    pub count: u64,
    /// Bytes of all of it.
    pub bytes: u64,
}

/// A recorded run on one device.
pub struct Recording {
    /// The device.
    pub device: i32,
    /// Requests for memory, by id.
    pub allocations: Vec<Allocation>,
    /// Everything in order. Frees between two allocations are in the order of their ids.
    pub events: Vec<Event>,
    /// Streams and private pools.
    pub places: Vec<PoolKey>,
    /// After which of `events` an optimizer's step ended: indices. Those that follow the training's last one are left out.
    pub steps: Vec<usize>,
    /// Before which of `events` a forward pass began: indices.
    pub passes: Vec<usize>,
    /// Training, evaluation, saving.
    pub stages: Stages,
    /// Whether sizes are those asked for, rather than those of blocks.
    pub has_requested_sizes: bool,
    /// Whether memory was asked for and not given.
    pub ran_out_of_memory: bool,
    /// Bytes of the device that the process held outside PyTorch's allocator, at most: workspaces of libraries and others.
    pub outside: u64,
    /// What the program read back from the device, by line. On a simulated card that is zeros.
    pub read_backs: Vec<ReadBacks>,
    /// The state of the process at the end, with the names of everything.
    pub model: Model,
}

impl Recording {
    /// The version of PyTorch that was recorded, (2, 11) for 2.11; the newest if that is not known.
    pub fn torch_version(&self) -> (u32, u32) {
        let software = self.model.software().iter().find(|software| software.software == "torch");
        let version = software.and_then(|torch| {
            let mut numbers = torch.version.split('.').map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??))
        });
        version.unwrap_or((u32::MAX, 0))
    }

    /// What an event asks of PyTorch's allocator, with sizes of allocations by their ids.
    pub fn request(&self, event: Event, size: impl Fn(u32) -> u64) -> Request {
        match event {
            Event::Allocate(id) => Request::Allocate { id, place: self.allocations[id as usize].place, size: size(id) },
            Event::Free(id) => Request::Free { id },
            Event::FreeRequested(id) => Request::FreeRequested { id },
            Event::FreeCompleted(id) => Request::FreeCompleted { id },
            Event::EmptyCache => Request::EmptyCache,
        }
    }

    /// All that PyTorch's allocator was asked for.
    pub fn requests(&self) -> Requests {
        let request = |event: &Event| self.request(*event, |id| self.allocations[id as usize].size);
        Requests {
            places: self.places.clone(),
            requests: self.events.iter().map(request).collect(),
            ids: self.allocations.len() as u32,
        }
    }

    /// Whether evaluation, saving or others that are meant to be planned follow the steps.
    pub(crate) fn has_parts_after_steps(&self) -> bool {
        self.stages.first_after(&self.steps).is_some()
    }

    /// The most bytes at once of one category in the first step, with allocations of these sizes. In later steps outputs of the
    /// step before may be there too.
    pub fn most_held_in_first_step(&self, category: Category, sizes: &[u64]) -> u64 {
        let end = self.steps.first().map_or(self.events.len(), |step| self.events.len().min(step + 1));
        peak_live_bytes(&self.events[..end], |id| (self.allocations[id].category == category).then_some(sizes[id]))
    }

    /// The line that asked for memory.
    pub fn line(&self, allocation: &Allocation) -> Option<Arc<Line>> {
        self.model.line_of(allocation.stack)
    }

    /// The layer that its memory counts in: its owner, else the layer that asked for it.
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

/// The most bytes at once of the allocations that are chosen: those that have a size here.
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

/// Why a trace is no recording that can be planned with.
#[derive(Debug)]
pub enum RecordingError {
    /// It cannot be read.
    Read(ReadError),
    /// PyTorch's allocator was asked for nothing, and no device was used.
    NoAllocations,
    /// PyTorch's allocator was asked for nothing: others allocated on the device.
    OutsideOfPyTorch,
    /// PyTorch's allocator refused the first request.
    FirstRequestFailed,
    /// Events are missing, so that it is not known what is live.
    Incomplete,
    /// It has more events than the reader takes.
    TooLong,
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(f),
            Self::NoAllocations => {
                f.write_str("PyTorch's allocator was asked for nothing: the program did not use a GPU")
            }
            Self::OutsideOfPyTorch => f.write_str(
                "PyTorch's allocator was asked for nothing: this program allocated GPU memory by other means",
            ),
            Self::FirstRequestFailed => f.write_str(
                "the first allocation ran out of memory, so PyTorch holds nothing that could be saved: memlab report shows the cause",
            ),
            Self::Incomplete => {
                f.write_str("events are missing in the trace, so it cannot be planned with: record a shorter run")
            }
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
