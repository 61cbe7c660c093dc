//! Sums of allocations.

use super::views::{LineView, StackView};

/// Sums over blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationTotals {
    /// Bytes live now.
    pub live_bytes: u64,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Bytes live at the device's peak.
    pub live_bytes_at_peak: u64,
    /// Blocks allocated over the run.
    pub allocations: u64,
    /// Bytes of these blocks.
    pub allocated_bytes: u64,
}

impl AllocationTotals {
    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        self.live_blocks = self.live_blocks.saturating_add(other.live_blocks);
        self.live_bytes_at_peak = self.live_bytes_at_peak.saturating_add(other.live_bytes_at_peak);
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
    }
}

impl From<&StackView> for AllocationTotals {
    fn from(stack: &StackView) -> Self {
        Self {
            live_bytes: stack.live_bytes,
            live_blocks: stack.live_blocks,
            live_bytes_at_peak: stack.live_bytes_at_peak,
            allocations: stack.allocations,
            allocated_bytes: stack.allocated_bytes,
        }
    }
}

impl From<&LineView> for AllocationTotals {
    fn from(line: &LineView) -> Self {
        Self {
            live_bytes: line.live_bytes,
            live_blocks: line.live_blocks,
            live_bytes_at_peak: line.live_bytes_at_peak,
            allocations: line.allocations,
            allocated_bytes: line.allocated_bytes,
        }
    }
}
