//! What a change costs.

use std::iter::Sum;

use serde::Serialize;

/// What a change costs a step, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Cost {
    /// How much longer a step takes; `None`: not known.
    pub cost_ns: Option<u64>,
    /// How much longer the GPU works, or waits for copies, in it; `None`: not known.
    pub gpu_ns: Option<u64>,
}

impl Cost {
    /// It makes no difference.
    pub const ZERO: Self = Self::known(0);

    /// Nothing in the trace says what it costs.
    pub const UNKNOWN: Self = Self { cost_ns: None, gpu_ns: None };

    /// The GPU takes so much longer, and so does the step.
    pub const fn known(nanoseconds: u64) -> Self {
        Self { cost_ns: Some(nanoseconds), gpu_ns: Some(nanoseconds) }
    }

    /// Costs compare by this: what is known.
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
