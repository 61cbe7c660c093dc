//! Books: everything kept about GPU work until it is written.

use parking_lot::Mutex;

use super::busy::Busy;
use super::finished_work::FinishedWork;
use super::launches::Launch;
use super::names::KernelNames;
use super::steps::StepSums;
use super::sums::Sums;
use super::timeline::Timeline;
use crate::recorder::Recorder;
use interpose_base::locks;

/// Growth limit of the trace per second, without a timeline.
///
/// The trace may be `BYTES_AHEAD` beyond this, so that little is missing from a program that is killed early.
const BYTES_PER_SECOND: u64 = 16 << 10;
const BYTES_AHEAD: u64 = 1 << 20;
const NANOSECONDS: u64 = 1_000_000_000;

/// Minimum time between two writes of the sums.
const MIN_WRITE_INTERVAL_NS: u64 = NANOSECONDS / 2;

/// Books of this process.
pub static BOOKS: Mutex<Option<Books>> = Mutex::new(None);

/// Called in a forked child, where no GPU work runs.
pub fn reset_in_child() {
    locks::reset_in_child(&BOOKS, None);
}

#[derive(Default)]
pub struct Books {
    names: KernelNames,
    sums: Sums,
    steps: StepSums,
    busy: Busy,
    timeline: Timeline,
    next_writing: u64,
    /// Bytes written, minus the bytes allowed by elapsed time.
    ahead: u64,
    /// Time at which `ahead` was computed.
    reckoned: u64,
}

impl Books {
    pub fn add(&mut self, launch: &Launch, done: &FinishedWork<'_>) {
        let kernel = self.names.number(done.what);
        self.sums.add(launch.place, kernel, done);
        self.steps.add(launch, done);
        self.busy.add(launch, done);
        self.timeline.add(launch.place, kernel, done);
    }

    /// Records that some work of a step is not recorded.
    pub fn cut(&mut self, step: u64) {
        self.steps.cut(step);
    }

    /// Records a gap in the recording that lasted until `step`.
    pub fn interrupt(&mut self, step: u64) {
        self.steps.interrupt(step);
        self.busy.interrupt();
    }

    /// Returns true if the sums are due to be written.
    ///
    /// Limits the growth of the trace.
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.next_writing && !self.sums.is_empty()
    }

    /// Writes the work finished since the last write.
    ///
    /// `is_last` means that no further write follows.
    pub fn write(&mut self, recorder: &Recorder, is_last: bool) {
        let now = recorder.elapsed_ns();
        self.names.write(recorder);
        let bytes = self.sums.write(recorder, now)
            + self.steps.write(recorder, now, is_last)
            + self.busy.write(recorder, now, is_last);
        self.timeline.write(recorder, now, is_last);
        let allowed = now.saturating_sub(self.reckoned).saturating_mul(BYTES_PER_SECOND) / NANOSECONDS;
        self.ahead = self.ahead.saturating_sub(allowed) + bytes;
        self.reckoned = now;
        let over = self.ahead.saturating_sub(BYTES_AHEAD);
        self.next_writing = now + (over * NANOSECONDS / BYTES_PER_SECOND).max(MIN_WRITE_INTERVAL_NS);
    }
}
