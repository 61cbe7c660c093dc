//! Memory by the ranges that the programs name. Ranges of two runs match by path.

use std::collections::BTreeMap;

use memlab_trace::RangePath;

use super::change::{Change, order};
use super::side::Side;

/// Change of the live memory allocated in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeChange {
    /// Names of the enclosing ranges and the range.
    pub path: RangePath,
    /// Bytes.
    pub bytes: Change,
}

/// Changes of all ranges with live memory before or after; empty if neither run names ranges.
pub(super) fn compare(before: &Side, after: &Side) -> Vec<RangeChange> {
    let mut changes: BTreeMap<RangePath, Change> = BTreeMap::new();
    for range in &before.held.ranges {
        changes.entry(range.path.clone()).or_default().before = range.bytes;
    }
    for range in &after.held.ranges {
        changes.entry(range.path.clone()).or_default().after = range.bytes;
    }
    if changes.is_empty() {
        return Vec::new();
    }
    // A run without ranges has all its memory outside of them.
    for (side, is_after) in [(before, false), (after, true)] {
        if side.held.ranges.is_empty() {
            let outside = changes.entry(RangePath::default()).or_default();
            *(if is_after { &mut outside.after } else { &mut outside.before }) = side.held.allocated_bytes;
        }
    }
    let mut changes: Vec<RangeChange> = changes.into_iter().map(|(path, bytes)| RangeChange { path, bytes }).collect();
    changes.sort_by_key(|change| order(change.bytes));
    changes
}
