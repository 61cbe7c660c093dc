//! Recent allocation rate of each line.

use std::collections::HashMap;
use std::sync::Arc;

use memlab_trace::Line;

use crate::snapshot::ProcessSnapshot;

/// Window of program time for the rates, in nanoseconds.
const RATE_WINDOW_NS: u64 = 1_000_000_000;

type Key = (i32, Option<Arc<Line>>);

/// Allocation counts at the start of the window, and the rates of the previous window.
#[derive(Default)]
pub struct Rates {
    since: u64,
    counts: HashMap<Key, u64>,
    rates: HashMap<Key, f64>,
}

impl Rates {
    /// Records the counts of a snapshot, and adds the recent rates to it.
    pub fn fill(&mut self, process: &mut ProcessSnapshot) {
        let passed = process.time.saturating_sub(self.since);
        let is_first = self.counts.is_empty();
        if is_first || passed >= RATE_WINDOW_NS {
            let mut counts = HashMap::new();
            self.rates.clear();
            for device in &process.devices {
                for row in &device.lines {
                    let key = (device.totals.index, row.own.line.clone());
                    let before = self.counts.get(&key).copied().unwrap_or(0);
                    let rate = row.own.allocations.saturating_sub(before) as f64 / (passed as f64 / 1e9);
                    if !is_first {
                        self.rates.insert(key.clone(), rate);
                    }
                    counts.insert(key, row.own.allocations);
                }
            }
            (self.since, self.counts) = (process.time, counts);
        }
        // Until the first window is complete, the snapshot has the rates over the run.
        if self.rates.is_empty() {
            return;
        }
        for device in &mut process.devices {
            for row in &mut device.lines {
                let key = (device.totals.index, row.own.line.clone());
                row.allocations_per_second = self.rates.get(&key).copied().unwrap_or(0.0);
            }
        }
    }
}
