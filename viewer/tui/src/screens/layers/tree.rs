//! Rows of the layers: the tree of modules with its open rows, or a flat list.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};

use memlab_trace::LayerView;

use super::item::{LayerItem, LayerKey};
use crate::context::{Context, ShownMoment};
use memlab_base::layer_groups::{LayerRow, grouped};
use memlab_base::layer_tree::{Figures, Group, LayerNode, LayerTree};
use memlab_follow::snapshot::{DeviceSnapshot, GpuTime};

/// Depth above which layers are initially open: the outermost module and its direct children are visible.
const OPEN_DEPTH: u16 = 1;

/// The open rows of a tree of modules.
#[derive(Clone, Debug, Default)]
pub struct OpenLayers {
    /// Modules opened or closed by the user; the others are open down to [`OPEN_DEPTH`].
    toggled: HashSet<LayerKey>,
    /// True if modules below that depth are open too.
    all_open: bool,
}

/// Order of two layers.
pub type LayerOrder<'o> = &'o dyn Fn(&LayerItem, &LayerItem) -> Ordering;

/// Memory and GPU time of a layer.
#[derive(Clone, Debug, Default)]
struct LayerFigures {
    view: LayerView,
    time: Option<GpuTime>,
    moment: ShownMoment,
}

impl LayerFigures {
    fn of(view: &LayerView, device: &DeviceSnapshot, moment: ShownMoment) -> Self {
        let time = device.times.as_ref().map(|times| times.of_layer(view.root, view.name.as_ref()));
        Self { view: view.clone(), time, moment }
    }
}

impl Figures for LayerFigures {
    fn add(&mut self, other: &Self) {
        // The first layer names the others.
        if self.is_empty() {
            let LayerView { root, root_class, root_name, class, .. } = &other.view;
            self.view.root = *root;
            self.view.root_class.clone_from(root_class);
            self.view.root_name.clone_from(root_name);
            self.view.class = self.view.class.take().or_else(|| class.clone());
            self.moment = other.moment;
        }
        self.view.add(&other.view);
        if let Some(time) = other.time {
            self.time.get_or_insert_with(|| time.none()).add(&time);
        }
    }

    fn bytes(&self) -> u64 {
        bytes_at(&self.view, self.moment)
    }

    fn is_empty(&self) -> bool {
        let LayerView { live_bytes, live_bytes_at_peak, forward_bytes, backward_bytes, .. } = self.view;
        let LayerView { parameter_bytes, buffer_bytes, .. } = self.view;
        let bytes = [live_bytes, live_bytes_at_peak, forward_bytes, backward_bytes, parameter_bytes, buffer_bytes];
        bytes.iter().all(|bytes| *bytes == 0) && self.time.is_none_or(|time| time.totals.calls == 0)
    }
}

impl LayerRow for LayerFigures {
    type Figure = u64;

    fn layer(&self) -> (u32, Option<&str>, Option<&std::sync::Arc<str>>) {
        LayerRow::layer(&self.view)
    }

    fn figure(&self) -> u64 {
        self.bytes()
    }

    fn add(&mut self, other: &Self) {
        Figures::add(self, other);
    }

    fn rename(&mut self, name: String) {
        self.view.name = Some(name.into());
    }
}

fn bytes_at(view: &LayerView, moment: ShownMoment) -> u64 {
    match moment {
        ShownMoment::Peak => view.live_bytes_at_peak,
        ShownMoment::Now | ShownMoment::Cursor => view.live_bytes,
    }
}

