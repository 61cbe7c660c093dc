//! All rules on one recording.

use crate::plan::Recording;

use crate::advice::course::BlockLifetimes;
use crate::advice::piece::AdviceReport;
use crate::advice::replayed::Replayed;
use crate::advice::rules::leak::{self, Leak};
use crate::advice::rules::{
    activations, checkpoint, contexts, gradients, graph_pools, loss, optimizer, settings, workspaces,
};
use crate::advice::times::Times;
use crate::advice::verdicts::Candidates;
use crate::advice::{batch, together};

/// What to do so that less is allocated at the peak, or at most `target` bytes. `leaks` were found in the same recording.
pub fn advise(recording: &Recording, target: Option<u64>, leaks: &[Leak]) -> AdviceReport {
    let course = BlockLifetimes::new(recording);
    let times = Times::of(recording);
    let mut verdicts = Candidates::default();
    checkpoint::advise(&course, &times, target, &mut verdicts);
    activations::advise(&course, &times, target, &mut verdicts);
    loss::advise(&course, &times, &mut verdicts);
    gradients::advise(&course, &times, &mut verdicts);
    optimizer::advise_fused(&course, &mut verdicts);
    optimizer::advise_offload(&course, &times, &mut verdicts);
    workspaces::advise(&course, &mut verdicts);
    let replayed = Replayed::of(recording);
    settings::advise(replayed.as_ref(), &mut verdicts);
    graph_pools::advise(recording, replayed.as_ref(), &mut verdicts);
    contexts::advise(recording, &mut verdicts);
    leak::advise(&course, leaks, &mut verdicts);
    let sets = together::sets(&course, &verdicts.changes);
    let mut advices = AdviceReport {
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
