//! The columns of the steps.

use std::cmp::Ordering;

use memlab_trace::TrainingView;

use super::item::StepItem;
use crate::size_units::Units;
use crate::widgets::columns::{Column, bytes_text};
use memlab_units::format;

/// Columns of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepColumn {
    /// Number.
    Step,
    /// Time of its end.
    End,
    /// Duration.
    Duration,
    /// Time in which it waited for its batch.
    Wait,
    /// Peak of the allocated bytes.
    Peak,
    /// Bytes allocated at its end.
    Kept,
    /// Growth since the end of the previous step.
    Growth,
    /// Loss of a training run.
    Loss,
    /// Samples per second.
    Speed,
    /// Bytes copied to the host.
    Offloaded,
    /// Bar of the peak.
    Name,
}

impl StepColumn {
    /// Columns that only a training run provides.
    pub(super) const OF_TRAINING: [Self; 3] = [Self::Loss, Self::Speed, Self::Offloaded];

    /// Columns of a table of this width without the missing ones. Those of a training run replace others.
    pub(super) fn shown(width: u16, missing: &[Self]) -> Vec<Self> {
        let has_trainings = !missing.contains(&Self::Loss);
        let fits = |column: &Self| {
            let from = match column {
                Self::Wait if has_trainings => 122,
                Self::End if has_trainings => 110,
                _ => column.shown_from(),
            };
            from <= width && !missing.contains(column)
        };
        Self::ALL.iter().copied().filter(fits).collect()
    }
}

impl Column for StepColumn {
    type Item = StepItem;

    const ALL: &'static [Self] = &[
        Self::Step,
        Self::End,
        Self::Duration,
        Self::Wait,
        Self::Peak,
        Self::Kept,
        Self::Growth,
        Self::Loss,
        Self::Speed,
        Self::Offloaded,
        Self::Name,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::End => "ended at",
            Self::Duration => "took",
            Self::Wait => "data wait",
            Self::Peak => "peak",
            Self::Kept => "kept",
            Self::Growth => "growth",
            Self::Loss => "loss",
            Self::Speed => "samples/s",
            Self::Offloaded => "offloaded",
            Self::Name => "",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Name => 0,
            Self::Step | Self::Duration => 8,
            Self::End | Self::Wait | Self::Loss | Self::Speed => 9,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Duration => 58,
            Self::Wait | Self::Loss => 68,
            Self::End => 72,
            Self::Speed => 76,
            Self::Offloaded => 90,
            _ => 0,
        }
    }

    fn figure(self, row: &StepItem) -> Option<f64> {
        Some(match self {
            Self::Step | Self::Name => row.step.index as f64,
            Self::End => row.step.end_time as f64,
            Self::Duration => row.duration.unwrap_or(0) as f64,
            Self::Wait => row.wait.map_or(f64::NEG_INFINITY, |wait| wait.data_ns_per_step() as f64),
            Self::Peak => row.step.peak_allocated_bytes as f64,
            Self::Kept => row.step.allocated_bytes_at_end as f64,
            Self::Growth => row.growth.unwrap_or(0) as f64,
            // An unknown figure is less than all known ones.
            Self::Loss => row.training.as_ref().and_then(|training| training.loss).unwrap_or(f64::NEG_INFINITY),
            Self::Speed => speed(row).unwrap_or(f64::NEG_INFINITY),
            Self::Offloaded => {
                row.training.as_ref().map_or(f64::NEG_INFINITY, |training| training.offloaded_bytes as f64)
            }
        })
    }

    fn compare_names(a: &StepItem, b: &StepItem) -> Ordering {
        a.step.index.cmp(&b.step.index)
    }

    fn text(self, row: &StepItem, units: Units) -> String {
        match self {
            Self::Step if row.step.steps > 1 => {
                format!("{}–{}", row.step.index.saturating_add(1).saturating_sub(row.step.steps), row.step.index)
            }
            Self::Step => row.step.index.to_string(),
            Self::End => format::duration(row.step.end_time),
            Self::Duration => row.duration.map(format::duration).unwrap_or_else(|| "–".to_owned()),
            Self::Wait => row.wait.map_or_else(|| "–".to_owned(), |wait| format::time_spent(wait.data_ns_per_step())),
            Self::Peak => bytes_text(row.step.peak_allocated_bytes, units),
            Self::Kept => bytes_text(row.step.allocated_bytes_at_end, units),
            Self::Growth => row.growth.map_or_else(|| "–".to_owned(), |growth| units.change(growth)),
            Self::Loss => {
                let loss = row.training.as_ref().and_then(|training| training.loss);
                loss.map_or_else(|| "–".to_owned(), format::loss)
            }
            Self::Speed => speed(row).map_or_else(|| "–".to_owned(), format::rate),
            Self::Offloaded => bytes_text(row.training.as_ref().map_or(0, |training| training.offloaded_bytes), units),
            Self::Name => String::new(),
        }
    }
}

fn speed(row: &StepItem) -> Option<f64> {
    row.training.as_ref().and_then(TrainingView::samples_per_second)
}
