//! What ran on a device, by the place that gave it the work.

use hashbrown::HashMap;

use super::views::WorkTotals;
use crate::record::Work;

/// The most sums kept. What comes after counts nowhere but in the total.
const MAX_SUMS: usize = 1 << 20;

/// A place and what it ran: stack, layer, phase, kernel.
pub(crate) type WorkKey = (u32, u32, u8, u32);

/// Sums of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuWork {
    pub(crate) sums: HashMap<WorkKey, WorkTotals>,
    pub(crate) total: WorkTotals,
}

impl GpuWork {
    pub(crate) fn add(&mut self, work: &Work) {
        let totals = WorkTotals { calls: work.calls, nanoseconds: work.nanoseconds, bytes: work.bytes };
        self.insert((work.stack, work.layer, work.flags.phase() as u8, work.kernel), totals);
        self.total.add(totals);
    }

    /// Adds to a sum, but not to the total.
    pub(crate) fn insert(&mut self, key: WorkKey, totals: WorkTotals) {
        if self.sums.len() < MAX_SUMS || self.sums.contains_key(&key) {
            self.sums.entry(key).or_default().add(totals);
        }
    }
}
