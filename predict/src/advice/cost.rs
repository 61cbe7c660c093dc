//! Cost of a change.

use std::iter::Sum;

use serde::Serialize;

/// Cost of a change per step, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Cost {
    /// Longer step time; `None`: unknown.
    pub cost_ns: Option<u64>,
    /// Longer GPU time per step, including waits for copies; `None`: unknown.
    pub gpu_ns: Option<u64>,
}

impl Cost {
    /// No cost.
    pub const ZERO: Self = Self::known(0);

    /// Cost that the trace cannot determine.
    pub const UNKNOWN: Self = Self { cost_ns: None, gpu_ns: None };

    /// Cost that delays the GPU and the step equally.
    pub const fn known(nanoseconds: u64) -> Self {
        Self { cost_ns: Some(nanoseconds), gpu_ns: Some(nanoseconds) }
    }

    /// Returns the known figure by which costs compare.
    pub(crate) fn rank(self) -> u64 {
        self.cost_ns.or(self.gpu_ns).unwrap_or(u64::MAX)
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        costs.fold(Self::ZERO, |all, cost| Self {
            cost_ns: sum(all.cost_ns, cost.cost_ns),
            gpu_ns: sum(all.gpu_ns, cost.gpu_ns),
        })
    }
}
