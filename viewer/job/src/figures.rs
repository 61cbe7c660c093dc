//! Minimum, median and maximum of each figure over ranks.

use memlab_trace::Scope;

use crate::statistics::median;
use crate::summary::RankSummary;

/// A compared figure of each rank's fullest device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// Peak of PyTorch's allocated bytes.
    Allocated,
    /// Peak of the allocator's reserved bytes.
    Reserved,
    /// Peak of the whole device's use: reserved, libraries, context, other processes.
    Used,
    /// Bytes of the context.
    Context,
    /// Bytes allocated at the end.
    AtEnd,
    /// Growth of held bytes per step.
    GrowthPerStep,
    /// Completed optimizer steps, a count rather than bytes.
    Steps,
}

impl FigureKind {
    /// All figures.
    pub const ALL: [Self; 7] =
        [Self::Allocated, Self::Reserved, Self::Used, Self::Context, Self::AtEnd, Self::GrowthPerStep, Self::Steps];

    /// Name in the JSON of reports.
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

    /// Returns the figure of a rank; `None`: the rank has no device.
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

/// Value of a figure for one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankValue {
    /// Index of the rank in [`Job::ranks`](crate::Job::ranks).
    pub at: usize,
    /// The value.
    pub value: u64,
}

/// A figure over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Kind of the figure.
    pub kind: FigureKind,
    /// The first rank with the minimum.
    pub least: RankValue,
    /// The median; for an even number of ranks, the lower of the middle two.
    pub median: u64,
    /// The first rank with the maximum.
    pub most: RankValue,
}

/// Returns all figures that are not 0 everywhere; nothing if no rank has a device.
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
