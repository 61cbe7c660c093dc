//! The layers: the tree of modules, as their names nest them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use memlab_trace::LayerView;

use super::table::{Column, TableState, bytes_text};
use super::{App, Moment};
use crate::filter::{Field, Row};
use crate::format::Units;
use crate::snapshot::Related;
use crate::text::{NOT_CALLED, layer_name};

/// A layer: the outermost module's id and the name in it; `None`: what is outside any layer.
pub type LayerKey = (u32, Option<String>);

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerItem {
    /// Which layer it is.
    pub key: LayerKey,
    /// How deep it is indented.
    pub depth: u16,
    /// Whether it is open; `None`: there is nothing inside it.
    pub is_open: Option<bool>,
    /// Its own figures.
    pub own: LayerView,
    /// Those of it and all inside it.
    pub inclusive: LayerView,
    /// Whether the inclusive figures are shown.
    pub is_inclusive: bool,
    /// What it has to do with, where a filter asks.
    related: Option<Arc<Related>>,
}

impl LayerItem {
    /// The figures shown: inclusive ones for a layer that is closed over others, or where that was asked for.
    pub fn figures(&self) -> &LayerView {
        if self.is_inclusive || self.is_open == Some(false) { &self.inclusive } else { &self.own }
    }

    fn related(&self) -> impl Iterator<Item = &Related> {
        self.related.as_deref().into_iter()
    }

    /// The name in full.
    pub fn name(&self) -> &str {
        match self.root_name() {
            Some(root) if self.is_root() && root != self.class() => root,
            _ if self.is_root() && self.key.0 == 0 => NOT_CALLED,
            _ => layer_name(self.key.1.as_deref()),
        }
    }

    /// What the outermost module is called, if that is known.
    pub fn root_name(&self) -> Option<&str> {
        self.own.root_name.as_deref().filter(|root| !root.is_empty())
    }

    /// Whether it is an outermost module.
    pub fn is_root(&self) -> bool {
        self.key.1.as_deref() == Some("")
    }

    /// The last part of the name.
    pub fn last_name(&self) -> &str {
        if self.is_root() || self.name().starts_with('<') {
            return self.name();
        }
        self.name().rsplit('.').next().unwrap_or_default()
    }

    /// The module's class.
    pub fn class(&self) -> &str {
        self.own.class.as_deref().unwrap_or_default()
    }
}

impl Row for LayerItem {
    fn texts(&self) -> Vec<&str> {
        vec![self.name(), self.class(), self.own.root_class.as_deref().unwrap_or_default()]
    }

    fn bytes(&self) -> u64 {
        self.figures().live_bytes.max(self.figures().live_bytes_at_peak)
    }

    fn field(&self, field: Field) -> Vec<&str> {
        match field {
            Field::Layer => vec![self.name()],
            Field::Class => vec![self.class()],
            Field::Category => {
                self.related().flat_map(|related| &related.categories).map(|category| category.as_str()).collect()
            }
            Field::Line => self.related().flat_map(|related| &related.places).map(String::as_str).collect(),
            Field::Function => self.related().flat_map(|related| &related.functions).map(|name| &**name).collect(),
            _ => Vec::new(),
        }
    }
}

/// The columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerColumn {
    /// Live at the moment shown.
    Now,
    /// Live at the device's peak.
    AtPeak,
    /// The most its parameters took.
    Parameters,
    /// The most their gradients took.
    Gradients,
    /// The most the optimizer kept for it.
    Optimizer,
    /// The most its activations took.
    Activations,
    /// Handed out in forward over the run.
    Forward,
    /// Handed out in backward over the run.
    Backward,
    /// Its name.
    Name,
}

impl Column for LayerColumn {
    type Row = LayerItem;

