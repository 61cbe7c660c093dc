//! The columns of the lines.

use std::cmp::Ordering;

use super::item::LineItem;
use crate::context::ShownMoment;
use crate::size_units::Units;
use crate::widgets::columns::{Column, GPU_TIME_COLUMNS, bytes_text, gpu_time_text};
use memlab_units::format;

/// Columns of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineColumn {
    /// Live bytes at the displayed moment.
    Now,
    /// Live bytes at the device's peak.
    AtPeak,
    /// GPU time, and its share of the device's time.
    GpuTime,
    /// Maximum bytes that this line ever held.
    Most,
    /// Growth after each step.
    Growth,
    /// Live blocks.
    Blocks,
    /// Live bytes at the peak that were allocated in backward.
    Backward,
    /// Blocks allocated per second.
    Rate,
    /// Blocks allocated over the run.
    Allocations,
    /// Bytes allocated over the run.
    Total,
    /// File and line.
    Place,
}

impl Column for LineColumn {
    type Item = LineItem;

    const ALL: &'static [Self] = &[
        Self::Now,
        Self::AtPeak,
        Self::GpuTime,
        Self::Most,
        Self::Growth,
        Self::Blocks,
        Self::Backward,
        Self::Rate,
        Self::Allocations,
        Self::Total,
        Self::Place,
    ];

    const GPU_TIME: Option<Self> = Some(Self::GpuTime);

    fn title(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::AtPeak => "at peak",
            Self::GpuTime => "GPU time",
            Self::Most => "own peak",
            Self::Growth => "+/step",
            Self::Blocks => "blocks",
            Self::Backward => "backward",
            Self::Rate => "allocs/s",
            Self::Allocations => "allocs",
            Self::Total => "total",
            Self::Place => "line",
        }
    }

    fn columns(self) -> u16 {
        match self {
            Self::Blocks | Self::Allocations => 7,
            Self::Rate => 8,
            Self::GpuTime => GPU_TIME_COLUMNS,
            Self::Place => 0,
            _ => 10,
        }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Now | Self::AtPeak | Self::Place => 0,
            Self::GpuTime => 60,
            Self::Growth => 70,
            Self::Most => 90,
            Self::Rate => 104,
            Self::Blocks => 116,
            Self::Backward => 126,
            Self::Allocations | Self::Total => 150,
        }
    }

    fn figure(self, row: &LineItem) -> Option<f64> {
        let own = &row.figures.own;
        Some(match self {
            Self::Now => row.live_bytes() as f64,
            Self::AtPeak => row.live_bytes_at_peak() as f64,
            Self::GpuTime => row.time.map_or(0, |time| time.totals.nanoseconds) as f64,
            Self::Most => own.peak_live_bytes as f64,
            Self::Growth => row.figures.growth_per_step.unwrap_or(0.0),
            Self::Blocks => row.held().live_blocks as f64,
            Self::Backward => own.backward_bytes_at_peak as f64,
            Self::Rate => row.figures.allocations_per_second,
            Self::Allocations => row.held().allocations as f64,
            Self::Total => row.held().allocated_bytes as f64,
            Self::Place => return None,
        })
    }

    fn bar(row: &LineItem, moment: ShownMoment) -> Option<u64> {
        Some(if moment == ShownMoment::Peak { row.live_bytes_at_peak() } else { row.live_bytes() })
    }

    fn compare_names(a: &LineItem, b: &LineItem) -> Ordering {
        a.line().cmp(&b.line())
    }

    fn text(self, row: &LineItem, units: Units) -> String {
        let (own, held) = (&row.figures.own, row.held());
        let count = |count: u64| if count == 0 { "–".to_owned() } else { format::count(count) };
        match self {
            Self::Now => bytes_text(held.live_bytes, units),
            Self::AtPeak => bytes_text(held.live_bytes_at_peak, units),
            Self::Blocks => count(held.live_blocks),
            Self::Allocations => count(held.allocations),
            Self::Total => bytes_text(held.allocated_bytes, units),
            Self::Growth => {
                row.figures.growth_per_step.map_or_else(String::new, |growth| units.change(growth.round() as i64))
            }
            Self::GpuTime => row
                .time
                .map_or_else(String::new, |time| gpu_time_text(time.totals.nanoseconds, time.device_nanoseconds)),
            // Calls of a line leave the figures of whole lines blank.
            _ if !row.is_whole => String::new(),
            Self::Most => bytes_text(own.peak_live_bytes, units),
            Self::Backward => bytes_text(own.backward_bytes_at_peak, units),
            Self::Rate => format::rate(row.figures.allocations_per_second),
            Self::Place => String::new(),
        }
    }

    fn of_moment(moment: ShownMoment) -> Option<Self> {
        Some(match moment {
            ShownMoment::Now | ShownMoment::Cursor => Self::Now,
            ShownMoment::Peak => Self::AtPeak,
        })
    }
}
