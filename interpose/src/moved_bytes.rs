//! Bytes of each device that are in host memory: the trace's `moved` lines.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use memlab_trace::encode::{self, LineBuffer};
use parking_lot::Mutex;

use crate::limit::card::card;
use crate::limit::spill;
use crate::mover::progress::{self, Progress};
use crate::recorder::Recorder;
use interpose_base::locks;
use interpose_driver::vmm::movable_memory::MOVABLE_MEMORY;

/// The last recorded bytes of each device: see [`record`].
static LAST_RECORDED: Mutex<BTreeMap<i32, u64>> = Mutex::new(BTreeMap::new());

/// Writes to the trace how much of each device's memory is in host memory, if that has changed.
///
/// Returns true if the card may be queried. Its figures are meaningless while bytes are copied, and it does not answer while
/// the process is checkpointed.
pub fn record(recorder: &Recorder) -> bool {
    if progress::is_checkpointed() || progress::current().is_some_and(Progress::is_running) {
        return false;
    }
    let Some(mut now) = MOVABLE_MEMORY.try_lock().map(|memory| memory.host_bytes_by_device()) else { return false };
    for (device, bytes) in spill::pinned_bytes() {
        *now.entry(device).or_default() += bytes;
    }
    let Some(mut last) = LAST_RECORDED.try_lock() else { return false };
    last.keys().for_each(|&device| _ = now.entry(device).or_default()); // All of its host memory was freed.
    for (&device, &bytes) in &now {
        if let Some(card) = card(device) {
            card.most_on_host.fetch_max(bytes, Ordering::Relaxed);
        }
        if last.get(&device).copied().unwrap_or(0) != bytes {
            recorder.log.append(encode::moved(&mut LineBuffer::<128>::new(), recorder.elapsed_ns(), device, bytes));
        }
    }
    *last = now;
    true
}

/// Records a spill before the next allocation.
///
/// Must be called after a spill. If another thread holds the lock, the control thread writes it soon.
pub fn record_spilled() {
    if let Some(recorder) = Recorder::current() {
        record(recorder);
    }
}

pub fn reset_in_child() {
    locks::reset_in_child(&LAST_RECORDED, BTreeMap::new());
}
