//! Time that a GPU is busy, and time that it waits for the host.
//!
//! A GPU is busy while any work runs, on any stream. It waits for the host from the end of the last work to the beginning of
//! the next, if the next was launched only after that end. The rest is idle for other reasons: work was launched, but waited
//! for other streams, or to be started.

use std::collections::BTreeMap;

use memlab_trace::encode::{self, LineBuffer};

use super::finished_work::FinishedWork;
use super::launches::Launch;
use super::sampling;
use crate::recorder::Recorder;

/// A record may come this much later than others of its time and still count in full.
pub const MAX_DELAY_NS: u64 = 2_000_000_000;

/// Maximum number of pieces of work kept until no earlier one is expected.
const MAX_PENDING: usize = 1 << 20;

/// Busy times by device.
#[derive(Default)]
pub struct Busy(BTreeMap<u32, Device>);

#[derive(Default)]
struct Device {
    /// Start, end, launch and step of work that is not counted yet.
    pending: Vec<(u64, u64, u64, u64)>,
    latest_end: u64,
    /// Time up to which everything is counted; 0: nothing is counted.
    counted: u64,
    /// Step of the work counted last.
    step: u64,
    shares: Shares,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shares {
    busy: u64,
    waiting: u64,
    idle: u64,
}

impl Busy {
    pub fn add(&mut self, launch: &Launch, done: &FinishedWork<'_>) {
        let device = self.0.entry(done.device).or_default();
        let end = done.start + done.nanoseconds;
        device.latest_end = device.latest_end.max(end);
        if device.pending.len() == MAX_PENDING {
            device.count(u64::MAX);
        }
        device.pending.push((done.start, end, launch.time, launch.step));
    }

    /// Starts anew after a gap in the recording: new work does not continue earlier work.
    pub fn interrupt(&mut self) {
        for device in self.0.values_mut() {
            device.count(u64::MAX);
            device.counted = 0;
        }
    }

    /// Writes the new times, and returns the number of bytes.
    ///
    /// `is_last` means that no further write follows.
    pub fn write(&mut self, recorder: &Recorder, now: u64, is_last: bool) -> u64 {
        let mut written = 0;
        for (index, device) in &mut self.0 {
            device.count(if is_last { u64::MAX } else { device.latest_end.saturating_sub(MAX_DELAY_NS) });
            let Shares { busy, waiting, idle } = std::mem::take(&mut device.shares);
            if busy + waiting + idle > 0 {
                let mut buffer = LineBuffer::<128>::new();
                let line = encode::busy(&mut buffer, now, *index as i32, busy, waiting, idle);
                written += line.len() as u64;
                recorder.log.append(line);
            }
        }
        written
    }
}

impl Device {
    /// Counts the work that began before `until`.
    fn count(&mut self, until: u64) {
        self.pending.sort_unstable();
        let count = self.pending.partition_point(|(start, ..)| *start < until);
        for (start, end, launched, step) in self.pending.drain(..count) {
            // A forgotten launch counts as one of the same step.
            let step = if launched == 0 { self.step } else { step };
            if self.counted == 0 || sampling::has_gap(self.step, step) {
                self.counted = self.counted.max(start);
            }
            self.step = self.step.max(step);
            if let Some(gap) = start.checked_sub(self.counted) {
                let waited = launched >= self.counted;
                *(if waited { &mut self.shares.waiting } else { &mut self.shares.idle }) += gap;
                self.counted = start;
            }
            self.shares.busy += end.saturating_sub(self.counted);
            self.counted = self.counted.max(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(pieces: &[(u64, u64, u64)]) -> Shares {
        let pending = pieces.iter().map(|(start, end, launched)| (*start, *end, *launched, 0)).collect();
        let mut device = Device { pending, ..Device::default() };
        device.count(u64::MAX);
        device.shares
    }

    #[test]
    fn concurrent_work_counts_once() {
        // GIVEN two streams, records out of order, and one piece within another
        let shares = counted(&[(150, 300, 90), (100, 200, 90), (120, 130, 90)]);
        assert_eq!(shares, Shares { busy: 200, waiting: 0, idle: 0 });
    }

    #[test]
    fn a_gap_is_the_hosts_if_the_next_launch_came_after_it_began() {
        let shares = counted(&[(100, 200, 90), (250, 300, 240), (310, 400, 260)]);
        assert_eq!(shares, Shares { busy: 240, waiting: 50, idle: 10 });
    }

    #[test]
    fn late_records_add_only_their_uncounted_time() {
        // GIVEN times counted up to a point; WHEN a record arrives that began before it; THEN only the rest counts
        let mut device = Device { pending: vec![(100, 200, 90, 0)], ..Device::default() };
        device.count(u64::MAX);
        device.pending.push((150, 260, 140, 0));
        device.count(u64::MAX);
        assert_eq!(device.shares, Shares { busy: 160, waiting: 0, idle: 0 });
    }
}
