//! Counters of the allocator, named as in `torch.cuda.memory_stats()`.

/// A figure with its peak.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counter {
    /// Current value.
    pub current: u64,
    /// Largest value since the start.
    pub peak: u64,
}

impl Counter {
    pub(crate) fn add(&mut self, amount: u64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
    }

    pub(crate) fn subtract(&mut self, amount: u64) {
        self.current -= amount;
    }
}

/// Bytes and counts over all pools.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Bytes of blocks that hold tensors (`allocated_bytes`).
    pub allocated: Counter,
    /// Bytes of `allocated`, and of blocks that other streams still use (`active_bytes`).
    pub active: Counter,
    /// Requested bytes of active blocks (`requested_bytes`).
    pub requested: Counter,
    /// Bytes taken from the card (`reserved_bytes`).
    pub reserved: Counter,
    /// Free blocks in segments that also hold other blocks (`inactive_split_bytes`). Expandable segments do not count.
    pub inactive_split: Counter,
    /// Number of times that unused segments were given back because the card was full (`num_alloc_retries`).
    pub retries: u64,
    /// Number of segments taken from the card, or extended (`num_device_alloc`).
    pub device_allocations: u64,
    /// Number of segments given back, or shortened (`num_device_free`).
    pub device_frees: u64,
}
