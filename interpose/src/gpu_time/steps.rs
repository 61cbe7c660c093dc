//! Sums of GPU work, by the optimizer step in which it was launched.

use std::collections::BTreeMap;
use std::ops::Range;

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::StepWork;

use super::busy::MAX_DELAY_NS;
use super::finished_work::FinishedWork;
use super::launches::Launch;
use crate::recorder::Recorder;

/// Maximum number of lines per write.
///
/// Beyond that, neighbours are joined.
const MAX_LINES: usize = 64;

#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    nanoseconds: u64,
    to_device: u64,
    to_host: u64,
}

/// Sums of unwritten steps, by device and step.
#[derive(Default)]
pub struct StepSums {
    sums: BTreeMap<(u32, u64), Sum>,
    /// Time of each step's first launch.
    begun: BTreeMap<u64, u64>,
    /// Latest launch with a record.
    latest: u64,
    /// First step with unfinished work when everything was collected.
    cut: Option<u64>,
    /// Steps during which recording was last interrupted.
    interrupted: Range<u64>,
}

impl StepSums {
    pub fn add(&mut self, launch: &Launch, done: &FinishedWork<'_>) {
        // The step of memlab's launches is unknown.
        if launch.time == 0 || self.interrupted.contains(&launch.step) {
            return;
        }
        let begun = self.begun.entry(launch.step).or_insert(launch.time);
        *begun = launch.time.min(*begun);
        self.latest = self.latest.max(launch.time);
        let sum = self.sums.entry((done.device, launch.step)).or_default();
        sum.calls += 1;
        sum.nanoseconds += done.nanoseconds;
        sum.to_device += if done.what.is_to_device() { done.bytes } else { 0 };
        sum.to_host += if done.what.is_to_host() { done.bytes } else { 0 };
    }

    /// Records that some work of a step has not ended.
    pub fn cut(&mut self, step: u64) {
        self.cut = Some(self.cut.map_or(step, |first| first.min(step)));
    }

    /// Records that recording was interrupted from the cut step to `step`, in which it goes on.
    pub fn interrupt(&mut self, step: u64) {
        self.interrupted = self.cut.take().unwrap_or(step)..step + 1;
        self.sums.retain(|(_, step), _| !self.interrupted.contains(step));
        self.begun.retain(|step, _| !self.interrupted.contains(step));
    }

    /// Takes the steps whose records are complete: those before a step that began a while ago.
    ///
    /// At the end, when no record comes late, takes the steps whose work has all ended.
    fn take_complete(&mut self, is_last: bool) -> Vec<((u32, u64), Sum)> {
        let began_early = |begun: u64| begun.saturating_add(MAX_DELAY_NS) <= self.latest;
        let end = match (is_last, self.cut) {
            (true, cut) => cut.unwrap_or(u64::MAX),
            (false, _) => self.begun.iter().rev().find(|(_, begun)| began_early(**begun)).map_or(0, |(step, _)| *step),
        };
        self.begun.retain(|step, _| *step >= end);
        self.sums.extract_if(.., |(_, step), _| *step < end).collect()
    }

    /// Writes the complete steps, and returns the number of bytes.
    ///
    /// `is_last` means that everything was collected.
    pub fn write(&mut self, recorder: &Recorder, now: u64, is_last: bool) -> u64 {
        let mut written = 0;
        let sums = self.take_complete(is_last);
        let joined = sums.len().div_ceil(MAX_LINES).max(1);
        for of_device in sums.chunk_by(|((one, _), _), ((other, _), _)| one == other) {
            for group in of_device.chunks(joined) {
                let [((device, first), _), ..] = group else { continue };
                let mut step = StepWork {
                    time: now,
                    device: *device as i32,
                    step: *first,
                    steps: group.last().map_or(1, |((_, last), _)| last - first + 1),
                    calls: 0,
                    nanoseconds: 0,
                    to_device_bytes: 0,
                    to_host_bytes: 0,
                };
                for (_, sum) in group {
                    step.calls += sum.calls;
                    step.nanoseconds += sum.nanoseconds;
                    step.to_device_bytes += sum.to_device;
                    step.to_host_bytes += sum.to_host;
                }
                let mut buffer = LineBuffer::<256>::new();
                let line = encode::step_work(&mut buffer, &step);
                written += line.len() as u64;
                recorder.log.append(line);
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_time::finished_work::WorkKind;

    /// Sums of a one-nanosecond kernel for each step, a second apart.
    fn sums(steps: u64) -> StepSums {
        let mut sums = StepSums::default();
        for step in 0..steps {
            let done = FinishedWork { device: 0, stream: 0, what: WorkKind::Fill, start: 0, nanoseconds: 1, bytes: 0 };
            sums.add(&launch(step), &done);
        }
        sums
    }

    fn launch(step: u64) -> Launch {
        Launch { time: (step + 1) * 1_000_000_000, step, ..Launch::default() }
    }

    fn steps(taken: Vec<((u32, u64), Sum)>) -> Vec<u64> {
        taken.into_iter().map(|((_, step), _)| step).collect()
    }

    #[test]
    fn steps_are_written_when_no_record_of_them_is_expected() {
        // GIVEN records of six steps, a second apart; THEN the steps before one that began two seconds ago are complete
        let mut six = sums(6);
        assert_eq!(steps(six.take_complete(false)), [0, 1, 2]);
        assert_eq!(steps(six.take_complete(false)), [0; 0]);
        // AND at the end all are complete
        assert_eq!(steps(six.take_complete(true)), [3, 4, 5]);
    }

    #[test]
    fn steps_of_which_something_has_not_ended_are_not_written() {
        let mut six = sums(6);
        six.cut(5);
        six.cut(4);
        assert_eq!(steps(six.take_complete(true)), [0, 1, 2, 3]);
    }

    #[test]
    fn steps_during_which_recording_was_interrupted_are_not_written() {
        // GIVEN that another profiler recorded from within step 2 until step 4
        let mut six = sums(6);
        six.cut(2);
        six.interrupt(4);
        assert_eq!(steps(six.take_complete(true)), [0, 1, 5]);
    }
}
