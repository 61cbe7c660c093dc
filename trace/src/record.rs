//! The records a trace is made of, as `docs/trace-format.md` describes them.
//!
//! A line that is an object is a definition, a line that is an array is an event. Each type's documentation
//! shows a real line of it.

mod definitions;
mod events;
mod parallel;
mod text;
mod trained;

pub use definitions::*;
pub use events::*;
pub use parallel::{Mesh, MeshDimension, Stages};
pub use text::Text;
pub use trained::{Loss, Trained};

/// The newest version of the format this crate reads, and the one it writes.
pub const FORMAT: u32 = 1;

/// One line of a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Record<'a> {
    /// The first line: the process.
    Header(Box<Header>),
    /// A device, at its first allocation.
    Device(Device),
    /// How fast a device's link to the host is.
    Link(Link),
    /// The limit of the process on a device.
    Limit(Limit),
    /// What other processes hold on a device.
    Others(Others),
    /// A thread that appears in events.
    Thread(Thread),
    /// Software found in the process.
    Software(Software),
    /// A file or folder of code that its path does not classify.
    CodeRoot(CodeRoot),
    /// A Python frame.
    Frame(Frame<'a>),
    /// The text of a source line.
    Source(Source<'a>),
    /// A stack of frames.
    Stack(Stack),
    /// A layer.
    Layer(Layer),
    /// A range that the program names.
    Range(Range),
    /// A name of what ran on a GPU.
    Kernel(Kernel),
    /// Where the process is in device meshes.
    Mesh(Mesh),
    /// The stages of a pipeline that the process holds.
    Stages(Stages),
    /// A part of what PyTorch's allocator was asked for.
    Requests(Requests),
    /// What a training did in an optimizer step.
    Trained(Trained),
    /// Something memlab could not do.
    Warning(String),
    /// Nothing follows up to this byte of the trace: `{"skip":536870912}`.
    Skip(u64),
    /// Part of the state at an earlier moment, as JSON that [`Model::apply`](crate::Model::apply) parses.
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
    /// The category of a tensor.
    Tag(Tag<'a>),
    /// An optimizer step ended.
    Step(Step),
    /// The program read device memory back to the host.
    ReadBack(ReadBack),
    /// What ran on a GPU.
    Work(Work),
    /// What ran on a GPU, by step.
    StepWork(StepWork),
    /// How busy a GPU was.
    Busy(Busy),
    /// A piece of work that ran on a GPU.
    Ran(Ran),
    /// A thread entered or left a range.
    InRange(InRange),
    /// The use of the whole device.
    Used(Used),
    /// Memory moved between the device and the host.
    Moved(Moved),
    /// Events are missing.
    Lost(Lost),
    /// The process ended.
    End(End),
    /// An unknown record of a newer memlab with the same format. It is ignored.
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
