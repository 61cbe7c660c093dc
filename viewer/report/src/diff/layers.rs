//! Which layer of one run is which layer of the other: that of the same name in the same outermost module, which is the
//! only one of both, or has the same class and comes at the same place among those of that class.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::change::{Change, order};
use super::side::Side;
use memlab_base::holdings::LayerName;

/// What a layer held, or had the GPU do, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerChange {
    /// The layer in the run after, else in the run before.
    pub layer: LayerName,
    /// How much.
    pub change: Change,
}

/// A module's class and its place among those of that class; `None`: the only module of both runs.
type Root = Option<(Option<Arc<str>>, usize)>;

/// The changes of all layers that have a figure before or after.
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
    changes.sort_by(|a, b| order(a.change).cmp(&order(b.change)).then_with(|| a.layer.name.cmp(&b.layer.name)));
    changes
}

fn root(side: &Side, root: u32, only_one: bool) -> Root {
    let (_, class) = side.roots.iter().find(|(id, _)| *id == root).filter(|_| !only_one)?;
    let place = side.roots.iter().filter(|(id, other)| other == class && *id < root).count();
    Some((class.clone(), place))
}
