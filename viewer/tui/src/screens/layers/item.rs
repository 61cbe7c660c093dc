//! A row of the layers.

use std::sync::Arc;

use memlab_trace::{BlockLayer, LayerView};

use memlab_base::filter::{Field, Filterable};
use memlab_base::query::HeldMemory;
use memlab_base::text::{NOT_CALLED, layer_name};
use memlab_follow::snapshot::{GpuTime, Related};

/// A layer: the outermost module's id and the name in it; `None`: outside any layer.
pub type LayerKey = (u32, Option<String>);

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerItem {
    /// The layer.
    pub key: LayerKey,
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
    /// True if inclusive figures are shown.
    pub is_inclusive: bool,
    /// Related lines, layers and categories, if a filter needs them.
    pub(super) related: Option<Arc<Related>>,
}

impl LayerItem {
    /// The displayed figures: inclusive for a closed layer with children, or on request.
    pub fn figures(&self) -> &LayerView {
        if self.shows_inclusive() { &self.inclusive } else { &self.own }
    }

    /// The displayed GPU time, likewise.
    pub fn time(&self) -> Option<GpuTime> {
        self.times.map(|(own, inclusive)| if self.shows_inclusive() { inclusive } else { own })
    }

    fn shows_inclusive(&self) -> bool {
        self.is_inclusive || self.is_open == Some(false)
    }

    /// The memory of the displayed figures.
    pub fn held_memory(&self) -> HeldMemory {
        let (root, name) = &self.key;
        let layer = BlockLayer { root: *root, name: name.as_deref().map(Into::into) };
        HeldMemory::Layer { layer, with_inner: self.shows_inclusive() }
    }

    fn related(&self) -> impl Iterator<Item = &Related> {
        self.related.as_deref().into_iter()
    }

    /// Full name.
    pub fn name(&self) -> &str {
        match self.root_name() {
            Some(root) if self.is_root() && root != self.class() => root,
            _ if self.is_root() && self.key.0 == 0 => NOT_CALLED,
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

    /// Last part of the name.
    pub fn last_name(&self) -> &str {
        if self.is_root() || self.name().starts_with('<') {
            return self.name();
        }
        self.name().rsplit('.').next().unwrap_or_default()
    }

    /// Class of the module.
    pub fn class(&self) -> &str {
        self.own.class.as_deref().unwrap_or_default()
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
