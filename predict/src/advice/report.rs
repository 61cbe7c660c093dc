//! Advice and its report.

use std::cmp::Reverse;

use memlab_trace::Framework;
use serde::Serialize;

use crate::advice::cost::Cost;

/// Kinds of advice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Recompute activations of modules in backward.
    Checkpoint,
    /// Keep activations on the host between forward and backward.
    OffloadActivations,
    /// Compute the logits and their loss in pieces.
    ChunkedLoss,
    /// Keep the optimizer's state on the host between steps.
    OffloadOptimizerState,
    /// Free gradients after each step.
    Gradients,
    /// Use another implementation of the optimizer.
    FusedOptimizer,
    /// Use smaller cuBLAS workspaces.
    Workspaces,
    /// Use other settings of PyTorch's allocator.
    Settings,
    /// Avoid a context on another device.
    Context,
    /// Free memory that accumulates.
    Leak,
    /// Share one private pool among several CUDA graphs.
    SharePool,
    /// Do not compute the weights that attention returns.
    AttentionWeights,
    /// Move the results of an evaluation to the host in between.
    EvaluationResults,
}

impl Kind {
    /// Title of one or two words.
    pub fn title(self) -> &'static str {
        match self {
            Self::Checkpoint => "Checkpoint",
            Self::OffloadActivations => "Offload activations",
            Self::ChunkedLoss => "Compute the loss in pieces",
            Self::OffloadOptimizerState => "Offload the optimizer state",
            Self::Gradients => "Release gradients earlier",
            Self::FusedOptimizer => "Use a fused optimizer",
            Self::Workspaces => "Use smaller workspaces",
            Self::Settings => "Tune the allocator",
            Self::Context => "Avoid a stray context",
            Self::Leak => "Fix a leak",
            Self::AttentionWeights => "Leave out attention weights",
            Self::EvaluationResults => "Move results of the evaluation to the host",
            Self::SharePool => "Share one pool among CUDA graphs",
        }
    }
}

/// Figure that the advice lowers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Peak bytes allocated by PyTorch's allocator.
    Allocated,
    /// Peak bytes that the allocator reserved from the device.
    Reserved,
    /// Bytes that the process uses on another device, including its context there.
    Used,
}

impl Figure {
    /// Name of the figure.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::Used => "in use",
        }
    }
}

/// One piece of advice, measured without the others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Advice {
    /// Kind of advice.
    pub kind: Kind,
    /// Layers, a line, or an environment variable.
    #[serde(rename = "where")]
    pub place: String,
    /// Bytes by which the peak of `figure` falls.
    pub saved_bytes: u64,
    /// The figure that falls.
    pub figure: Figure,
    /// Peak of the figure afterwards.
    pub bytes_after: u64,
    /// Cost per step.
    #[serde(flatten)]
    pub cost: Cost,
    /// Code to paste.
    pub how: String,
    /// Figures of the trace that support it.
    pub because: String,
}

/// Advice that was tried and rejected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RejectedAdvice {
    /// Kind of advice.
    pub kind: Kind,
    /// Layers, a line, or an environment variable.
    #[serde(rename = "where")]
    pub place: String,
    /// Reason for the rejection.
    pub because: String,
}

/// Pieces of advice, replayed together on one recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Combination {
    /// Kinds of the advice.
    pub kinds: Vec<Kind>,
    /// Bytes by which the allocated peak falls.
    pub saved_bytes: u64,
    /// Allocated peak afterwards.
    pub bytes_after: u64,
    /// Cost per step.
    #[serde(flatten)]
    pub cost: Cost,
}

/// A batch that fits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Batch {
    /// Size, in percent of the run's batch.
    pub percent: u64,
    /// Allocated peak with it.
    pub bytes_after: u64,
    /// Limit on the allocated peak.
    pub limit_bytes: u64,
}

impl Batch {
    /// Largest batch considered. A run with a much larger one may take other code paths.
    pub const MAX_PERCENT: u64 = 1600;
}

/// Steps in which the GPU works for less time than the host needs to launch its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct HostBoundStep {
    /// Duration of a step.
    pub step_ns: u64,
    /// Duration of the GPU work that it launches.
    pub work_ns: u64,
}

