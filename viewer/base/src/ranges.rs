//! The ranges that a program names, as a tree: the memory of each alone, and with the ranges inside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::{RangePath, RangeView};

use crate::text::{NO_RANGE, clean};

/// A range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeNode {
    /// The range without the ranges inside it.
    pub own: RangeView,
    /// The range with the ranges inside it.
    pub inclusive: RangeView,
}

impl RangeNode {
    /// Names of the enclosing ranges and the range; empty: outside any range.
    pub fn path(&self) -> &RangePath {
        &self.own.path
    }

    /// `step/forward`.
    pub fn name(&self) -> String {
        range_name(self.path())
    }
}

/// `step/forward`, without control characters.
pub fn range_name(path: &[Arc<str>]) -> String {
    if path.is_empty() { NO_RANGE.to_owned() } else { clean(&path.join("/")).into_owned() }
}

/// All ranges as nodes, including those that only enclose others.
///
/// Each comes before those inside it, siblings are sorted by name, and memory outside any range comes first.
pub fn nodes(ranges: &[RangeView]) -> Vec<RangeNode> {
    let mut nodes: BTreeMap<RangePath, RangeNode> = BTreeMap::new();
    for range in ranges {
        let least = usize::from(!range.path.is_empty());
        for depth in least..=range.path.len() {
            let path: RangePath = range.path[..depth].into();
            let node = nodes.entry(path.clone()).or_insert_with(|| RangeNode {
                own: RangeView::of(path.clone()),
                inclusive: RangeView::of(path.clone()),
            });
            add(&mut node.inclusive, range);
            if depth == range.path.len() {
                add(&mut node.own, range);
            }
        }
    }
    nodes.into_values().collect()
}

fn add(sum: &mut RangeView, range: &RangeView) {
    let pairs = [
        (&mut sum.live_bytes, range.live_bytes),
        (&mut sum.live_blocks, range.live_blocks),
        (&mut sum.live_bytes_at_peak, range.live_bytes_at_peak),
        (&mut sum.allocations, range.allocations),
        (&mut sum.allocated_bytes, range.allocated_bytes),
    ];
    let categories = std::iter::zip(&mut sum.categories_at_peak, range.categories_at_peak);
    pairs.into_iter().chain(categories).for_each(|(sum, more)| *sum = sum.saturating_add(more));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(path: &[&str], bytes: u64) -> RangeView {
        let path: RangePath = path.iter().map(|name| Arc::from(*name)).collect();
        RangeView { live_bytes: bytes, live_bytes_at_peak: 2 * bytes, ..RangeView::of(path) }
    }

    #[test]
    fn a_range_has_what_those_inside_it_have() {
        // GIVEN memory outside, in a range, and in two inside one that holds no memory itself
        let ranges = [range(&[], 1), range(&["load"], 10), range(&["step", "a"], 100), range(&["step", "b"], 1000)];
        // WHEN they become a tree
        let nodes = nodes(&ranges);
        // THEN every range is in it, each before those inside it, and only ranges with inner ranges have more inclusive
        // memory
        let figures: Vec<(String, u64, u64)> =
            nodes.iter().map(|node| (node.name(), node.own.live_bytes, node.inclusive.live_bytes)).collect();
        let expected = [
            ("(outside any range)", 1, 1),
            ("load", 10, 10),
            ("step", 0, 1100),
            ("step/a", 100, 100),
            ("step/b", 1000, 1000),
        ];
        assert_eq!(figures, expected.map(|(name, own, inclusive)| (name.to_owned(), own, inclusive)));
        assert_eq!(nodes[2].inclusive.live_bytes_at_peak, 2200);
    }

    #[test]
    fn names_are_clean() {
        assert_eq!(range_name(&["a\u{1b}[2J".into(), "b".into()]), "a\u{fffd}[2J/b");
    }
}
