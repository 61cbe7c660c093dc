//! A row of the layers.

use std::sync::Arc;

use memlab_trace::LayerView;

use memlab_base::filter::{Field, Filterable};
use memlab_base::text::{NOT_CALLED, layer_name};
use memlab_follow::snapshot::{GpuTime, Related};

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
    /// What it had the GPU do itself, and with all inside it; `None`: that was not recorded.
    pub times: Option<(GpuTime, GpuTime)>,
    /// Whether the inclusive figures are shown.
    pub is_inclusive: bool,
    /// What it has to do with, where a filter asks.
    pub(super) related: Option<Arc<Related>>,
}

impl LayerItem {
    /// The figures shown: inclusive ones for a layer that is closed over others, or where that was asked for.
    pub fn figures(&self) -> &LayerView {
        if self.shows_inclusive() { &self.inclusive } else { &self.own }
    }

    /// The GPU time shown, likewise.
    pub fn time(&self) -> Option<GpuTime> {
        self.times.map(|(own, inclusive)| if self.shows_inclusive() { inclusive } else { own })
    }

    fn shows_inclusive(&self) -> bool {
        self.is_inclusive || self.is_open == Some(false)
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
