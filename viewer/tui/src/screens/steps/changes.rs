//! Changes between two moments: the bytes of each holder before and after.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::{Category, Line};

use memlab_base::query::MomentHoldings;
use memlab_base::text::layer_name;
use memlab_units::format::signed_difference;

/// Bytes of a holder at two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change<K> {
    /// Holder.
    pub who: K,
    /// Bytes at the earlier moment.
    pub before: u64,
    /// Bytes at the later moment.
    pub after: u64,
}

impl<K> Change<K> {
    /// Difference from before to after.
    pub fn bytes(&self) -> i64 {
        signed_difference(self.after, self.before)
    }

    /// Sort key: the size of the change, and among equal changes the later holding.
    pub fn weight(&self) -> (u64, u64) {
        (self.after.abs_diff(self.before), self.after)
    }
}

/// A layer of one of the outermost modules.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayerName {
    /// Id of the outermost module; 0: not known, or no layer.
    pub root: u32,
    /// Qualified name; `None`: outside any layer.
    pub name: Option<Arc<str>>,
}

impl LayerName {
    /// Name for display.
    pub fn shown(&self) -> &str {
        layer_name(self.name.as_deref())
    }
}

/// Changes on a device. Lines and layers sum to the allocated bytes, categories to the used bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// By category.
    pub categories: Vec<Change<Category>>,
    /// By line.
    pub lines: Vec<Change<Option<Arc<Line>>>>,
    /// By layer, without the layers inside it.
    pub layers: Vec<Change<LayerName>>,
}

impl Changes {
    /// Compares two moments.
    pub fn between(before: &MomentHoldings, after: &MomentHoldings) -> Self {
        let categories = |holdings: &MomentHoldings| {
            holdings.categories.iter().map(|view| (view.category, view.bytes)).collect::<Vec<_>>()
        };
        let lines = |holdings: &MomentHoldings| {
            holdings.lines.iter().map(|view| (view.line.clone(), view.live_bytes)).collect::<Vec<_>>()
        };
        let layers = |holdings: &MomentHoldings| {
            let name = |view: &memlab_trace::LayerView| LayerName { root: view.root, name: view.name.clone() };
            holdings.layers.iter().map(|view| (name(view), view.live_bytes)).collect::<Vec<_>>()
        };
        Self {
            categories: matched(categories(before), categories(after)),
            lines: matched(lines(before), lines(after)),
            layers: matched(layers(before), layers(after)),
        }
    }
}

/// Matches the holders of two moments: largest change first, and among equal changes the largest holding.
pub fn matched<K: Ord>(
    before: impl IntoIterator<Item = (K, u64)>,
    after: impl IntoIterator<Item = (K, u64)>,
) -> Vec<Change<K>> {
    let mut both: BTreeMap<K, (u64, u64)> = BTreeMap::new();
    for (who, bytes) in before {
        let held = &mut both.entry(who).or_default().0;
        *held = held.saturating_add(bytes);
    }
    for (who, bytes) in after {
        let held = &mut both.entry(who).or_default().1;
        *held = held.saturating_add(bytes);
    }
    let changes = both.into_iter().map(|(who, (before, after))| Change { who, before, after });
    let mut changes: Vec<_> = changes.filter(|change| change.before > 0 || change.after > 0).collect();
    changes.sort_by(|a, b| b.weight().cmp(&a.weight()).then_with(|| a.who.cmp(&b.who)));
    changes
}

/// Sum of all changes.
pub fn total<K>(changes: &[Change<K>]) -> Change<()> {
    let sum = |of: fn(&Change<K>) -> u64| changes.iter().map(of).fold(0, u64::saturating_add);
    Change { who: (), before: sum(|change| change.before), after: sum(|change| change.after) }
}

#[cfg(test)]
mod tests {
    use memlab_trace::{LayerView, LineView};

    use super::*;

    fn of<'a>(changes: &[Change<&'a str>]) -> Vec<(&'a str, i64)> {
        changes.iter().map(|change| (change.who, change.bytes())).collect()
    }

    #[test]
    fn the_largest_change_comes_first() {
        // GIVEN one that grew, one that shrank more, one that came, one that went, and two that stayed
        let before = [("grew", 10), ("shrank", 90), ("went", 5), ("stayed", 7), ("large", 700), ("never", 0)];
        let after = [("large", 700), ("stayed", 7), ("shrank", 20), ("grew", 40), ("came", 6)];
        // WHEN they are matched
        let changes = matched(before, after);
        // THEN they are sorted by the size of the change, in either direction, and the rest by holding
        assert_eq!(
            of(&changes),
            [("shrank", -70), ("grew", 30), ("came", 6), ("went", -5), ("large", 0), ("stayed", 0)]
        );
        // AND the sum is preserved
        let total = total(&changes);
        assert_eq!((total.before, total.after, total.bytes()), (812, 773, -39));
    }

    #[test]
    fn the_same_twice_is_one() {
        let changes = matched([("a", 1), ("a", 2)], [("a", 5)]);
        assert_eq!(changes, [Change { who: "a", before: 3, after: 5 }]);
    }

    #[test]
    fn figures_beyond_reason_do_no_harm() {
        let changes = matched([("a", u64::MAX), ("b", u64::MAX)], [("b", 0), ("c", u64::MAX)]);
        assert_eq!(of(&changes), [("c", i64::MAX), ("a", -i64::MAX), ("b", -i64::MAX)]);
        assert_eq!(total(&changes).before, u64::MAX);
    }

    #[test]
    fn layers_of_different_models_are_kept_apart() {
        // GIVEN a layer of the same name in two models, and an equal line in another allocation
        let layer =
            |root, live_bytes| LayerView { root, name: Some("net.0".into()), live_bytes, ..LayerView::default() };
        let line = |file: &str, live_bytes| LineView {
            line: Some(Arc::new(Line { file: file.into(), line: Some(1), function: "f".into() })),
            live_bytes,
            ..LineView::default()
        };
        let before = MomentHoldings {
            layers: vec![layer(1, 10), layer(2, 20)],
            lines: vec![line("a.py", 30)],
            ..MomentHoldings::default()
        };
        let after = MomentHoldings {
            layers: vec![layer(2, 25), layer(1, 10)],
            lines: vec![line("a.py", 35)],
            ..MomentHoldings::default()
        };
        // WHEN compared THEN each is compared with itself
        let changes = Changes::between(&before, &after);
        let layers: Vec<_> = changes.layers.iter().map(|change| (change.who.root, change.bytes())).collect();
        assert_eq!(layers, [(2, 5), (1, 0)]);
        assert_eq!(changes.lines.len(), 1);
        assert_eq!(changes.lines[0].bytes(), 5);
    }
}
