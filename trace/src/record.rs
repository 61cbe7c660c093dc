//! The records a trace is made of, as `docs/trace-format.md` describes them.
//!
//! A line that is an object is a definition, a line that is an array is an event. Each type's documentation
//! shows a real line of it.

mod definitions;
mod events;
mod text;

pub use definitions::*;
pub use events::*;
pub use text::Text;

/// The newest version of the format this crate reads, and the one it writes.
pub const FORMAT: u32 = 1;

/// One line of a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Record<'a> {
    /// The first line: which process this is.
    Header(Box<Header>),
    /// A device, when its first byte is allocated.
    Device(Device),
    /// The process's limit on a device.
    Limit(Limit),
    /// What other processes hold of a device.
    Others(Others),
    /// A thread that appears in events.
    Thread(Thread),
    /// Software found in the process.
    Software(Software),
    /// Where code lies whose owner its place does not tell.
    CodeRoot(CodeRoot),
    /// A Python frame.
    Frame(Frame<'a>),
    /// The text of a source line.
    Source(Source<'a>),
    /// A stack of frames.
    Stack(Stack),
    /// A layer.
    Layer(Layer),
    /// Something memlab could not do.
    Warning(String),
    /// Nothing follows up to this byte of the trace: `{"skip":536870912}`.
    Skip(u64),
    /// Part of the state of the process at an earlier moment.
    Keyframe(Text<'a>),
    /// A block handed out by PyTorch's caching allocator.
    Alloc(Alloc),
    /// A block given back to it.
    Free(Free),
    /// Memory taken from the driver.
    DriverAlloc(DriverAlloc<'a>),
    /// Memory given back to the driver.
    DriverFree(DriverFree),
    /// Physical memory mapped.
    Map(Map),
    /// Physical memory unmapped.
    Unmap(Unmap),
    /// Out of memory.
    Oom(Oom),
    /// What a tensor is.
    Tag(Tag<'a>),
    /// An optimizer step ended.
    Step(Step),
    /// The whole device's use.
    Used(Used),
    /// Memory left the device or came back.
    Moved(Moved),
    /// Events are missing.
    Lost(Lost),
    /// The process ended.
    End(End),
    /// A record this version does not know: written by a newer memlab of the same format, to be ignored.
    Unknown,
}

impl Record<'_> {
    /// When it happened, in nanoseconds since the trace's start; `None`: it is no event.
    #[inline]
    pub fn time(&self) -> Option<u64> {
        match self {
            Self::Alloc(event) => Some(event.time),
            Self::Free(event) => Some(event.time),
            Self::DriverAlloc(event) => Some(event.time),
            Self::DriverFree(event) => Some(event.time),
            Self::Map(event) => Some(event.time),
            Self::Unmap(event) => Some(event.time),
            Self::Oom(event) => Some(event.time),
            Self::Tag(event) => Some(event.time),
            Self::Step(event) => Some(event.time),
            Self::Used(event) => Some(event.time),
            Self::Moved(event) => Some(event.time),
            Self::Lost(event) => Some(event.time),
            Self::End(event) => Some(event.time),
            _ => None,
        }
    }
}
