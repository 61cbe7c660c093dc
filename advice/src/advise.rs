//! All rules on one recording.

use memlab_plan::Recording;

use crate::advice::Advices;
use crate::course::Course;
use crate::rules::{activations, checkpoint, contexts, gradients, loss, optimizer, settings, workspaces};
use crate::times::Times;
use crate::verdicts::Verdicts;
use crate::{batch, together};

/// What to do so that less is allocated at the peak, or at most `target` bytes.
pub fn advise(recording: &Recording, target: Option<u64>) -> Advices {
    let course = Course::new(recording);
    let times = Times::of(recording);
    let mut verdicts = Verdicts::default();
    checkpoint::advise(&course, &times, target, &mut verdicts);
    activations::advise(&course, &times, target, &mut verdicts);
    loss::advise(&course, &times, &mut verdicts);
    gradients::advise(&course, &times, &mut verdicts);
    optimizer::advise_fused(&course, &mut verdicts);
    optimizer::advise_offload(&course, &times, &mut verdicts);
    workspaces::advise(&course, &mut verdicts);
    settings::advise(recording, &mut verdicts);
    contexts::advise(recording, &mut verdicts);
    let sets = together::sets(&course, &verdicts.changes);
    let mut advices = Advices {
        device: recording.device,
        peak_bytes: course.peak().bytes,
        peak_reserved_bytes: recording.model.peaks(recording.device).reserved_bytes,
        target_bytes: target,
        advice: verdicts.advice,
        together: together::lowest(&sets),
        reaching: target
            .filter(|target| *target < course.peak().bytes)
            .and_then(|target| together::reaching(&sets, target)),
        waits_for_host: times.waits_for_host(),
        batch: target.or_else(|| batch::room(&course)).and_then(|limit| batch::fitting(&course, limit)),
        tried: verdicts.tried,
    };
    advices.sort();
    advices
}
