//! The rows of the layers: the tree of modules, as their names nest them.

use std::collections::BTreeMap;

use memlab_trace::LayerView;

use super::item::{LayerItem, LayerKey};
use super::state::LayersScreen;
use crate::context::Context;

/// A module and those inside it.
#[derive(Default)]
struct Node {
    own: LayerView,
    inside: BTreeMap<String, Node>,
}

impl LayersScreen {
    /// The rows of the tree. With a filter, the layers that pass it, flat and by their full names.
    pub fn items(&self, context: &Context) -> Vec<LayerItem> {
        let Some(device) = context.device() else { return Vec::new() };
        if !context.filter.is_empty() {
            return self.flat_items(context);
        }
        let mut roots: BTreeMap<u32, Node> = BTreeMap::new();
        let mut outside = Vec::new();
        for view in &device.layers {
            match view.name.as_deref() {
                None => outside.push(layer_item((0, None), 0, view.clone(), view.clone(), context)),
                Some(name) => {
                    let root = roots.entry(view.root).or_default();
                    root.own.root_class.get_or_insert_with(|| view.root_class.clone().unwrap_or_default());
                    root.own.root_name.get_or_insert_with(|| view.root_name.clone().unwrap_or_default());
                    node_of(root, name).own = view.clone();
                }
            }
        }
        let mut level: Vec<(LayerItem, Option<&Node>)> = outside.into_iter().map(|item| (item, None)).collect();
        for (id, node) in &roots {
            let key = (*id, Some(String::new()));
            level.push((layer_item(key, 0, node.own.clone(), sum(node), context), Some(node)));
        }
        let mut items = Vec::new();
        self.push_layers(level, &mut items, context);
        items
    }

    /// The layers that pass the filter, one beside the other.
    pub fn flat_items(&self, context: &Context) -> Vec<LayerItem> {
        let views = context.device().map_or(&[][..], |device| &device.layers);
        let flat_item = |view: &LayerView| {
            let name = view.name.as_deref().map(str::to_owned);
            let root = if name.is_none() { 0 } else { view.root };
            layer_item((root, name), 0, view.clone(), view.clone(), context)
        };
        let mut items: Vec<_> = views.iter().map(flat_item).filter(|item| context.filter.passes(item)).collect();
        items.sort_by(|a, b| self.table.compare(a, b, context.moment));
        items
    }

    /// Puts a layer and, if it is open, what is inside it.
    fn push_layer(&self, mut item: LayerItem, node: Option<&Node>, items: &mut Vec<LayerItem>, context: &Context) {
        let (key, depth, root_name) = (item.key.clone(), item.depth, item.own.root_name.clone());
        let inside = node.map(|node| &node.inside).filter(|inside| !inside.is_empty());
        let is_open = inside.is_some() && self.is_open(&key, depth);
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
                let mut own = node.own.clone();
                own.root_name = own.root_name.or_else(|| root_name.clone());
                (layer_item((key.0, Some(name)), depth + 1, own, sum(node), context), Some(node))
            })
            .collect();
        self.push_layers(level, items, context);
    }

    /// Puts layers side by side in their order: that of all they hold, so that opening one does not move it.
    fn push_layers(&self, mut level: Vec<(LayerItem, Option<&Node>)>, items: &mut Vec<LayerItem>, context: &Context) {
        level.iter_mut().for_each(|(item, _)| item.is_inclusive = true);
        level.sort_by(|(a, _), (b, _)| self.table.compare(a, b, context.moment));
        for (mut item, node) in level {
            item.is_inclusive = context.inclusive;
            self.push_layer(item, node, items, context);
        }
    }
}

fn layer_item(key: LayerKey, depth: u16, own: LayerView, inclusive: LayerView, context: &Context) -> LayerItem {
    let relations = context.device().and_then(|device| device.relations.as_ref());
    let related = match context.filter.asks_for_relations() {
        true => relations.and_then(|relations| relations.of_layer(key.0, key.1.as_deref())),
        false => None,
    };
    LayerItem { key, depth, is_open: None, own, inclusive, is_inclusive: context.inclusive, related }
}

/// The node with a qualified name, made if need be. A name that is not known yet (`<A.B>`) is one part.
fn node_of<'n>(root: &'n mut Node, name: &str) -> &'n mut Node {
    let parts: Vec<&str> = match name {
        "" => Vec::new(),
        _ if name.starts_with('<') => vec![name],
        // Modules nest no deeper; a malicious name is not split further.
        _ => name.splitn(64, '.').collect(),
    };
    parts.into_iter().fold(root, |node, part| node.inside.entry(part.to_owned()).or_default())
}

/// What a module and all inside it hold.
fn sum(node: &Node) -> LayerView {
    let mut total = node.own.clone();
    for inside in node.inside.values() {
        let inside = sum(inside);
        for (to, from) in [
            (&mut total.live_bytes, inside.live_bytes),
            (&mut total.live_bytes_at_peak, inside.live_bytes_at_peak),
            (&mut total.forward_bytes, inside.forward_bytes),
            (&mut total.backward_bytes, inside.backward_bytes),
            (&mut total.parameter_bytes, inside.parameter_bytes),
            (&mut total.gradient_bytes, inside.gradient_bytes),
            (&mut total.optimizer_state_bytes, inside.optimizer_state_bytes),
            (&mut total.buffer_bytes, inside.buffer_bytes),
            (&mut total.activation_bytes, inside.activation_bytes),
        ] {
            *to = to.saturating_add(from);
        }
        for (to, from) in std::iter::zip(&mut total.categories_at_peak, inside.categories_at_peak) {
            *to = to.saturating_add(from);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_not_nested_without_end() {
        let mut root = Node::default();
        node_of(&mut root, &"a.".repeat(100_000)).own.live_bytes = 5;
        assert_eq!(sum(&root).live_bytes, 5);
    }
}
