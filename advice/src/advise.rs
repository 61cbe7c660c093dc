//! All rules on one recording.

use memlab_plan::Recording;

use crate::advice::{Advices, Verdicts};
use crate::course::Course;
use crate::rules::{activations, checkpoint, gradients, loss, optimizer, settings};
use crate::times::Times;

/// What to do so that less is allocated at the peak, or at most `target` bytes.
pub fn advise(recording: &Recording, target: Option<u64>) -> Advices {
    let course = Course::new(recording);
    let times = Times::of(recording);
    let mut verdicts = Verdicts::default();
    checkpoint::advise(&course, &times, target, &mut verdicts);
    activations::advise(&course, &times, target, &mut verdicts);
    loss::advise(&course, &times, &mut verdicts);
    gradients::advise(&course, &mut verdicts);
    optimizer::advise_fused(&course, &mut verdicts);
    optimizer::advise_offload(&course, &times, &mut verdicts);
    settings::advise(recording, &mut verdicts);
    let mut advices = Advices {
        device: recording.device,
        peak_bytes: course.peak().bytes,
        peak_reserved_bytes: recording.model.peaks(recording.device).reserved_bytes,
        target_bytes: target,
        advice: verdicts.advice,
        tried: verdicts.tried,
    };
    advices.sort();
    advices
}
