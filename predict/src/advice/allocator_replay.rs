//! Replay of the recorded requests on the model of PyTorch's allocator.

use memlab_units::format::size;

use crate::allocator::{Card, Requests, Settings, replay};
use crate::plan::Recording;

/// Largest error of the model's reserved bytes, in percent, at which the model is trusted for a run.
const RESERVED_TOLERANCE_PERCENT: u64 = 3;

/// A run that the model can replay.
pub(crate) struct AllocatorReplay {
    pub requests: Requests,
    /// Allocator settings of the run.
    pub settings: &'static str,
    /// Peak reserved bytes according to the model.
    pub reserved: u64,
    torch: (u32, u32),
}

impl AllocatorReplay {
    /// Returns `None` if the run reserved nothing to replay, and an error if the model's reserved bytes differ from
    /// those of the run.
    pub fn of(recording: &Recording) -> Option<Result<AllocatorReplay, String>> {
        let recorded = recording.model.peaks(recording.device).reserved_bytes;
        let device = recording.model.device(recording.device).unwrap_or_default();
        if device.async_allocations > 0 || recorded == 0 {
            return None;
        }
        let is_expandable = recording.model.has_expandable_segments(recording.device);
        let settings = if is_expandable { "expandable_segments:True" } else { "" };
        let (requests, torch) = (recording.requests(), recording.torch_version());
        let mut replayed = AllocatorReplay { requests, settings, reserved: 0, torch };
        replayed.reserved = replayed.reserved_with(settings, &replayed.requests)?;
        if replayed.reserved.abs_diff(recorded) > recorded / 100 * RESERVED_TOLERANCE_PERCENT {
            let [reserved, recorded] = [replayed.reserved, recorded].map(size);
            return Some(Err(format!(
                "the replayed run reserves {reserved} instead of {recorded}: too inaccurate for advice"
            )));
        }
        Some(Ok(replayed))
    }

    /// Returns the peak reserved bytes of these requests under other settings.
    pub fn reserved_with(&self, settings: &str, requests: &Requests) -> Option<u64> {
        let settings = Settings::parse(settings).ok()?.for_torch(self.torch);
        Some(replay(requests, &settings, Card::UNLIMITED).counters.reserved.peak)
    }
}
