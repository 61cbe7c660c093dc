//! Sums of GPU work, by place and kernel.

use hashbrown::HashMap;
use memlab_trace::encode::{self, LineBuffer};
use memlab_trace::record::{Flags, Work};

use super::finished_work::FinishedWork;
use crate::attribution::result::Attribution;
use crate::recorder::Recorder;

/// Key of a sum: device, stack, layer, flags, and the kernel's number.
type Key = (u32, u32, u32, u32, u32);

#[derive(Clone, Copy, Default)]
struct Sum {
    calls: u64,
    nanoseconds: u64,
    bytes: u64,
}

/// GPU work since the last write.
#[derive(Default)]
pub struct Sums(HashMap<Key, Sum>);

impl Sums {
    pub fn add(&mut self, place: Attribution, kernel: u32, done: &FinishedWork<'_>) {
        let sum = self.0.entry((done.device, place.stack, place.layer, place.flags, kernel)).or_default();
        sum.calls += 1;
        sum.nanoseconds += done.nanoseconds;
        sum.bytes += done.bytes;
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the sums, and returns the number of bytes.
    pub fn write(&mut self, recorder: &Recorder, now: u64) -> u64 {
        let mut written = 0;
        let mut since: Vec<(Key, Sum)> = self.0.drain().collect();
        since.sort_unstable_by_key(|(key, _)| *key);
        for ((device, stack, layer, flags, kernel), sum) in since {
            let work = Work {
                time: now,
                device: device as i32,
                stack,
                layer,
                flags: Flags(flags),
                kernel,
                calls: sum.calls,
                nanoseconds: sum.nanoseconds,
                bytes: sum.bytes,
            };
            let mut buffer = LineBuffer::<256>::new();
            let line = encode::work(&mut buffer, &work);
            written += line.len() as u64;
            recorder.log.append(line);
        }
        written
    }
}
