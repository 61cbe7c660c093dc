//! Requests to the allocator.

use std::fmt;

/// Stream of a request, and the private pool of a CUDA graph or `MemPool`. Memory is never reused across places.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct PoolKey {
    /// Handle of the stream; 0 is the default stream.
    pub stream: u64,
    /// Id of the private pool; `(0, 0)` is the common pool.
    pub pool: (u64, u64),
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Allocates memory for one tensor.
    Allocate {
        /// Name in later requests: a number below [`Requests::ids`], used once.
        id: u32,
        /// Index in [`Requests::places`].
        place: u16,
        /// Requested bytes, before rounding.
        size: u64,
    },
    /// The tensor is gone, and no other stream uses its memory.
    Free {
        /// Id of the allocation.
        id: u32,
    },
    /// The tensor is gone, but another stream may still use its memory (`record_stream`).
    FreeRequested {
        /// Id of the allocation.
        id: u32,
    },
    /// The other streams have finished, and the memory can be reused.
    FreeCompleted {
        /// Id of the allocation.
        id: u32,
    },
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
    /// The last graph or `MemPool` of a private pool is gone, and its unused segments can go back to the card.
    ReleasePool {
        /// Index in [`Requests::places`] of a place in the pool.
        place: u16,
    },
    /// Libraries or other processes take memory of the card, or give it back if negative.
    Outside {
        /// Change in bytes.
        change: i64,
    },
}

/// A sequence of requests.
#[derive(Clone, Default, Debug)]
pub struct Requests {
    /// Places that requests name by index.
    pub places: Vec<PoolKey>,
    /// Requests, in order.
    pub requests: Vec<Request>,
    /// One more than the largest id.
    pub ids: u32,
}

/// A request for which the card had no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Requested bytes, before rounding.
    pub size: u64,
    /// Bytes of the segment for which the card had no room.
    pub segment: u64,
    /// Bytes allocated when it failed.
    pub allocated: u64,
    /// Bytes reserved when it failed.
    pub reserved: u64,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let OutOfMemory { size, segment, allocated, reserved } = self;
        write!(
            f,
            "out of memory: a request of {size} bytes needs a segment of {segment}, with {allocated} bytes allocated and \
             {reserved} reserved"
        )
    }
}

impl std::error::Error for OutOfMemory {}
