//! The records of a trace, as `docs/trace-format.md` describes them.
//!
//! An object line is a definition; an array line is an event. The documentation of each type shows a real line.

mod definitions;
mod events;
mod holders;
mod parallel;
mod text;
mod trained;

pub use definitions::*;
pub use events::*;
pub use holders::{HolderSearch, Holders, SearchReason};
pub use parallel::{Mesh, MeshDimension, Stages};
pub use text::Text;
pub use trained::{Loss, Trained};

/// Newest format version that this crate reads, and the version that it writes.
pub const FORMAT: u32 = 1;

/// One line of a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Record<'a> {
    /// The first line: the process.
    Header(Box<Header>),
    /// A device, at its first allocation.
    Device(Device),
    /// Bandwidth of a device's link to the host.
    Link(Link),
    /// The limit of the process on a device.
    Limit(Limit),
    /// Memory of other processes on a device.
    Others(Others),
    /// A thread that appears in events.
    Thread(Thread),
    /// Software found in the process.
    Software(Software),
    /// Owner of code whose path does not show it.
    CodeRoot(CodeRoot),
    /// A Python frame.
    Frame(Frame<'a>),
    /// The text of a source line.
    Source(Source<'a>),
    /// A stack of frames.
    Stack(Stack),
    /// A layer.
    Layer(Layer),
    /// A range named by the program.
    Range(Range),
    /// Name of a kernel, copy or fill on a GPU.
    Kernel(Kernel),
    /// Position of the process in device meshes.
    Mesh(Mesh),
    /// The stages of a pipeline that the process holds.
    Stages(Stages),
    /// Part of the requests to PyTorch's allocator.
    Requests(Requests),
    /// Progress of a training in one optimizer step.
    Trained(Trained),
    /// A search for what holds memory.
    HolderSearch(HolderSearch),
    /// Part of what a search found.
    Holders(Holders),
    /// Something memlab could not do.
    Warning(String),
    /// The trace is empty up to this byte: `{"skip":536870912}`.
    Skip(u64),
    /// Part of the state at an earlier moment, as JSON that `Model::apply` parses.
    Keyframe(Text<'a>),
    /// PyTorch's caching allocator allocated a block.
    Alloc(Alloc),
    /// A block was freed.
    Free(Free),
    /// Memory taken from the driver.
    DriverAlloc(DriverAlloc<'a>),
    /// Driver memory was freed.
    DriverFree(DriverFree),
    /// A CUDA graph was captured.
    GraphCaptured(GraphCaptured),
    /// A CUDA graph is gone.
    GraphGone(GraphGone),
    /// Physical memory mapped.
    Map(Map),
    /// Physical memory unmapped.
    Unmap(Unmap),
    /// Out of memory.
    Oom(Oom),
    /// Category of a tensor.
    Tag(Tag<'a>),
    /// An optimizer step ended.
    Step(Step),
    /// The program read device memory back to the host.
    ReadBack(ReadBack),
    /// Work of a GPU, by place and kernel.
    Work(Work),
    /// Work of a GPU, by step.
    StepWork(StepWork),
    /// Waits of the program in a step.
    StepWait(StepWait),
    /// Busy and idle time of a GPU.
    Busy(Busy),
    /// One kernel, copy or fill on a GPU.
    Ran(Ran),
    /// A thread entered or left a range.
    InRange(InRange),
    /// Memory use of the whole device.
    Used(Used),
    /// Memory moved between the device and the host.
    Moved(Moved),
    /// Events are missing.
    Lost(Lost),
    /// The process ended.
    End(End),
    /// Unknown record of a newer memlab with the same format. It is ignored.
    Unknown,
}

impl Record<'_> {
    /// Nanoseconds since the start of the trace; `None`: not an event.
    #[inline]
    pub fn time(&self) -> Option<u64> {
        match self {
            Self::Alloc(event) => Some(event.time),
            Self::Free(event) => Some(event.time),
            Self::DriverAlloc(event) => Some(event.time),
            Self::DriverFree(event) => Some(event.time),
            Self::GraphCaptured(event) => Some(event.time),
            Self::GraphGone(event) => Some(event.time),
            Self::Map(event) => Some(event.time),
            Self::Unmap(event) => Some(event.time),
            Self::Oom(event) => Some(event.time),
            Self::Tag(event) => Some(event.time),
            Self::Step(event) => Some(event.time),
            Self::ReadBack(event) => Some(event.time),
            Self::Work(event) => Some(event.time),
            Self::StepWork(event) => Some(event.time),
            Self::StepWait(event) => Some(event.time),
            Self::Busy(event) => Some(event.time),
            Self::Ran(event) => Some(event.time),
            Self::InRange(event) => Some(event.time),
            Self::Used(event) => Some(event.time),
            Self::Moved(event) => Some(event.time),
            Self::Lost(event) => Some(event.time),
            Self::End(event) => Some(event.time),
            _ => None,
        }
    }
}
