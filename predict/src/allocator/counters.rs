//! The allocator's counters, named as in `torch.cuda.memory_stats()`.

/// A figure with its peak.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counter {
    /// Now.
    pub current: u64,
    /// The most since the start.
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
    /// These and the blocks that other streams still use (`active_bytes`).
    pub active: Counter,
    /// Bytes that were asked for, of active blocks (`requested_bytes`).
    pub requested: Counter,
    /// Bytes taken from the card (`reserved_bytes`).
    pub reserved: Counter,
    /// Free blocks of segments that also hold others (`inactive_split_bytes`). Expandable segments do not count.
    pub inactive_split: Counter,
    /// How often unused segments were given back because the card was full (`num_alloc_retries`).
    pub retries: u64,
    /// Segments taken from the card, or extended (`num_device_alloc`).
    pub device_allocations: u64,
    /// Segments given back, or shortened (`num_device_free`).
    pub device_frees: u64,
}
