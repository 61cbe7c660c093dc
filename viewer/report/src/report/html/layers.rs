//! The layers as a tree: memory of every module, including those inside it, at the peak by category.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use maud::{Markup, html};
use memlab_trace::{BlockLayer, BlockView, Category, DeviceView, LayerView, Model};

use super::super::names::ReportNames;
use super::tables;
use crate::page::elements::{name, plural, share, size};
use memlab_base::category::category_index;
use memlab_base::layer_tree::{Figures, LayerNode, LayerTree};
use memlab_base::text::NO_LAYER;

/// Maximum number of layers shown, of all devices together.
const LAYERS: usize = 800;

/// Depth down to which a tree is open.
const OPEN_DEPTH: usize = 2;

/// The categories with a column each.
const COLUMNS: [(Category, &str); 4] = [
    (Category::Parameter, "parameters"),
    (Category::Gradient, "gradients"),
    (Category::OptimizerState, "optimizer"),
    (Category::Activation, "activations"),
];

/// Memory: in total, in the four columns, and the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    all: u64,
    parts: [u64; COLUMNS.len()],
}

impl Sums {
    /// Sums of the bytes of every category, in the order of [`Category::ALL`].
    fn of(categories: &[u64; Category::COUNT]) -> Self {
        let parts = COLUMNS.map(|(category, _)| categories[category as usize]);
        Self { all: categories.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)), parts }
    }

    fn others(&self) -> u64 {
        self.all.saturating_sub(self.parts.iter().fold(0, |sum, part| sum.saturating_add(*part)))
    }
}

impl Figures for Sums {
    fn add(&mut self, other: &Self) {
        self.all = self.all.saturating_add(other.all);
        for (part, more) in std::iter::zip(&mut self.parts, other.parts) {
            *part = part.saturating_add(more);
        }
    }

    fn bytes(&self) -> u64 {
        self.all
    }

    fn is_empty(&self) -> bool {
        self.all == 0
    }
}

/// A layer and its memory.
pub(super) struct Holder {
    root: u32,
    root_name: Option<Arc<str>>,
    name: Option<Arc<str>>,
    class: Option<Arc<str>>,
    held: Sums,
}

impl Holder {
    /// Makes a layer with other memory than in its view.
    ///
    /// `held`: bytes of every category, in the order of [`Category::ALL`].
    pub(super) fn new(view: &LayerView, held: &[u64; Category::COUNT]) -> Self {
        Self {
            root: view.root,
            root_name: view.root_name.clone(),
            name: view.name.clone(),
            class: view.class.clone(),
            held: Sums::of(held),
        }
    }
}

/// Memory of every layer in these blocks, by category. `model`: source of the names.
pub(super) fn holders<'b>(model: &Model, device: i32, blocks: impl Iterator<Item = &'b BlockView>) -> Vec<Holder> {
    let mut held: HashMap<BlockLayer, [u64; Category::COUNT]> = HashMap::new();
    for block in blocks {
        let categories = held.entry(model.layer_of(block)).or_insert([0; Category::COUNT]);
        let bytes = &mut categories[block.category as usize];
        *bytes = bytes.saturating_add(block.bytes);
    }
    let known: HashMap<BlockLayer, LayerView> = model
        .layers(device)
        .into_iter()
        .map(|view| (BlockLayer { root: view.root, name: view.name.clone() }, view))
        .collect();
    held.into_iter()
        .map(|(layer, categories)| match known.get(&layer) {
            Some(view) => Holder::new(view, &categories),
            None => {
                let view = LayerView { root: layer.root, name: layer.name, ..LayerView::default() };
                Holder::new(&view, &categories)
            }
        })
        .collect()
}

