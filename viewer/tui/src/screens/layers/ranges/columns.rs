//! The columns of the ranges.

use std::cmp::Ordering;

use super::item::RangeItem;
use crate::context::ShownMoment;
use crate::size_units::Units;
use crate::widgets::columns::{Column, bytes_text};
use memlab_units::format;

/// Columns of the ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::screens::layers) enum RangeColumn {
    /// Live bytes at the displayed moment.
    Now,
    /// Live bytes at the device's peak.
    AtPeak,
    /// Part of the displayed moment's bytes that inner ranges do not hold.
    Own,
    /// Bytes allocated over the run.
    Allocated,
    /// Live blocks at the displayed moment.
    Blocks,
    /// Blocks allocated over the run.
    Allocations,
    /// Name.
    Name,
}

impl Column for RangeColumn {
    type Item = RangeItem;

    const ALL: &'static [Self] =
        &[Self::Now, Self::AtPeak, Self::Own, Self::Allocated, Self::Blocks, Self::Allocations, Self::Name];

    fn title(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::AtPeak => "at peak",
            Self::Own => "own",
            Self::Allocated => "Σ alloc",
            Self::Blocks => "blocks",
            Self::Allocations => "Σ blocks",
            Self::Name => "range",
        }
    }

    fn columns(self) -> u16 {
        if self == Self::Name { 0 } else { 10 }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Now | Self::AtPeak | Self::Name => 0,
            Self::Allocated | Self::Own => 60,
            Self::Blocks | Self::Allocations => 96,
        }
    }

    fn figure(self, row: &RangeItem) -> Option<f64> {
        let view = row.figures();
        let figure = match self {
            Self::Now => view.live_bytes,
            Self::AtPeak => view.live_bytes_at_peak,
            Self::Own => row.own_bytes,
            Self::Allocated => view.allocated_bytes,
            Self::Blocks => view.live_blocks,
            Self::Allocations => view.allocations,
            Self::Name => return None,
        };
        Some(figure as f64)
    }

    fn bar(row: &RangeItem, moment: ShownMoment) -> Option<u64> {
        Some(row.bytes_at(moment))
    }

    fn compare_names(a: &RangeItem, b: &RangeItem) -> Ordering {
        a.path().cmp(b.path())
    }

    fn text(self, row: &RangeItem, units: Units) -> String {
        let view = row.figures();
        match self {
            Self::Now => bytes_text(view.live_bytes, units),
            Self::AtPeak => bytes_text(view.live_bytes_at_peak, units),
            Self::Own => bytes_text(row.own_bytes, units),
            Self::Allocated => bytes_text(view.allocated_bytes, units),
            Self::Blocks => format::grouped(view.live_blocks),
            Self::Allocations => format::grouped(view.allocations),
            Self::Name => String::new(),
        }
    }

    fn of_moment(moment: ShownMoment) -> Option<Self> {
        Some(match moment {
            ShownMoment::Now | ShownMoment::Cursor => Self::Now,
            ShownMoment::Peak => Self::AtPeak,
        })
    }
}
