//! Sums of what ran, by the optimizer step in which it was launched.

use std::collections::BTreeMap;

use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::StepWork;

use super::done::Done;
use crate::recorder::Recorder;

/// The most lines of one writing. Beyond that, neighbours are joined.
const MAX_LINES: usize = 64;

#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    nanoseconds: u64,
    to_device: u64,
    to_host: u64,
}

/// By device and step, since the last writing.
#[derive(Default)]
pub struct StepSums(BTreeMap<(u32, u64), Sum>);

impl StepSums {
    pub fn add(&mut self, step: u64, done: &Done<'_>) {
        let sum = self.0.entry((done.device, step)).or_default();
        sum.calls += 1;
        sum.nanoseconds += done.nanoseconds;
        sum.to_device += if done.what.is_to_device() { done.bytes } else { 0 };
        sum.to_host += if done.what.is_to_host() { done.bytes } else { 0 };
    }

    /// Writes them, and returns the number of bytes.
    pub fn write(&mut self, recorder: &Recorder, now: u64) -> u64 {
        let mut written = 0;
        let sums: Vec<_> = std::mem::take(&mut self.0).into_iter().collect();
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
