//! Work on a device, by launching place.

use hashbrown::HashMap;

use super::step_work::BySteps;
use super::views::{BusyView, StepWorkView, WorkTotals};
use memlab_format::record::{Busy, Work};

/// Maximum number of sums. Further work counts only in the total.
const MAX_SUMS: usize = 1 << 20;

/// A place and its kernel: stack, layer, phase, kernel.
pub(crate) type WorkKey = (u32, u32, u8, u32);

/// Sums of work on a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuWork {
    pub(crate) sums: HashMap<WorkKey, WorkTotals>,
    pub(crate) total: WorkTotals,
    pub(crate) busy: BusyView,
    pub(crate) steps: BySteps<StepWorkView>,
}

impl GpuWork {
    pub(crate) fn add(&mut self, work: &Work) {
        let totals = WorkTotals { calls: work.calls, nanoseconds: work.nanoseconds, bytes: work.bytes };
        self.insert((work.stack, work.layer, work.flags.phase() as u8, work.kernel), totals);
        self.total.add(totals);
    }

    pub(crate) fn add_busy(&mut self, event: &Busy) {
        let busy = &mut self.busy;
        busy.busy = busy.busy.saturating_add(event.busy);
        busy.waiting = busy.waiting.saturating_add(event.waiting);
        busy.idle = busy.idle.saturating_add(event.idle);
    }

    /// Adds to a sum, but not to the total.
    pub(crate) fn insert(&mut self, key: WorkKey, totals: WorkTotals) {
        if self.sums.len() < MAX_SUMS || self.sums.contains_key(&key) {
            self.sums.entry(key).or_default().add(totals);
        }
    }
}
