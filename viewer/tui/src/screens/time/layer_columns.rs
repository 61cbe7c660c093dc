//! The columns of the layers.

use crate::context::ShownMoment;
use std::cmp::Ordering;

use crate::screens::layers::{LayerItem, compare_layer_names};
use crate::size_units::Units;
use crate::widgets::columns::{Column, GPU_TIME_COLUMNS, gpu_time_text};
use memlab_follow::snapshot::GpuTime;
use memlab_units::format;

/// Columns of the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerTimeColumn {
    /// GPU time, and its share of the device's time.
    GpuTime,
    /// Part in forward.
    Forward,
    /// Part in backward.
    Backward,
    /// Number of kernels, copies and fills.
    Calls,
    /// Name.
    Name,
}

impl Column for LayerTimeColumn {
    type Item = LayerItem;

    const ALL: &'static [Self] = &[Self::GpuTime, Self::Forward, Self::Backward, Self::Calls, Self::Name];

    fn title(self) -> &'static str {
        match self {
            Self::GpuTime => "GPU time",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Calls => "launches",
            Self::Name => "layer",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::GpuTime => GPU_TIME_COLUMNS,
            Self::Forward | Self::Backward => 9,
            Self::Calls => 9,
            Self::Name => 0,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Forward | Self::Backward => 54,
            Self::Calls => 72,
            Self::GpuTime | Self::Name => 0,
        }
    }

    fn figure(self, row: &LayerItem) -> Option<f64> {
        let time = row.time().unwrap_or_default();
        Some(match self {
            Self::GpuTime => time.totals.nanoseconds as f64,
            Self::Calls => time.totals.calls as f64,
            _ => self.part(&time)? as f64,
        })
    }

    fn bar(row: &LayerItem, _: ShownMoment) -> Option<u64> {
        Some(row.time().map_or(0, |time| time.totals.nanoseconds))
    }

    fn compare_names(a: &LayerItem, b: &LayerItem) -> Ordering {
        compare_layer_names(a, b)
    }

    fn text(self, row: &LayerItem, _units: Units) -> String {
        let time = row.time().unwrap_or_default();
        match (self, self.part(&time)) {
            (Self::GpuTime, _) => gpu_time_text(time.totals.nanoseconds, time.device_nanoseconds),
            (Self::Calls, _) => format::count(time.totals.calls),
            (_, None) => String::new(),
            (_, Some(0)) => "–".to_owned(),
            (_, Some(part)) => format::time_spent(part),
        }
    }
}

impl LayerTimeColumn {
    fn part(self, time: &GpuTime) -> Option<u64> {
        match self {
            Self::Forward => Some(time.forward_nanoseconds),
            Self::Backward => Some(time.backward_nanoseconds),
            _ => None,
        }
    }
}
