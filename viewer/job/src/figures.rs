//! The least, the median and the most of each figure.

use memlab_trace::Scope;

use crate::statistics::median;
use crate::summary::RankSummary;

/// What is compared, of the device that each rank fills most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// The peak of what PyTorch allocated.
    Allocated,
    /// The peak of what its allocator reserved.
    Reserved,
    /// The peak of the whole device's use: reserved, libraries, context, other processes.
    Used,
    /// The context.
    Context,
    /// Allocated at the end.
    AtEnd,
    /// How much more is held after each step.
    GrowthPerStep,
    /// Optimizer steps ended, which are no bytes.
    Steps,
}

impl FigureKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Allocated, Self::Reserved, Self::Used, Self::Context, Self::AtEnd, Self::GrowthPerStep, Self::Steps];

    /// Its name in reports' JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allocated => "peak_allocated_bytes",
            Self::Reserved => "peak_reserved_bytes",
            Self::Used => "peak_used_bytes",
            Self::Context => "context_bytes",
            Self::AtEnd => "allocated_bytes",
            Self::GrowthPerStep => "growth_bytes_per_step",
            Self::Steps => "steps",
        }
    }

    /// The figure of a rank; `None`: the rank has no device.
    pub fn of(self, rank: &RankSummary, scope: Scope) -> Option<u64> {
        let device = rank.own_device()?;
        Some(match self {
            Self::Allocated => device.view.peak_allocated_bytes,
            Self::Reserved => device.view.peak_reserved_bytes,
            Self::Used => device.view.peak_used_bytes,
            Self::Context => device.context_bytes,
            Self::AtEnd => device.view.allocated_bytes,
            Self::GrowthPerStep => device.growth(scope).1 as u64,
            Self::Steps => rank.steps_ended,
        })
    }
}

/// What a rank has of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankValue {
    /// The place of the rank in [`Job::ranks`](crate::Job::ranks).
    pub at: usize,
    /// Its figure.
    pub value: u64,
}

/// A figure over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Which.
    pub kind: FigureKind,
    /// The first rank with the least.
    pub least: RankValue,
    /// The median; of an even number of ranks the lower of the two in the middle.
    pub median: u64,
    /// The first rank with the most.
    pub most: RankValue,
}

/// All figures that are not 0 everywhere; nothing if no rank has a device.
pub(crate) fn figures(ranks: &[RankSummary], scope: Scope) -> Vec<Figure> {
    let figure = |kind: FigureKind| {
        let value = |(at, rank)| Some(RankValue { at, value: FigureKind::of(kind, rank, scope)? });
        let values: Vec<RankValue> = ranks.iter().enumerate().filter_map(value).collect();
        let least = *values.iter().min_by_key(|rank| rank.value)?;
        let most = *values.iter().rev().max_by_key(|rank| rank.value)?;
        let median = median(values.iter().map(|rank| rank.value));
        (most.value > 0).then_some(Figure { kind, least, median, most })
    };
    FigureKind::ALL.into_iter().filter_map(figure).collect()
}
