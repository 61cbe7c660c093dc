//! The columns of the copies and fills.

use crate::context::ShownMoment;
use std::cmp::Ordering;

use super::kernel_item::KernelItem;
use crate::size_units::Units;
use crate::widgets::columns::{Column, GPU_TIME_COLUMNS, bytes_text, gpu_time_text};
use memlab_units::format;

/// Columns of the copies and fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyColumn {
    /// GPU time, and its share of the device's time.
    GpuTime,
    /// Number of calls.
    Calls,
    /// Bytes.
    Bytes,
    /// Speed.
    Rate,
    /// Share of the link's speed.
    OfLink,
    /// Source and target.
    Direction,
}

impl Column for CopyColumn {
    type Item = KernelItem;

    const ALL: &'static [Self] = &[Self::GpuTime, Self::Calls, Self::Bytes, Self::Rate, Self::OfLink, Self::Direction];

    fn title(self) -> &'static str {
        match self {
            Self::GpuTime => "GPU time",
            Self::Calls => "calls",
            Self::Bytes => "bytes",
            Self::Rate => "GB/s",
            Self::OfLink => "of the link",
            Self::Direction => "copies and fills",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::GpuTime => GPU_TIME_COLUMNS,
            Self::Calls => 7,
            Self::Bytes => 10,
            Self::Rate => 7,
            Self::OfLink => 12,
            Self::Direction => 0,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Calls => 84,
            Self::OfLink => 72,
            _ => 0,
        }
    }

    fn figure(self, row: &KernelItem) -> Option<f64> {
        Some(match self {
            Self::GpuTime => row.totals().nanoseconds as f64,
            Self::Calls => row.totals().calls as f64,
            Self::Bytes => row.totals().bytes as f64,
            Self::Rate => row.kernel.gigabytes_per_second(),
            Self::OfLink => row.kernel.share_of_link(row.link_bytes_per_second).unwrap_or(0.0),
            Self::Direction => return None,
        })
    }

    fn bar(row: &KernelItem, _: ShownMoment) -> Option<u64> {
        Some(row.totals().nanoseconds)
    }

    fn compare_names(a: &KernelItem, b: &KernelItem) -> Ordering {
        a.kernel.name.cmp(&b.kernel.name)
    }

    fn text(self, row: &KernelItem, units: Units) -> String {
        match self {
            Self::GpuTime => gpu_time_text(row.totals().nanoseconds, row.device_nanoseconds),
            Self::Calls => format::count(row.totals().calls),
            Self::Bytes => bytes_text(row.totals().bytes, units),
            Self::Rate => format!("{:.1}", row.kernel.gigabytes_per_second()),
            Self::OfLink => row.kernel.share_of_link(row.link_bytes_per_second).map_or_else(String::new, format::share),
            Self::Direction => String::new(),
        }
    }
}
