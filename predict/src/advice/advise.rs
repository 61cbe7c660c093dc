//! Applies all rules to one recording.

use crate::plan::Recording;

use crate::advice::allocator_replay::AllocatorReplay;
use crate::advice::block_lifetimes::BlockLifetimes;
use crate::advice::candidates::Candidates;
use crate::advice::report::AdviceReport;
use crate::advice::rules::leak::{self, Leak};
use crate::advice::rules::{
    activations, attention, checkpoint, contexts, evaluation, gradients, graph_pools, loss, optimizer, settings,
    workspaces,
};
use crate::advice::times::Times;
use crate::advice::{batch, combinations};

/// Advises how to lower the peak of allocated bytes, or to bring it to at most `target` bytes.
///
/// `leaks` come from the same recording.
pub fn advise(recording: &Recording, target: Option<u64>, leaks: &[Leak]) -> AdviceReport {
    let lifetimes = BlockLifetimes::new(recording);
    let times = Times::of(recording);
    let mut candidates = Candidates::default();
    checkpoint::advise(&lifetimes, &times, target, &mut candidates);
    activations::advise(&lifetimes, &times, target, &mut candidates);
    loss::advise(&lifetimes, &times, &mut candidates);
    gradients::advise(&lifetimes, &times, &mut candidates);
    optimizer::advise_fused(&lifetimes, &mut candidates);
    optimizer::advise_offload(&lifetimes, &times, &mut candidates);
    workspaces::advise(&lifetimes, &mut candidates);
    let replayed = AllocatorReplay::of(recording);
    settings::advise(replayed.as_ref(), &mut candidates);
    graph_pools::advise(recording, replayed.as_ref(), &mut candidates);
    contexts::advise(recording, &mut candidates);
    leak::advise(&lifetimes, leaks, &mut candidates);
    attention::advise(&lifetimes, &mut candidates);
    evaluation::advise(&lifetimes, &mut candidates);
    let no_batch = batch::unknown(&lifetimes, leaks);
    let limit = target.or_else(|| batch::room(&lifetimes)).filter(|_| no_batch.is_none());
    let sets = combinations::all(&lifetimes, &candidates.changes);
    let mut report = AdviceReport {
        device: recording.device,
        peak_bytes: lifetimes.peak().bytes,
        peak_reserved_bytes: recording.model.peaks(recording.device).reserved_bytes,
        target_bytes: target,
        advice: candidates.advice,
        together: combinations::lowest(&sets),
        reaching: target
            .filter(|target| *target < lifetimes.peak().bytes)
            .and_then(|target| combinations::reaching(&sets, target)),
        has_gpu_times: times.are_recorded(),
        waits_for_host: times.host_bound_step(),
        batch: limit.and_then(|limit| batch::fitting(&lifetimes, limit)),
        no_batch,
        after_out_of_memory: None,
        framework: batch::framework(&lifetimes),
        tried: candidates.tried,
    };
    report.sort();
    report
}