/// The tree, with all layers as a table below it.
pub(super) fn tree(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> Markup {
    let layers = names.model.layers(device.index);
    let held: Vec<Holder> = layers.iter().map(|layer| Holder::new(layer, &layer.categories_at_peak)).collect();
    tree_and_each(names, device, &held, "at the peak", devices)
}

/// The tree of these layers, with a table of every layer alone below it; empty without layers.
pub(super) fn tree_and_each(
    names: &ReportNames<'_>,
    device: &DeviceView,
    layers: &[Holder],
    when: &str,
    devices: usize,
) -> Markup {
    let tree = tree_of(layers, when, devices);
    html! {
        @if !tree.0.is_empty() {
            (tree)
            details.more { summary { "every layer alone" } (tables::layers(names, device, devices)) }
        }
    }
}

/// The tree alone; empty without layers.
pub(super) fn tree_of(layers: &[Holder], when: &str, devices: usize) -> Markup {
    if layers.iter().all(|layer| layer.name.is_none()) {
        return Markup::default();
    }
    let held: Vec<&Holder> = layers.iter().filter(|layer| layer.held.all > 0).collect();
    // Layers are selected by their own memory, without inner layers.
    let cap = (LAYERS / devices.max(1)).max(60);
    let mut sizes: Vec<u64> = held.iter().map(|layer| layer.held.all).collect();
    sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let least = sizes.get(cap).map_or(0, |bytes| bytes.saturating_add(1));

    let mut roots: BTreeMap<u32, (Option<Arc<str>>, LayerTree<Sums>)> = BTreeMap::new();
    let mut outside = LayerTree::default();
    let mut left_out = (0_u64, Sums::default());
    for layer in held {
        if layer.held.all < least {
            left_out.0 += 1;
            left_out.1.add(&layer.held);
            continue;
        }
        match layer.name.as_deref() {
            None => outside.put("", None, &layer.held),
            Some(name) => {
                let (root, tree) = roots.entry(layer.root).or_default();
                *root = root.take().or_else(|| layer.root_name.clone());
                tree.put(name, layer.class.as_ref(), &layer.held);
            }
        }
    }
    let mut top: Vec<LayerNode<Sums>> = Vec::new();
    for (root, tree) in roots.into_values() {
        let mut node = tree.finish();
        node.class = root.or(node.class);
        node.label = node.class.as_deref().unwrap_or("(outermost module)").to_owned();
        top.push(node);
    }
    let outside = outside.finish();
    if !outside.own.is_empty() {
        top.push(LayerNode { label: NO_LAYER.to_owned(), ..outside });
    }
    let most = top.iter().fold(Sums::default(), |mut sum, node| {
        sum.all = sum.all.max(node.inclusive.all);
        let parts = node.inclusive.parts;
        std::iter::zip(&mut sum.parts, parts).for_each(|(most, part)| *most = part.max(*most));
        sum
    });

    html! {
        div.buttons {
            button type="button" data-open="all" { "open all" }
            " "
            button type="button" data-open="none" { "close all" }
        }
        div.scroll {
            div.tree {
                div.row.head aria-hidden="true" {
                    span { "layer (with inner layers)" }
                    span.num { (when) }
                    @for (_, title) in COLUMNS { span.num { (title) } }
                    span.num { "others" }
                }
                @for node in &top { (branch(node, 0, &most)) }
                @if left_out.0 > 0 {
                    (leaf(&html! { em { (plural(left_out.0, "smaller layer")) } }, &left_out.1, 0, &most))
                }
            }
        }
    }
}

fn branch(node: &LayerNode<Sums>, depth: usize, most: &Sums) -> Markup {
    let class = node.class.as_deref().filter(|class| *class != node.label).unwrap_or("");
    let group = node.group.map(|group| format!(" {}", group.words())).unwrap_or_default();
    let label = html! { (name(&node.label)) " " em { (name(class)) (group) } };
    if node.inside.is_empty() {
        return leaf(&label, &node.inclusive, depth, most);
    }
    let itself = (node.group.is_none() && !node.own.is_empty()).then(|| html! { em { "itself" } });
    html! {
        details open[depth < OPEN_DEPTH && node.group.is_none()] {
            summary.row style={ "--d:" (depth) } data-d=(depth) data-b=(node.inclusive.all) {
                (cells(&label, &node.inclusive, most))
            }
            @if let Some(itself) = itself { (leaf(&itself, &node.own, depth + 1, most)) }
            @for inner in &node.inside { (branch(inner, depth + 1, most)) }
        }
    }
}

fn leaf(label: &Markup, sums: &Sums, depth: usize, most: &Sums) -> Markup {
    html! {
        div.row style={ "--d:" (depth) } data-d=(depth) data-b=(sums.all) { (cells(label, sums, most)) }
    }
}

fn cells(label: &Markup, sums: &Sums, most: &Sums) -> Markup {
    let bytes = |bytes| if bytes == 0 { "–".to_owned() } else { size(bytes) };
    let heat = |part, most| format!("--h:{:.1}%", share(part, most));
    html! {
        span.what { (label) }
        span.num.heat style=(heat(sums.all, most.all)) { (size(sums.all)) }
        @for (index, (category, title)) in COLUMNS.into_iter().enumerate() {
            @let part = sums.parts[index];
            span.num.heat.{ "c" (category_index(category)) }.none[part == 0] style=(heat(part, most.parts[index])) {
                // For screen readers, which do not show columns.
                span.aside { (title) " " }
                (bytes(part))
            }
        }
        span.num.none[sums.others() == 0] { (bytes(sums.others())) }
    }
}
