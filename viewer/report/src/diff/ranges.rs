//! What was allocated in each range that the programs name: a range of one run is that of the same path in the other.

use std::collections::BTreeMap;

use memlab_trace::RangePath;

use super::change::{Change, order};
use super::side::Side;

/// What was allocated in a range and is held, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeChange {
    /// The range and those around it.
    pub path: RangePath,
    /// How much.
    pub bytes: Change,
}

/// The changes of all ranges in which something was allocated that is held before or after; nothing if neither run
/// names ranges.
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
    // A run without ranges has everything outside of them.
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
