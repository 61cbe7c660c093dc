//! Work that ran on a GPU, as a record describes it.

/// Kinds of memory that copies are between.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Memory {
    Device,
    /// Another device's.
    Peer,
    Pageable,
    Pinned,
    Managed,
}

impl Memory {
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Peer => "peer",
            Self::Pageable => "pageable",
            Self::Pinned => "pinned",
            Self::Managed => "managed",
        }
    }
}

/// The kind of work that ran.
#[derive(Clone, Copy)]
pub enum WorkKind<'a> {
    /// A kernel, by its name as the compiler has mangled it.
    Kernel(&'a [u8]),
    Copy(Memory, Memory),
    Fill,
}

impl WorkKind<'_> {
    /// Whether it brings bytes from the host.
    pub fn is_to_device(self) -> bool {
        matches!(self, Self::Copy(Memory::Pageable | Memory::Pinned, Memory::Device | Memory::Managed))
    }

    /// Whether it brings bytes to the host.
    pub fn is_to_host(self) -> bool {
        matches!(self, Self::Copy(Memory::Device | Memory::Managed, Memory::Pageable | Memory::Pinned))
    }
}

/// Work that ran on a GPU.
#[derive(Clone, Copy)]
pub struct FinishedWork<'a> {
    pub device: u32,
    pub stream: u32,
    pub what: WorkKind<'a>,
    /// By [`clock`](interpose_base::clock).
    pub start: u64,
    pub nanoseconds: u64,
    pub bytes: u64,
}
