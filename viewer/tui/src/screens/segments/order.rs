//! Order of segments on the map.

use memlab_trace::{Segment, SegmentMap};

/// Order of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentOrder {
    /// By address.
    #[default]
    Address,
    /// Largest first.
    Size,
    /// Most free memory first.
    Free,
}

impl SegmentOrder {
    /// Name of the order.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Address => "by address",
            Self::Size => "largest first",
            Self::Free => "most free first",
        }
    }

    /// Segments of a map in this order.
    pub fn of(self, map: &SegmentMap) -> Vec<&Segment> {
        let mut segments: Vec<&Segment> = map.segments.iter().collect();
        match self {
            Self::Address => {}
            Self::Size => segments.sort_by_key(|segment| std::cmp::Reverse(segment.bytes)),
            Self::Free => segments.sort_by_key(|segment| std::cmp::Reverse(segment.free_bytes)),
        }
        segments
    }
}
