//! Which layer of one run is which layer of the other: that of the same name in the same outermost module, which is the
//! only one of both, or has the same class and comes at the same place among those of that class.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::change::{Change, order};
use super::side::Side;
use crate::holdings::HeldLayer;

/// What a layer held before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerChange {
    /// The layer in the run after, else in the run before; what it holds is in `bytes`.
    pub layer: HeldLayer,
    /// What it held.
    pub bytes: Change,
}

/// A module's class and its place among those of that class; `None`: the only module of both runs.
type Root = Option<(Option<Arc<str>>, usize)>;

/// The changes of all layers that hold something before or after.
pub(super) fn compare(before: &Side, after: &Side) -> Vec<LayerChange> {
    let only_one = before.roots.len() == 1 && after.roots.len() == 1;
    let mut changes: BTreeMap<(Root, Option<Arc<str>>), LayerChange> = BTreeMap::new();
    for (side, is_after) in [(before, false), (after, true)] {
        for layer in &side.held.layers {
            let key = (root(side, layer.root, only_one), layer.name.clone());
            let change =
                changes.entry(key).or_insert_with(|| LayerChange { layer: layer.clone(), bytes: Change::default() });
            let bytes = if is_after { &mut change.bytes.after } else { &mut change.bytes.before };
            *bytes = bytes.saturating_add(layer.bytes);
            if is_after {
                change.layer = layer.clone();
            }
        }
    }
    let mut changes: Vec<LayerChange> = changes.into_values().collect();
    changes.sort_by(|a, b| order(a.bytes).cmp(&order(b.bytes)).then_with(|| a.layer.name.cmp(&b.layer.name)));
    changes
}

fn root(side: &Side, root: u32, only_one: bool) -> Root {
    let (_, class) = side.roots.iter().find(|(id, _)| *id == root).filter(|_| !only_one)?;
    let place = side.roots.iter().filter(|(id, other)| other == class && *id < root).count();
    Some((class.clone(), place))
}
