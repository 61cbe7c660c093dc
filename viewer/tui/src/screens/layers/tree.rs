//! Tree of modules, nested by their names, and their open state.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};

use memlab_trace::LayerView;

use super::item::{LayerItem, LayerKey};
use crate::context::Context;
use memlab_follow::snapshot::{DeviceSnapshot, GpuTime};

/// Depth above which layers are initially open: the outermost module and its direct children are visible.
const OPEN_DEPTH: u16 = 1;

/// A tree of modules.
#[derive(Clone, Debug, Default)]
pub struct LayerTree {
    /// Modules opened or closed by the user; the others are open down to [`OPEN_DEPTH`].
    toggled: HashSet<LayerKey>,
    /// True if modules below that depth are open too.
    all_open: bool,
}

/// Order of two layers.
pub type LayerOrder<'o> = &'o dyn Fn(&LayerItem, &LayerItem) -> Ordering;

/// A module and the modules inside it.
#[derive(Default)]
struct Node {
    own: LayerView,
    time: Option<GpuTime>,
    inside: BTreeMap<String, Node>,
}

impl Node {
    fn put(&mut self, view: &LayerView, device: &DeviceSnapshot) {
        self.own = view.clone();
        self.time = time_of(view, device);
    }
}

impl LayerTree {
    /// Opens all modules, or closes all again.
    pub fn toggle_all(&mut self) {
        self.all_open = !self.all_open;
        self.toggled.clear();
    }

    /// Opens a row, or closes it or moves to its parent; returns the row for the cursor.
    pub fn set_open(&mut self, open: bool, items: &[LayerItem], row: usize) -> usize {
        let Some(item) = items.get(row) else { return row };
        match item.is_open {
            Some(is_open) if is_open != open => self.toggle(item),
            _ if !open && item.depth > 0 => {
                return items[..row].iter().rposition(|other| other.depth < item.depth).unwrap_or(row);
            }
            _ => {}
        }
        row
    }

    /// Opens a row if it is closed, and closes it if it is open.
    pub fn toggle(&mut self, item: &LayerItem) {
        if item.is_open.is_some() && !self.toggled.remove(&item.key) {
            self.toggled.insert(item.key.clone());
        }
    }

    /// Rows of the tree. With a filter, the layers that pass it, flat and by full name.
    pub fn items(&self, context: &Context, order: LayerOrder<'_>) -> Vec<LayerItem> {
        let Some(device) = context.device() else { return Vec::new() };
        if !context.filter.is_empty() {
            return flat_items(context, order);
        }
        let mut roots: BTreeMap<u32, Node> = BTreeMap::new();
        let mut outside = Vec::new();
        for view in &device.layers {
            match view.name.as_deref() {
                None => {
                    let mut node = Node::default();
                    node.put(view, device);
                    outside.push(layer_item((0, None), 0, &node, context));
                }
                Some(name) => {
                    let root = roots.entry(view.root).or_default();
                    root.own.root_class.get_or_insert_with(|| view.root_class.clone().unwrap_or_default());
                    root.own.root_name.get_or_insert_with(|| view.root_name.clone().unwrap_or_default());
                    node_of(root, name).put(view, device);
                }
            }
        }
        let mut level: Vec<(LayerItem, Option<&Node>)> = outside.into_iter().map(|item| (item, None)).collect();
        for (id, node) in &roots {
            let key = (*id, Some(String::new()));
            level.push((layer_item(key, 0, node, context), Some(node)));
        }
        let mut items = Vec::new();
        self.push_layers(level, &mut items, context, order);
        items
    }

