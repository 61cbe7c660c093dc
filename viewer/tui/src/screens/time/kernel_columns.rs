//! The columns of the kernels.

use crate::context::ShownMoment;
use std::cmp::Ordering;

use super::kernel_item::KernelItem;
use crate::size_units::Units;
use crate::widgets::columns::{Column, GPU_TIME_COLUMNS, gpu_time_text};
use memlab_units::format;

/// Columns of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelColumn {
    /// GPU time, and its share of the device's time.
    GpuTime,
    /// Number of calls.
    Calls,
    /// Time per call.
    Each,
    /// Name.
    Name,
}

impl Column for KernelColumn {
    type Item = KernelItem;

    const ALL: &'static [Self] = &[Self::GpuTime, Self::Calls, Self::Each, Self::Name];

    fn title(self) -> &'static str {
        match self {
            Self::GpuTime => "GPU time",
            Self::Calls => "launches",
            Self::Each => "each",
            Self::Name => "kernel",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::GpuTime => GPU_TIME_COLUMNS,
            Self::Calls => 9,
            Self::Each => 8,
            Self::Name => 0,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Calls => 60,
            Self::Each => 74,
            Self::GpuTime | Self::Name => 0,
        }
    }

    fn figure(self, row: &KernelItem) -> Option<f64> {
        Some(match self {
            Self::GpuTime => row.totals().nanoseconds as f64,
            Self::Calls => row.totals().calls as f64,
            Self::Each => row.each_nanoseconds() as f64,
            Self::Name => return None,
        })
    }

    fn bar(row: &KernelItem, _: ShownMoment) -> Option<u64> {
        Some(row.totals().nanoseconds)
    }

    fn compare_names(a: &KernelItem, b: &KernelItem) -> Ordering {
        (&a.kernel.name, &a.kernel.whole_name).cmp(&(&b.kernel.name, &b.kernel.whole_name))
    }

    fn text(self, row: &KernelItem, _units: Units) -> String {
        match self {
            Self::GpuTime => gpu_time_text(row.totals().nanoseconds, row.device_nanoseconds),
            Self::Calls => format::count(row.totals().calls),
            Self::Each => format::time_spent(row.each_nanoseconds()),
            Self::Name => String::new(),
        }
    }
}
