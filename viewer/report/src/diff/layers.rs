//! Matches the layers of two runs by name and outermost module.
//!
//! Outermost modules match if each run has only one, or if they have the same class and position among those of that
//! class.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::change::{Change, order};
use super::side::Side;
use memlab_base::holdings::LayerName;
use memlab_base::layer_groups::{LayerGroup, LayerRow, grouped_by_sign};
use memlab_base::text::compare_names;

/// Change of a layer's memory or GPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerChange {
    /// The layer in the second run, or else in the first.
    pub layer: LayerName,
    /// Bytes or nanoseconds.
    pub change: Change,
}

impl LayerRow for LayerChange {
    type Figure = i64;

    fn layer(&self) -> (u32, Option<&str>, Option<&Arc<str>>) {
        (self.layer.root, self.layer.name.as_deref(), self.layer.class.as_ref())
    }

    fn figure(&self) -> i64 {
        self.change.by()
    }

    fn add(&mut self, other: &Self) {
        let Change { before, after } = &mut self.change;
        (*before, *after) = (before.saturating_add(other.change.before), after.saturating_add(other.change.after));
    }

    fn rename(&mut self, name: String) {
        self.layer.name = Some(name.into());
    }
}

/// Changes with the greatest first. Layers that differ only in their number are one row, if all of them grew, shrank, or
/// stayed.
pub(super) fn groups(changes: &[LayerChange]) -> Vec<LayerGroup<LayerChange>> {
    let mut groups = grouped_by_sign(changes.to_vec());
    groups.sort_by_key(|group| order(group.sum.change));
    groups
}

/// Class of a module, and its position among those of that class; `None`: the only module of both runs.
type Root = Option<(Option<Arc<str>>, usize)>;

/// Changes of all layers with a figure before or after.
pub(super) fn compare(
    (before, figures_before): (&Side, Vec<(LayerName, u64)>),
    (after, figures_after): (&Side, Vec<(LayerName, u64)>),
) -> Vec<LayerChange> {
    let only_one = before.roots.len() == 1 && after.roots.len() == 1;
    let mut changes: BTreeMap<(Root, Option<Arc<str>>), LayerChange> = BTreeMap::new();
    for (side, figures, is_after) in [(before, figures_before, false), (after, figures_after, true)] {
        for (layer, figure) in figures {
            let key = (root(side, layer.root, only_one), layer.name.clone());
            let change =
                changes.entry(key).or_insert_with(|| LayerChange { layer: layer.clone(), change: Change::default() });
            let sum = if is_after { &mut change.change.after } else { &mut change.change.before };
            *sum = sum.saturating_add(figure);
            if is_after {
                change.layer = layer;
            }
        }
    }
    let mut changes: Vec<LayerChange> = changes.into_values().collect();
    changes.sort_by(|a, b| {
        let names = || compare_names(a.layer.name.as_deref(), b.layer.name.as_deref());
        order(a.change).cmp(&order(b.change)).then_with(names)
    });
    changes
}

fn root(side: &Side, root: u32, only_one: bool) -> Root {
    let (_, class) = side.roots.iter().find(|(id, _)| *id == root).filter(|_| !only_one)?;
    let place = side.roots.iter().filter(|(id, other)| other == class && *id < root).count();
    Some((class.clone(), place))
}
