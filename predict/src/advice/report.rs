//! A piece of advice.

use std::cmp::Reverse;

use serde::Serialize;

use crate::advice::cost::Cost;

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Compute activations of modules again in backward.
    Checkpoint,
    /// Keep activations on the host between forward and backward.
    OffloadActivations,
    /// Compute logits and their loss in pieces.
    ChunkedLoss,
    /// Keep the optimizer's state on the host between its steps.
    OffloadOptimizerState,
    /// Let go of gradients after each step.
    Gradients,
    /// Another implementation of the optimizer.
    FusedOptimizer,
    /// Smaller workspaces of cuBLAS.
    Workspaces,
    /// Other settings of PyTorch's allocator.
    Settings,
    /// Leave a device alone.
    Context,
    /// Let go of what piles up.
    Leak,
    /// One private pool for several CUDA graphs.
    SharePool,
}

impl Kind {
    /// What it says in a word or two.
    pub fn title(self) -> &'static str {
        match self {
            Self::Checkpoint => "Checkpoint",
            Self::OffloadActivations => "Offload activations",
            Self::ChunkedLoss => "Compute the loss in pieces",
            Self::OffloadOptimizerState => "Offload the optimizer's state",
            Self::Gradients => "Let go of gradients",
            Self::FusedOptimizer => "Take a fused optimizer",
            Self::Workspaces => "Take smaller workspaces",
            Self::Settings => "Set the allocator",
            Self::Context => "Leave a device alone",
            Self::Leak => "Stop a leak",
            Self::SharePool => "Share one pool among CUDA graphs",
        }
    }
}

/// Which figure becomes smaller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// What PyTorch's allocator has handed out at its peak.
    Allocated,
    /// What it has taken from the device at most.
    Reserved,
    /// What the process takes of another device, its context there included.
    Used,
}

impl Figure {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::Used => "used",
        }
    }
}

/// Something to do, by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Advice {
    /// What.
    pub kind: Kind,
    /// Layers, a line, a variable of the environment.
    #[serde(rename = "where")]
    pub place: String,
    /// By how much `figure` falls at its most.
    pub saved_bytes: u64,
    /// Which figure falls.
    pub figure: Figure,
    /// What it then is at most.
    pub bytes_after: u64,
    /// What it costs.
    #[serde(flatten)]
    pub cost: Cost,
    /// Code to paste.
    pub how: String,
    /// The figures of the trace that it rests on.
    pub because: String,
}

/// Something that was tried and is not advised.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RejectedAdvice {
    /// What.
    pub kind: Kind,
    /// Where.
    #[serde(rename = "where")]
    pub place: String,
    /// What came of it.
    pub because: String,
}

/// Pieces of advice carried out on one recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Combination {
    /// Which.
    pub kinds: Vec<Kind>,
    /// By how much what is allocated falls at its most.
    pub saved_bytes: u64,
    /// What it then is at most.
    pub bytes_after: u64,
    /// What it costs.
    #[serde(flatten)]
    pub cost: Cost,
}

/// A batch that fits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Batch {
    /// How large it is, in hundredths of that of the run.
    pub percent: u64,
    /// What is allocated at most with it.
    pub bytes_after: u64,
    /// What may be.
    pub limit_bytes: u64,
}

impl Batch {
    /// The largest batch that is considered: a run with a much larger one may take other paths.
    pub const MAX_PERCENT: u64 = 1600;
}

/// Steps in which the GPU has less to do than its host to launch it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct HostBoundStep {
    /// How long one takes.
    pub step_ns: u64,
    /// How long what it launches runs.
    pub work_ns: u64,
}

/// All there is to say about a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AdviceReport {
    /// The device.
    pub device: i32,
    /// What was allocated at the peak.
    pub peak_bytes: u64,
    /// What was reserved at most.
    pub peak_reserved_bytes: u64,
    /// What is to be allocated at most.
    pub target_bytes: Option<u64>,
    /// What to do, best first; each by itself.
    pub advice: Vec<Advice>,
    /// What it gives together; `None`: fewer than two pieces go together.
    pub together: Option<Combination>,
    /// The pieces that reach the target together, at the least cost.
    pub reaching: Option<Combination>,
    /// What its median step is like if its GPU waits for its host: what a change costs a step is not known then.
    pub waits_for_host: Option<HostBoundStep>,
    /// The largest batch that fits into the target, else into the device; `None`: the trace cannot say.
    pub batch: Option<Batch>,
    /// What was tried and is not advised.
    pub tried: Vec<RejectedAdvice>,
}

impl AdviceReport {
    /// Sorts by choice: first what reaches the target by itself, the cheapest first; then what saves most, and of what saves
    /// about as much the cheapest first.
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

/// True if `bytes` is at least nine tenths of `most`.
pub(crate) fn is_about_as_much(bytes: u64, most: u64) -> bool {
    bytes >= most - most / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Advice that saves so many bytes of 1,000 at a cost.
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
            waits_for_host: None,
            batch: None,
            tried: Vec::new(),
        };
        report.sort();
        report.advice.into_iter().map(|advice| advice.kind).collect()
    }

    #[test]
    fn of_what_saves_about_as_much_the_cheapest_comes_first() {
        // GIVEN three changes that save about as much, and two that save less
        // THEN the cheapest of the three comes first and the one of unknown cost last, AND less comes after more
        let [least, most] = [Kind::Gradients, Kind::OffloadActivations];
        let expected = [Kind::Checkpoint, most, Kind::FusedOptimizer, Kind::ChunkedLoss, least];
        assert_eq!(sorted(None), expected);
        // AND of those that reach a target the cheapest comes first, however much others save
        let expected = [Kind::ChunkedLoss, Kind::Checkpoint, most, Kind::FusedOptimizer, least];
        assert_eq!(sorted(Some(600)), expected);
    }
}
