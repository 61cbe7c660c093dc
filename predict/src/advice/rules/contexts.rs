//! Finds contexts on devices that the run hardly uses: a tensor or a checkpoint landed on the wrong device.

use crate::plan::Recording;
use memlab_trace::{Category, DeviceView};
use memlab_units::format::size;

use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::names::of_line;
use crate::advice::report::{Advice, Figure, Kind};

/// A device is hardly used if it has at most 1/N of the bytes allocated on the run's main device.
const UNUSED_SHARE_DIVISOR: u64 = 100;

pub(crate) fn advise(recording: &Recording, candidates: &mut Candidates) {
    let model = &recording.model;
    let own = model.peaks(recording.device).allocated_bytes;
    let is_hardly_used = |device: &DeviceView| {
        device.index >= 0
            && device.index != recording.device
            && device.peak_allocated_bytes <= own / UNUSED_SHARE_DIVISOR
    };
    for device in model.devices().into_iter().filter(is_hardly_used) {
        let context =
            model.categories(device.index).iter().find(|row| row.category == Category::Context).map(|row| row.bytes);
        let Some(context) = context.filter(|context| *context > 0) else { continue };
        let lines = model.lines(device.index);
        let line = lines.iter().max_by_key(|line| line.allocated_bytes).and_then(|line| line.line.as_ref());
        let at = line.map_or(String::new(), |line| format!(", by {}", of_line(recording, line)));
        candidates.add(
            Advice {
                kind: Kind::Context,
                place: format!("cuda:{}", device.index),
                saved_bytes: context + device.peak_reserved_bytes,
                figure: Figure::Used,
                bytes_after: 0,
                cost: Cost::ZERO,
                how: format!(
                    "import torch\n\
                     torch.cuda.set_device({0})  # before any GPU use; torch.load needs map_location=\"cuda:{0}\"",
                    recording.device
                ),
                because: format!(
                    "The process has a context of {} there, for at most {} allocated{at}; everything else is on cuda:{}.",
                    size(context),
                    size(device.peak_allocated_bytes),
                    recording.device
                ),
            },
            None,
        );
    }
}
