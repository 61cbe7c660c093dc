//! Sets and reports limits.

use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::card::{self, CARDS, limited};
use super::{environment, overhead, spill};
use crate::recorder::{self, Recorder};
use interpose_base::config::Config;
use interpose_base::locks;
use interpose_driver::calls;
use memlab_protocol::request::MAX_DEVICES;
use memlab_protocol::status::{LimitStatus, OnLimit};

/// One thread at a time changes limits.
static SETTING: Mutex<()> = Mutex::new(());

/// Applies `MEMLAB_LIMIT`, `MEMLAB_ON_LIMIT` and `MEMLAB_ON_OOM`.
pub fn start(config: &Config) {
    let (wanted, complaint) =
        environment::wanted(config.limit.as_deref(), config.on_limit.as_deref(), config.on_oom.as_deref());
    CARDS.iter().for_each(|card| card.spills.store(wanted.on_limit == OnLimit::Spill, Ordering::Relaxed));
    for (device, bytes) in wanted.limits {
        set(device, Some(bytes), None);
    }
    if let Some(complaint) = complaint {
        recorder::start::warn_when_recording(complaint);
    }
}

/// Changes the limit of a device, or of all devices.
///
/// `bytes` `None` lifts it; `on_limit` `None` keeps the current action. Memory that the process already holds stays, even
/// beyond the limit.
pub fn set(device: Option<i32>, bytes: Option<u64>, on_limit: Option<OnLimit>) {
    let _one_at_a_time = SETTING.lock();
    for (ordinal, card) in (0..).zip(&CARDS) {
        if device.is_some_and(|device| device != ordinal) {
            continue;
        }
        if let Some(on_limit) = on_limit {
            card.spills.store(on_limit == OnLimit::Spill, Ordering::Relaxed);
        }
        card.look_up_again();
        card.set_limit(bytes);
    }
    card::limits_changed();
    if let Some(recorder) = Recorder::current() {
        let devices = 0..MAX_DEVICES as i32;
        devices.filter(|ordinal| device.is_none_or(|device| device == *ordinal)).for_each(|ordinal| {
            if recorder.knows_device(ordinal) {
                card::record(&recorder.log, ordinal);
            }
        });
    }
}

/// Status of the devices with a limit, among those visible to the process.
pub fn status() -> Vec<LimitStatus> {
    let devices = calls::device_count().clamp(0, MAX_DEVICES as i32);
    (0..devices)
        .filter_map(|device| {
            let (card, limit_bytes) = limited(device)?;
            let on_limit = OnLimit::spilling(card.spills.load(Ordering::Relaxed));
            // Spilled memory may have come back.
            let spilled_bytes = card.spilled.load(Ordering::Relaxed).min(spill::on_host(device).unwrap_or(u64::MAX));
            let (limit_bytes, used_bytes) = (Some(limit_bytes), overhead::used_now(device, card));
            Some(LimitStatus { device, limit_bytes, used_bytes, spilled_bytes, on_limit })
        })
        .collect()
}

pub fn reset_in_child() {
    locks::unlock_in_child(&SETTING);
}
