//! All that is kept of what ran, until it is written.

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

/// The trace grows by at most this many bytes a second, without a timeline, and by `BYTES_AHEAD` beyond that: of a program that
/// is killed early, little is missing.
const BYTES_PER_SECOND: u64 = 16 << 10;
const BYTES_AHEAD: u64 = 1 << 20;
const NANOSECONDS: u64 = 1_000_000_000;

/// Sums are not written more often.
const MIN_WRITE_INTERVAL_NS: u64 = NANOSECONDS / 2;

/// Those of this process.
pub static BOOKS: Mutex<Option<Books>> = Mutex::new(None);

/// Called in a forked child, where nothing runs.
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
    /// Bytes written, less those that time has allowed.
    ahead: u64,
    /// When that was reckoned.
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

    /// Not all work of a step is recorded.
    pub fn cut(&mut self, step: u64) {
        self.steps.cut(step);
    }

    /// Nothing was recorded for a while, until `step`.
    pub fn interrupt(&mut self, step: u64) {
        self.steps.interrupt(step);
        self.busy.interrupt();
    }

    /// Whether they are to be written now, so that the trace grows slowly.
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.next_writing && !self.sums.is_empty()
    }

    /// Writes what ran since the last time. `is_last`: there is nothing after it.
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