    /// Appends a layer and, if it is open, its children.
    fn push_layer(
        &self,
        mut item: LayerItem,
        node: Option<&Node>,
        items: &mut Vec<LayerItem>,
        context: &Context,
        order: LayerOrder<'_>,
    ) {
        let (key, depth, root_name) = (item.key.clone(), item.depth, item.own.root_name.clone());
        let inside = node.map(|node| &node.inside).filter(|inside| !inside.is_empty());
        let is_open = inside.is_some() && (self.all_open || depth < OPEN_DEPTH) != self.toggled.contains(&key);
        item.is_open = inside.map(|_| is_open);
        items.push(item);
        let Some(inside) = inside.filter(|_| is_open && depth < 64) else { return };
        let level: Vec<(LayerItem, Option<&Node>)> = inside
            .iter()
            .map(|(part, node)| {
                let name = match key.1.as_deref() {
                    Some("") | None => part.clone(),
                    Some(around) => format!("{around}.{part}"),
                };
                let mut item = layer_item((key.0, Some(name)), depth + 1, node, context);
                item.own.root_name = item.own.root_name.or_else(|| root_name.clone());
                (item, Some(node))
            })
            .collect();
        self.push_layers(level, items, context, order);
    }

    /// Appends sibling layers, sorted by inclusive figures, so that opening one does not move it.
    fn push_layers(
        &self,
        mut level: Vec<(LayerItem, Option<&Node>)>,
        items: &mut Vec<LayerItem>,
        context: &Context,
        order: LayerOrder<'_>,
    ) {
        level.iter_mut().for_each(|(item, _)| item.is_inclusive = true);
        level.sort_by(|(a, _), (b, _)| order(a, b));
        for (mut item, node) in level {
            item.is_inclusive = context.inclusive;
            self.push_layer(item, node, items, context, order);
        }
    }
}

/// Layers that pass the filter, as a flat list.
pub fn flat_items(context: &Context, order: LayerOrder<'_>) -> Vec<LayerItem> {
    let Some(device) = context.device() else { return Vec::new() };
    let flat_item = |view: &LayerView| {
        let name = view.name.as_deref().map(str::to_owned);
        let root = if name.is_none() { 0 } else { view.root };
        let mut node = Node::default();
        node.put(view, device);
        layer_item((root, name), 0, &node, context)
    };
    let mut items: Vec<_> = device.layers.iter().map(flat_item).filter(|item| context.filter.passes(item)).collect();
    items.sort_by(order);
    items
}

fn time_of(view: &LayerView, device: &DeviceSnapshot) -> Option<GpuTime> {
    device.times.as_ref().map(|times| times.of_layer(view.root, view.name.as_ref()))
}

fn layer_item(key: LayerKey, depth: u16, node: &Node, context: &Context) -> LayerItem {
    let relations = context.device().and_then(|device| device.relations.as_ref());
    let related = match context.filter.asks_for_relations() {
        true => relations.and_then(|relations| relations.of_layer(key.0, key.1.as_deref())),
        false => None,
    };
    let (inclusive, inclusive_time) = sum(node);
    // A module that launched no GPU work itself still has a time of zero.
    let own_time = node.time.or(inclusive_time.map(|time| time.none()));
    LayerItem {
        key,
        depth,
        is_open: None,
        own: node.own.clone(),
        inclusive,
        times: own_time.zip(inclusive_time),
        is_inclusive: context.inclusive,
        related,
    }
}

/// Finds or makes the node of a qualified name. A name that is not known yet (`<A.B>`) is one part.
fn node_of<'n>(root: &'n mut Node, name: &str) -> &'n mut Node {
    let parts: Vec<&str> = match name {
        "" => Vec::new(),
        _ if name.starts_with('<') => vec![name],
        // Real modules nest no deeper; a malicious name is not split further.
        _ => name.splitn(64, '.').collect(),
    };
    parts.into_iter().fold(root, |node, part| node.inside.entry(part.to_owned()).or_default())
}

/// Memory and GPU time of a module, including those inside it.
fn sum(node: &Node) -> (LayerView, Option<GpuTime>) {
    let (mut total, mut time) = (node.own.clone(), node.time);
    for inside in node.inside.values() {
        let (inside, time_inside) = sum(inside);
        if let Some(inside) = time_inside {
            time.get_or_insert_with(|| inside.none()).add(&inside);
        }
        total.add(&inside);
    }
    (total, time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_not_nested_without_end() {
        let mut root = Node::default();
        node_of(&mut root, &"a.".repeat(100_000)).own.live_bytes = 5;
        assert_eq!(sum(&root).0.live_bytes, 5);
    }
}
