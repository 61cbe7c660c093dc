//! A row of the layers.

use crate::context::ShownMoment;
use std::borrow::Cow;
use std::sync::Arc;

use memlab_trace::{BlockLayer, LayerView};

use memlab_base::filter::{Field, Filterable};
use memlab_base::layer_tree::Group;
use memlab_base::query::HeldMemory;
use memlab_base::text::{NOT_CALLED, layer_name};
use memlab_follow::snapshot::{GpuTime, Related};

/// A layer: the outermost module's id and the name in it; `None`: outside any layer.
pub type LayerKey = (u32, Option<String>);

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerItem {
    /// The layer. The name of a group contains a range: `blocks.0–47`.
    pub key: LayerKey,
    /// Name without those of the layers around it.
    pub label: String,
    /// `None`: one layer.
    pub group: Option<Group>,
    /// Qualified name of the module with exactly this memory; `None`: a group among other layers.
    pub module: Option<String>,
    /// Level of indentation.
    pub depth: u16,
    /// True if the row is open; `None`: the row has no children.
    pub is_open: Option<bool>,
    /// Figures of the layer alone.
    pub own: LayerView,
    /// Figures including inner layers.
    pub inclusive: LayerView,
    /// GPU time of the layer alone, and including inner layers; `None`: not recorded.
    pub times: Option<(GpuTime, GpuTime)>,
    /// Bytes of the layer alone at the displayed moment.
    pub own_bytes: u64,
    /// Related lines, layers and categories, if a filter needs them.
    pub(super) related: Option<Arc<Related>>,
}

impl LayerItem {
    /// The displayed figures, which include inner layers.
    pub fn figures(&self) -> &LayerView {
        &self.inclusive
    }

    /// Live bytes at a moment.
    pub(super) fn bytes_at(&self, moment: ShownMoment) -> u64 {
        let figures = self.figures();
        if moment == ShownMoment::Peak { figures.live_bytes_at_peak } else { figures.live_bytes }
    }

    /// The displayed GPU time, which includes inner layers.
    pub fn time(&self) -> Option<GpuTime> {
        self.times.map(|(_, inclusive)| inclusive)
    }

    /// The memory of the displayed figures; `None`: a group among other layers.
    pub fn held_memory(&self) -> Option<HeldMemory> {
        let (root, name) = &self.key;
        let name = if name.is_some() { Some(self.module.as_deref()?.into()) } else { None };
        Some(HeldMemory::Layer { layer: BlockLayer { root: *root, name }, with_inner: self.is_open.is_some() })
    }

    fn related(&self) -> impl Iterator<Item = &Related> {
        self.related.as_deref().into_iter()
    }

    /// Full name.
    pub fn name(&self) -> &str {
        match self.root_name() {
            Some(root) if self.is_root() && root != self.class() => root,
            _ if self.is_root() && self.key.0 == 0 => NOT_CALLED,
            _ if self.is_root() && !self.class().is_empty() => self.class(),
            _ => layer_name(self.key.1.as_deref()),
        }
    }

    /// Name of the outermost module, if known.
    pub fn root_name(&self) -> Option<&str> {
        self.own.root_name.as_deref().filter(|root| !root.is_empty())
    }

    /// True for an outermost module.
    pub fn is_root(&self) -> bool {
        self.key.1.as_deref() == Some("")
    }

    /// Name in the tree.
    pub fn last_name(&self) -> &str {
        if self.label.is_empty() { self.name() } else { &self.label }
    }

    /// Class of the module.
    pub fn class(&self) -> &str {
        self.own.class.as_deref().unwrap_or_default()
    }

    /// Text after the name: the class, unless it is the name, with `group` in words.
    pub fn aside(&self, group: impl Fn(&Group) -> String) -> Cow<'_, str> {
        let class = if self.class() == self.name() { "" } else { self.class() };
        match &self.group {
            Some(of) => Cow::Owned(format!("{class} {}", group(of)).trim_start().to_owned()),
            None => Cow::Borrowed(class),
        }
    }
}

impl Filterable for LayerItem {
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
