//! A row of the steps.

use memlab_trace::{StepView, StepWaitView, TrainingView};

use memlab_base::filter::{Field, Filterable};

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepItem {
    /// The step.
    pub step: StepView,
    /// Growth of the allocated bytes since the end of the previous step; `None`: the first step.
    pub growth: Option<i64>,
    /// Duration in nanoseconds; `None`: the first step.
    pub duration: Option<u64>,
    /// Figures that a training run reports for it.
    pub training: Option<TrainingView>,
    /// Time in which the program gave the GPU no work.
    pub wait: Option<StepWaitView>,
    /// True if it is marked.
    pub is_marked: bool,
    /// True if it contains the device's peak.
    pub has_peak: bool,
    /// True if it contains the displayed moment.
    pub is_shown: bool,
    /// Number of out-of-memory errors in it.
    pub oom_count: usize,
    pub(super) name: String,
}

impl Filterable for StepItem {
    fn texts(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn bytes(&self) -> u64 {
        self.step.peak_allocated_bytes
    }

    fn field(&self, _: Field) -> Vec<&str> {
        Vec::new()
    }
}
