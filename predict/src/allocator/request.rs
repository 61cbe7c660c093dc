//! What is asked of the allocator.

use std::fmt;

/// Where a request belongs: its stream, and the private pool of a CUDA graph or `MemPool`. Memory is never reused across places.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct PoolKey {
    /// The stream's handle; 0 is the default stream.
    pub stream: u64,
    /// The private pool's id; `(0, 0)` is the common pool.
    pub pool: (u64, u64),
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Memory for one tensor.
    Allocate {
        /// Names it in later requests: a number below [`Requests::ids`], used once.
        id: u32,
        /// Index in [`Requests::places`].
        place: u16,
        /// Bytes that are asked for, before rounding.
        size: u64,
    },
    /// The tensor is gone, and no other stream uses its memory.
    Free {
        /// What was allocated.
        id: u32,
    },
    /// The tensor is gone, but another stream may still use its memory (`record_stream`).
    FreeRequested {
        /// What was allocated.
        id: u32,
    },
    /// The other streams have finished: the memory can be reused.
    FreeCompleted {
        /// What was allocated.
        id: u32,
    },
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
    /// The last graph or `MemPool` of a private pool is gone: its unused segments can go back to the card.
    ReleasePool {
        /// Index in [`Requests::places`] of a place in the pool.
        place: u16,
    },
    /// Memory of the card that others take (or give back, if negative): libraries, other processes.
    Outside {
        /// Bytes.
        change: i64,
    },
}

/// A sequence of requests.
#[derive(Clone, Default, Debug)]
pub struct Requests {
    /// The places that requests name by index.
    pub places: Vec<PoolKey>,
    /// The requests, in order.
    pub requests: Vec<Request>,
    /// One more than the largest id.
    pub ids: u32,
}

/// A request that the card had no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Bytes that were asked for, before rounding.
    pub size: u64,
    /// Bytes of the segment that the card had no room for.
    pub segment: u64,
    /// Bytes allocated at that moment.
    pub allocated: u64,
    /// Bytes reserved at that moment.
    pub reserved: u64,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let OutOfMemory { size, segment, allocated, reserved } = self;
        write!(
            f,
            "out of memory: {size} bytes were asked for, which takes a segment of {segment}, while {allocated} bytes were \
             allocated and {reserved} reserved"
        )
    }
}

impl std::error::Error for OutOfMemory {}
