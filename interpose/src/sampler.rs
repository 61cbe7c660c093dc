//! The cards' memory use, from NVML: that of the whole device, and that of this process as the driver accounts it.
//!
//! Also the speed of their links to the host.
//!
//! Sampled by the control thread after driver memory changed, and by a thread of the program that reads the recording before
//! the control thread has sampled. Never sampled in a hook.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlab_trace::encode::{self, LineBuffer};
use parking_lot::Mutex;

use crate::memory_calls;
use interpose_base::log::Log;
use interpose_base::nvml::Nvml;

#[derive(Default)]
pub struct Sampler {
    changed: AtomicBool,
    watched: Mutex<Vec<SampledDevice>>,
    /// Loaded by the first sample; `None` if not installed.
    nvml: OnceLock<Option<Nvml>>,
    /// Held by the thread that samples.
    sampling: Mutex<()>,
}

struct SampledDevice {
    device: i32,
    bus_id: Option<String>,
    last: Option<(u64, Option<u64>)>,
    last_others: Vec<(u32, u64)>,
    /// True if the speed of its link was already queried.
    link_asked: bool,
}

/// Attempts at a sample without a call in flight that allocates or frees memory.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// Takes a sample while no call allocates or frees memory, so that it agrees with the recorded events.
///
/// In a program that allocates all the time, the last sample is returned.
fn undisturbed<T>(sample: impl Fn() -> Option<T>) -> Option<T> {
    for _ in 1..ATTEMPTS {
        let before = memory_calls::count();
        let found = sample();
        if found.is_none() || before.is_some() && memory_calls::count() == before {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
    sample()
}

impl Sampler {
    /// Records that the process allocated or freed driver memory.
    pub fn driver_memory_changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Samples `device` from now on.
    ///
    /// NVML numbers cards differently; the bus id identifies a card in both.
    pub fn watch(&self, device: i32, bus_id: Option<String>) {
        self.watched.lock().push(SampledDevice {
            device,
            bus_id,
            last: None,
            last_others: Vec::new(),
            link_asked: false,
        });
        self.driver_memory_changed();
    }

    /// Returns true if use changed since the last sample, or a sample is being taken.
    pub fn is_due(&self) -> bool {
        self.changed.load(Ordering::Relaxed) || self.sampling.is_locked()
    }

    /// Samples every watched device whose use may have changed, and logs the changes.
    ///
    /// With `always`, samples all: other processes also change their use.
    ///
    /// `pid` is this process, and `now` returns the trace's time.
    pub fn sample(&self, log: &Log, pid: u32, now: impl Fn() -> u64, always: bool) {
        let Some(nvml) = self.nvml.get_or_init(Nvml::load) else { return };
        let _sampling = self.sampling.lock();
        if !self.changed.swap(false, Ordering::Relaxed) && !always {
            return;
        }
        // The lock is not held while NVML is queried, which may take long: a thread that defines a new device takes it.
        let count = self.watched.lock().len();
        for index in 0..count {
            let (device, bus_id) = {
                let watched = &self.watched.lock()[index];
                (watched.device, watched.bus_id.clone())
            };
            let Some(bus_id) = bus_id else { continue };
            let is_first = !std::mem::replace(&mut self.watched.lock()[index].link_asked, true);
            if is_first && let Some(bytes_per_second) = nvml.link(&bus_id) {
                log.append(encode::link(&mut LineBuffer::<128>::new(), device, bytes_per_second));
            }
            let Some(use_) = undisturbed(|| nvml.usage(&bus_id, pid)) else { continue };
            let found = (use_.used, use_.process);
            let (is_old, others_are_old) = {
                let watched = &mut self.watched.lock()[index];
                let others_are_old = watched.last_others == use_.others;
                watched.last_others.clone_from(&use_.others);
                (watched.last.replace(found) == Some(found), others_are_old)
            };
            // The other processes come first: readers apply the first sample of both to the time before it.
            if !others_are_old {
                let mut line = LineBuffer::<1024>::new();
                log.append(encode::others(&mut line, device, &use_.others));
            }
            if is_old {
                continue;
            }
            let mut line = LineBuffer::<192>::new();
            let time = now();
            log.append(encode::used(&mut line, time, device, use_.used, use_.total, use_.process));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::memory_calls::MemoryCall;

    #[test]
    fn a_sample_is_taken_again_if_memory_was_allocated_meanwhile() {
        // GIVEN a call that begins and ends during each of the first two samples
        let taken = Cell::new(0);
        let sample = || {
            taken.set(taken.get() + 1);
            if taken.get() <= 2 {
                drop(MemoryCall::begin());
            }
            Some(taken.get())
        };
        // THEN the third is used
        assert_eq!(undisturbed(sample), Some(3));
        // AND with a call that never ends, the last of ten
        let _call = MemoryCall::begin();
        taken.set(2);
        assert_eq!(undisturbed(sample), Some(12));
    }
}
