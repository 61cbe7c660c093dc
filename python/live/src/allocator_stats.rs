//! Counters of PyTorch's caching allocator, computed from events.

use hashbrown::HashMap;
use memlab_trace::Model;
use memlab_trace::record::{DriverAlloc, DriverKind, Flags, Record};

/// Number of statistics: `allocation`, `allocated_bytes`, `segment`, `reserved_bytes`.
pub const COUNTERS: usize = 4;
/// `all`, `large_pool`, `small_pool`.
pub const POOLS: usize = 3;

/// Largest block of the small pool, and size of its segments: `kSmallSize` and `kSmallBuffer` of PyTorch's allocator.
const SMALL_BLOCK: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;

const BLOCKS: usize = 0;
const SEGMENTS: usize = 2;

/// Values of all statistics in all pools.
pub type Counters = [[u64; POOLS]; COUNTERS];

/// Statistics of one device.
#[derive(Clone, Debug, Default)]
pub struct AllocatorStats {
    /// Current values.
    pub current: Counters,
    /// Increases so far.
    pub allocated: Counters,
    /// Decreases so far.
    pub freed: Counters,
    segments: HashMap<(DriverKind, u64), u64>,
}

impl AllocatorStats {
    /// Statistics at a state whose earlier events are unknown.
    ///
    /// Memory in use counts as allocated.
    pub(crate) fn of(model: &Model, device: i32) -> Self {
        let mut stats = Self::default();
        for block in model.blocks(device) {
            stats.raise(BLOCKS, block.bytes, SMALL_BLOCK);
        }
        for segment in model.segments(device).segments {
            stats.segments.insert((DriverKind::Device, segment.address), segment.bytes);
            stats.raise(SEGMENTS, segment.bytes, SMALL_SEGMENT);
        }
        stats
    }

    /// Counts a record of this device that `model` has already applied.
    ///
    /// Returns true if a statistic increased.
    pub(crate) fn take(&mut self, record: &Record<'_>, model: &Model) -> bool {
        match record {
            Record::Alloc(event) => self.raise(BLOCKS, event.bytes, SMALL_BLOCK),
            Record::Free(event) => {
                if let Some(block) = model.freed(event.device, event.address) {
                    self.lower(BLOCKS, block.bytes, SMALL_BLOCK);
                }
                return false;
            }
            Record::DriverAlloc(event) if event.is_block() => {
                self.raise(BLOCKS, event.bytes, SMALL_BLOCK);
                self.hold(event);
            }
            Record::DriverAlloc(event) if event.flags.has(Flags::SEGMENT) && event.kind.on_device() => self.hold(event),
            Record::DriverFree(event) => {
                if let Some(bytes) = self.segments.remove(&(event.kind, event.address)) {
                    self.lower(SEGMENTS, bytes, SMALL_SEGMENT);
                    if let Some(block) = model.freed(event.device, event.address) {
                        self.lower(BLOCKS, block.bytes, SMALL_BLOCK);
                    }
                }
                return false;
            }
            _ => return false,
        }
        true
    }

    fn hold(&mut self, event: &DriverAlloc<'_>) {
        self.segments.insert((event.kind, event.address), event.bytes);
        self.raise(SEGMENTS, event.bytes, SMALL_SEGMENT);
    }

    fn raise(&mut self, first: usize, bytes: u64, small: u64) {
        for pool in [0, pool(bytes, small)] {
            for (statistic, by) in [(first, 1), (first + 1, bytes)] {
                self.current[statistic][pool] = self.current[statistic][pool].saturating_add(by);
                self.allocated[statistic][pool] = self.allocated[statistic][pool].saturating_add(by);
            }
        }
    }

    fn lower(&mut self, first: usize, bytes: u64, small: u64) {
        for pool in [0, pool(bytes, small)] {
            for (statistic, by) in [(first, 1), (first + 1, bytes)] {
                self.current[statistic][pool] = self.current[statistic][pool].saturating_sub(by);
                self.freed[statistic][pool] = self.freed[statistic][pool].saturating_add(by);
            }
        }
    }
}

fn pool(bytes: u64, small: u64) -> usize {
    if bytes <= small { 2 } else { 1 }
}

/// Returns the device of a record that changes the statistics.
pub(crate) fn device_of(record: &Record<'_>) -> Option<i32> {
    match record {
        Record::Alloc(event) => Some(event.device),
        Record::Free(event) => Some(event.device),
        Record::DriverAlloc(event) => Some(event.device),
        Record::DriverFree(event) => Some(event.device),
        _ => None,
    }
}