    const ALL: &'static [Self] = &[
        Self::Now,
        Self::AtPeak,
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Activations,
        Self::Forward,
        Self::Backward,
        Self::Name,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::AtPeak => "at peak",
            Self::Parameters => "params",
            Self::Gradients => "grads",
            Self::Optimizer => "optim",
            Self::Activations => "activ",
            Self::Forward => "Σ forward",
            Self::Backward => "Σ backwd",
            Self::Name => "layer",
        }
    }

    fn columns(self) -> u16 {
        if self == Self::Name { 0 } else { 10 }
    }

    fn shown_from(self) -> u16 {
        match self {
            Self::Now | Self::AtPeak | Self::Name => 0,
            Self::Parameters | Self::Activations => 72,
            Self::Gradients | Self::Optimizer => 96,
            Self::Forward | Self::Backward => 124,
        }
    }

    fn figure(self, row: &LayerItem) -> Option<f64> {
        self.bytes(row).map(|bytes| bytes as f64)
    }

    fn compare_names(a: &LayerItem, b: &LayerItem) -> Ordering {
        (a.key.0, natural(a.key.1.as_deref())).cmp(&(b.key.0, natural(b.key.1.as_deref())))
    }

    fn text(self, row: &LayerItem, units: Units) -> String {
        self.bytes(row).map(|bytes| bytes_text(bytes, units)).unwrap_or_default()
    }

    fn of_moment(moment: Moment) -> Option<Self> {
        Some(match moment {
            Moment::Now | Moment::Then => Self::Now,
            Moment::Peak => Self::AtPeak,
        })
    }
}

impl LayerColumn {
    fn bytes(self, row: &LayerItem) -> Option<u64> {
        let view = row.figures();
        Some(match self {
            Self::Now => view.live_bytes,
            Self::AtPeak => view.live_bytes_at_peak,
            Self::Parameters => view.parameter_bytes,
            Self::Gradients => view.gradient_bytes,
            Self::Optimizer => view.optimizer_state_bytes,
            Self::Activations => view.activation_bytes,
            Self::Forward => view.forward_bytes,
            Self::Backward => view.backward_bytes,
            Self::Name => return None,
        })
    }
}

/// A key that puts `h.2` before `h.10`.
fn natural(name: Option<&str>) -> Option<Vec<(u64, &str)>> {
    Some(name?.split('.').map(|part| (part.parse().unwrap_or(u64::MAX), part)).collect())
}

/// How the layers are shown.
#[derive(Clone, Debug)]
pub struct LayersState {
    /// Order and cursor.
    pub table: TableState<LayerColumn>,
    /// Those opened or closed by hand: the others are open down to [`OPEN_DEPTH`].
    turned: HashSet<LayerKey>,
    /// Whether those below that are open too.
    all_open: bool,
}

/// Layers above this depth are open at first: the outermost module and what is right inside it are seen.
const OPEN_DEPTH: u16 = 1;

impl Default for LayersState {
    fn default() -> Self {
        Self { table: TableState::new(LayerColumn::Now), turned: HashSet::new(), all_open: false }
    }
}

impl LayersState {
    /// Opens all, or closes all again.
    pub(super) fn turn_all(&mut self) {
        self.all_open = !self.all_open;
        self.turned.clear();
    }

    pub(super) fn follow(&mut self, old: Moment, new: Moment) {
        self.table.follow(old, new);
    }

    fn is_open(&self, key: &LayerKey, depth: u16) -> bool {
        (self.all_open || depth < OPEN_DEPTH) != self.turned.contains(key)
    }
}

/// A module and those inside it.
#[derive(Default)]
struct Node {
    own: LayerView,
    inside: BTreeMap<String, Node>,
}