impl OpenLayers {
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
        let mut trees: BTreeMap<u32, (LayerTree<LayerFigures>, LayerView)> = BTreeMap::new();
        let mut level: Vec<(LayerItem, Vec<LayerNode<LayerFigures>>)> = Vec::new();
        for view in &device.layers {
            let figures = LayerFigures::of(view, device, context.moment);
            match view.name.as_deref() {
                None => level.push((flat_item(figures, None, context), Vec::new())),
                Some(name) => {
                    let (tree, root) = trees.entry(view.root).or_default();
                    tree.put(name, view.class.as_ref(), &figures);
                    if root.root_class.is_none() {
                        *root = LayerView { class: view.root_class.clone(), ..named_as(view) };
                    }
                }
            }
        }
        for (id, (tree, root)) in trees {
            let mut node = tree.finish();
            node.class = node.class.or_else(|| root.class.clone());
            level.push(tree_item(node, (id, 0), &root, context));
        }
        let mut items = Vec::new();
        self.push_layers(level, &mut items, context, order);
        items
    }

    /// Appends sibling layers, each followed by those inside it if it is open.
    fn push_layers(
        &self,
        mut level: Vec<(LayerItem, Vec<LayerNode<LayerFigures>>)>,
        items: &mut Vec<LayerItem>,
        context: &Context,
        order: LayerOrder<'_>,
    ) {
        level.sort_by(|(a, _), (b, _)| order(a, b));
        for (mut item, inside) in level {
            let (root, depth, view) = (item.key.0, item.depth, named_as(&item.own));
            let is_open = (self.all_open || depth < OPEN_DEPTH) != self.toggled.contains(&item.key);
            item.is_open = (!inside.is_empty()).then_some(is_open);
            items.push(item);
            if is_open {
                let inside = inside.into_iter().map(|node| tree_item(node, (root, depth + 1), &view, context));
                self.push_layers(inside.collect(), items, context, order);
            }
        }
    }
}

/// The outermost module of a layer, without figures.
fn named_as(layer: &LayerView) -> LayerView {
    let LayerView { root, root_class, root_name, .. } = layer.clone();
    LayerView { root, root_class, root_name, ..LayerView::default() }
}

/// Layers that pass the filter, as a flat list.
fn flat_items(context: &Context, order: LayerOrder<'_>) -> Vec<LayerItem> {
    let mut items: Vec<_> = layers(context).into_iter().map(|figures| flat_item(figures, None, context)).collect();
    items.retain(|item| context.filter.passes(item));
    items.sort_by(order);
    items
}

/// Layers that pass the filter, as a flat list; those that differ only in a number are one row.
pub fn grouped_items(context: &Context, order: LayerOrder<'_>) -> Vec<LayerItem> {
    let mut passing = layers(context);
    passing.retain(|figures| context.filter.passes(&flat_item(figures.clone(), None, context)));
    let groups = grouped(passing).into_iter().map(|group| {
        let of = group.group();
        flat_item(group.sum, of, context)
    });
    let mut items: Vec<LayerItem> = groups.collect();
    items.sort_by(order);
    items
}

fn layers(context: &Context) -> Vec<LayerFigures> {
    let Some(device) = context.device() else { return Vec::new() };
    device.layers.iter().map(|view| LayerFigures::of(view, device, context.moment)).collect()
}

/// A layer without those inside it.
fn flat_item(figures: LayerFigures, group: Option<Group>, context: &Context) -> LayerItem {
    let name = figures.view.name.as_deref().map(str::to_owned);
    let root = if name.is_none() { 0 } else { figures.view.root };
    let module = name.clone().filter(|_| group.is_none());
    let node = LayerNode {
        label: String::new(),
        name: name.clone().unwrap_or_default(),
        module,
        class: figures.view.class.clone(),
        inclusive: figures.clone(),
        own: figures,
        group,
        inside: Vec::new(),
    };
    let view = node.own.view.clone();
    let (mut item, _) = tree_item(node, (root, 0), &view, context);
    item.key.1 = name;
    item
}

/// Row of a node at a depth, with the nodes inside it. `around`: the layer around it, for the name of the outermost.
fn tree_item(
    node: LayerNode<LayerFigures>,
    (root, depth): (u32, u16),
    around: &LayerView,
    context: &Context,
) -> (LayerItem, Vec<LayerNode<LayerFigures>>) {
    let LayerNode { label, name, module, class, own, inclusive, group, inside } = node;
    let mut view = own.view;
    view.class = view.class.or(class);
    view.root_class = view.root_class.or_else(|| around.root_class.clone());
    view.root_name = view.root_name.or_else(|| around.root_name.clone());
    let relations = context.device().and_then(|device| device.relations.as_ref());
    let related = match context.filter.asks_for_relations() {
        true => relations.and_then(|relations| relations.of_layer(root, view.name.as_deref())),
        false => None,
    };
    // A module that launched no GPU work itself still has a time of zero.
    let own_time = own.time.or(inclusive.time.map(|time| time.none()));
    let item = LayerItem {
        key: (root, Some(name)),
        label,
        group,
        module,
        depth,
        is_open: None,
        own_bytes: bytes_at(&view, context.moment),
        own: view,
        inclusive: inclusive.view,
        times: own_time.zip(inclusive.time),
        related,
    };
    (item, inside)
}
