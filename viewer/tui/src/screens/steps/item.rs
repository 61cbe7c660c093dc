//! A row of the steps.

use memlab_trace::{StepView, TrainingView};

use memlab_base::filter::{Field, Filterable};

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepItem {
    /// The step.
    pub step: StepView,
    /// How much more is allocated at its end than at the end of the one before; `None`: it is the first.
    pub growth: Option<i64>,
    /// How long it took, in nanoseconds; `None`: it is the first.
    pub duration: Option<u64>,
    /// What a training says of it.
    pub training: Option<TrainingView>,
    /// Whether it is marked.
    pub is_marked: bool,
    /// Whether the device's peak is in it.
    pub has_peak: bool,
    /// Whether the moment shown is in it.
    pub is_shown: bool,
    /// Out-of-memories in it.
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