impl App {
    /// The rows of the tree. With a filter, the layers that pass it, flat and by their full names.
    pub fn layer_items(&self) -> Vec<LayerItem> {
        let Some(device) = self.device() else { return Vec::new() };
        if !self.filter.is_empty() {
            return self.flat_layer_items();
        }
        let mut roots: BTreeMap<u32, Node> = BTreeMap::new();
        let mut outside = Vec::new();
        for view in &device.layers {
            match view.name.as_deref() {
                None => outside.push(self.layer_item((0, None), 0, view.clone(), view.clone())),
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
            level.push((self.layer_item(key, 0, node.own.clone(), sum(node)), Some(node)));
        }
        let mut items = Vec::new();
        self.push_layers(level, &mut items);
        items
    }

    /// The layers that pass the filter, one beside the other.
    pub fn flat_layer_items(&self) -> Vec<LayerItem> {
        let views = self.device().map_or(&[][..], |device| &device.layers);
        let item = |view: &LayerView| {
            let name = view.name.as_deref().map(str::to_owned);
            let root = if name.is_none() { 0 } else { view.root };
            self.layer_item((root, name), 0, view.clone(), view.clone())
        };
        let mut items: Vec<_> = views.iter().map(item).filter(|item| self.filter.passes(item)).collect();
        items.sort_by(|a, b| self.layers.table.compare(a, b, self.moment));
        items
    }

    /// Puts a layer and, if it is open, what is inside it.
    fn push_layer(&self, mut item: LayerItem, node: Option<&Node>, items: &mut Vec<LayerItem>) {
        let (key, depth, root_name) = (item.key.clone(), item.depth, item.own.root_name.clone());
        let inside = node.map(|node| &node.inside).filter(|inside| !inside.is_empty());
        let is_open = inside.is_some() && self.layers.is_open(&key, depth);
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
                (self.layer_item((key.0, Some(name)), depth + 1, own, sum(node)), Some(node))
            })
            .collect();
        self.push_layers(level, items);
    }

    /// Puts layers side by side in their order: that of all they hold, so that opening one does not move it.
    fn push_layers(&self, mut level: Vec<(LayerItem, Option<&Node>)>, items: &mut Vec<LayerItem>) {
        level.iter_mut().for_each(|(item, _)| item.is_inclusive = true);
        level.sort_by(|(a, _), (b, _)| self.layers.table.compare(a, b, self.moment));
        for (mut item, node) in level {
            item.is_inclusive = self.inclusive;
            self.push_layer(item, node, items);
        }
    }

    fn layer_item(&self, key: LayerKey, depth: u16, own: LayerView, inclusive: LayerView) -> LayerItem {
        let relations = self.device().and_then(|device| device.relations.as_ref());
        let related = match self.filter.asks_for_relations() {
            true => relations.and_then(|relations| relations.of_layer(key.0, key.1.as_deref())),
            false => None,
        };
        LayerItem { key, depth, is_open: None, own, inclusive, is_inclusive: self.inclusive, related }
    }

    /// Opens the row under the cursor, or closes it or the one it is in.
    pub(super) fn open_layer(&mut self, open: bool) {
        let items = self.layer_items();
        let row = self.layers.table.selected;
        let Some(item) = items.get(row) else { return };
        match item.is_open {
            Some(is_open) if is_open != open => self.turn_layer(),
            _ if !open && item.depth > 0 => {
                if let Some(around) = items[..row].iter().rposition(|other| other.depth < item.depth) {
                    self.layers.table.selected = around;
                }
            }
            _ => {}
        }
    }

    /// Opens the row under the cursor if it is closed, and closes it if it is open.
    pub(super) fn turn_layer(&mut self) {
        let items = self.layer_items();
        let Some(item) = items.get(self.layers.table.selected) else { return };
        if item.is_open.is_some() && !self.layers.turned.remove(&item.key) {
            self.layers.turned.insert(item.key.clone());
        }
    }
}

/// The node with a qualified name, made if need be. A name that is not known yet (`<A.B>`) is one part.
fn node_of<'n>(root: &'n mut Node, name: &str) -> &'n mut Node {
    let parts: Vec<&str> = match name {
        "" => Vec::new(),
        _ if name.starts_with('<') => vec![name],
        // As deep as anybody nests; a hostile name is not taken apart further.
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
    fn numbers_in_names_count_as_numbers() {
        let mut names = ["h.10", "h.2", "head", ""].map(|name| natural(Some(name)));
        names.sort();
        assert_eq!(
            names,
            ["", "h.2", "h.10", "head"]
                .map(|name| natural(Some(name)))
                .map(|name| name)
                .into_iter()
                .collect::<Vec<_>>()[..]
        );
    }

    #[test]
    fn a_hostile_name_is_not_nested_without_end() {
        let mut root = Node::default();
        node_of(&mut root, &"a.".repeat(100_000)).own.live_bytes = 5;
        assert_eq!(sum(&root).live_bytes, 5);
    }
}
