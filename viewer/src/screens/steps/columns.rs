//! The columns of the steps.

use std::cmp::Ordering;

use super::item::StepItem;
use crate::format::{self, Units};
use crate::widgets::columns::{Column, bytes_text};

/// The columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepColumn {
    /// Its number.
    Step,
    /// When it ended.
    End,
    /// How long it took.
    Duration,
    /// The most allocated during it.
    Peak,
    /// Allocated at its end.
    Kept,
    /// How much more than at the end of the step before.
    Growth,
    /// A bar of the peak.
    Name,
}

impl Column for StepColumn {
    type Item = StepItem;

    const ALL: &'static [Self] =
        &[Self::Step, Self::End, Self::Duration, Self::Peak, Self::Kept, Self::Growth, Self::Name];

    fn title(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::End => "ended at",
            Self::Duration => "took",
            Self::Peak => "peak",
            Self::Kept => "kept",
            Self::Growth => "growth",
            Self::Name => "",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Name => 0,
            Self::Step | Self::Duration => 8,
            Self::End => 9,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Duration => 58,
            Self::End => 72,
            _ => 0,
        }
    }

    fn figure(self, row: &StepItem) -> Option<f64> {
        Some(match self {
            Self::Step | Self::Name => row.step.index as f64,
            Self::End => row.step.end_time as f64,
            Self::Duration => row.duration.unwrap_or(0) as f64,
            Self::Peak => row.step.peak_allocated_bytes as f64,
            Self::Kept => row.step.allocated_bytes_at_end as f64,
            Self::Growth => row.growth.unwrap_or(0) as f64,
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
            Self::Peak => bytes_text(row.step.peak_allocated_bytes, units),
            Self::Kept => bytes_text(row.step.allocated_bytes_at_end, units),
            Self::Growth => row.growth.map_or_else(|| "–".to_owned(), |growth| format::change(growth, units)),
            Self::Name => String::new(),
        }
    }
}