/// All advice for a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AdviceReport {
    /// Index of the device.
    pub device: i32,
    /// Peak bytes allocated.
    pub peak_bytes: u64,
    /// Peak bytes reserved.
    pub peak_reserved_bytes: u64,
    /// Requested limit on the allocated peak.
    pub target_bytes: Option<u64>,
    /// Advice, best first, each piece measured without the others.
    pub advice: Vec<Advice>,
    /// Best combination; `None`: fewer than two pieces are compatible.
    pub together: Option<Combination>,
    /// Cheapest combination that reaches the target.
    pub reaching: Option<Combination>,
    /// True if the run has GPU times, from which costs are computed.
    #[serde(skip)]
    pub has_gpu_times: bool,
    /// Median step, if its GPU waits for the host. The cost of a change per step is then unknown.
    pub waits_for_host: Option<HostBoundStep>,
    /// Largest batch that fits into the target, else into the device; `None`: the trace is not sufficient.
    pub batch: Option<Batch>,
    /// Reason for which a larger or smaller batch was not tried; `None`: it was.
    pub no_batch: Option<&'static str>,
    /// Next step after an out-of-memory error; `None`: there was none.
    pub after_out_of_memory: Option<String>,
    /// Framework that runs the program at the peak, in whose terms the batch is named.
    #[serde(skip)]
    pub framework: Option<Framework>,
    /// Advice that was tried and rejected.
    pub tried: Vec<RejectedAdvice>,
}

impl AdviceReport {
    /// Sorts the advice, best first.
    ///
    /// Advice that reaches the target without others comes first, cheapest first. The rest is sorted by saving, and
    /// about equal savings by cost.
    pub(crate) fn sort(&mut self) {
        let target = self.target_bytes;
        let reaches = |advice: &Advice| {
            advice.figure == Figure::Allocated && target.is_some_and(|target| advice.bytes_after <= target)
        };
        self.advice.sort_by_key(|advice| (!reaches(advice), Reverse(advice.saved_bytes)));
        let count = self.advice.partition_point(reaches);
        let (reaching, mut others) = self.advice.split_at_mut(count);
        let cheapest_first = |advice: &mut [Advice]| advice.sort_by_key(|advice| advice.cost.rank());
        cheapest_first(reaching);
        while let Some(most) = others.first().map(|advice| advice.saved_bytes) {
            let count = others.partition_point(|advice| is_about_as_much(advice.saved_bytes, most));
            let (alike, rest) = std::mem::take(&mut others).split_at_mut(count);
            cheapest_first(alike);
            others = rest;
        }
    }
}

/// Returns true if `bytes` is at least nine tenths of `most`.
pub(crate) fn is_about_as_much(bytes: u64, most: u64) -> bool {
    bytes >= most - most / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Advice that saves this many bytes of 1,000, at a cost.
    fn advice(kind: Kind, saved_bytes: u64, cost: Cost) -> Advice {
        let text = String::new;
        let bytes_after = 1000 - saved_bytes;
        let figure = Figure::Allocated;
        Advice { kind, place: text(), saved_bytes, figure, bytes_after, cost, how: text(), because: text() }
    }

    fn sorted(target_bytes: Option<u64>) -> Vec<Kind> {
        let advice = vec![
            advice(Kind::Gradients, 100, Cost::ZERO),
            advice(Kind::OffloadActivations, 587, Cost::known(214)),
            advice(Kind::FusedOptimizer, 570, Cost::UNKNOWN),
            advice(Kind::Checkpoint, 556, Cost::known(3)),
            advice(Kind::ChunkedLoss, 400, Cost::known(1)),
        ];
        let mut report = AdviceReport {
            device: 0,
            peak_bytes: 1000,
            peak_reserved_bytes: 1000,
            target_bytes,
            advice,
            together: None,
            reaching: None,
            has_gpu_times: true,
            waits_for_host: None,
            batch: None,
            no_batch: None,
            after_out_of_memory: None,
            framework: None,
            tried: Vec::new(),
        };
        report.sort();
        report.advice.into_iter().map(|advice| advice.kind).collect()
    }

    #[test]
    fn of_what_saves_about_as_much_the_cheapest_comes_first() {
        // GIVEN three changes that save about the same, and two that save less
        // THEN the cheapest of the three comes first, the one of unknown cost last, AND smaller savings follow
        let [least, most] = [Kind::Gradients, Kind::OffloadActivations];
        let expected = [Kind::Checkpoint, most, Kind::FusedOptimizer, Kind::ChunkedLoss, least];
        assert_eq!(sorted(None), expected);
        // AND of those that reach a target the cheapest comes first, even if others save more
        let expected = [Kind::ChunkedLoss, Kind::Checkpoint, most, Kind::FusedOptimizer, least];
        assert_eq!(sorted(Some(600)), expected);
    }
}
