//! Work that ran on a GPU, as described by a record.

/// Kinds of memory that copies read and write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Memory {
    Device,
    /// Memory of another device.
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

/// Kind of the work.
#[derive(Clone, Copy)]
pub enum WorkKind<'a> {
    /// A kernel, with its mangled name.
    Kernel(&'a [u8]),
    Copy(Memory, Memory),
    Fill,
}

impl WorkKind<'_> {
    /// Returns true if it copies bytes from the host.
    pub fn is_to_device(self) -> bool {
        matches!(self, Self::Copy(Memory::Pageable | Memory::Pinned, Memory::Device | Memory::Managed))
    }

    /// Returns true if it copies bytes to the host.
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
    /// Start by [`clock`](interpose_base::clock).
    pub start: u64,
    pub nanoseconds: u64,
    pub bytes: u64,
}
