//! Shared names of lines and layers: ranks run the same code, so all of them use one copy of each name.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use memlab_trace::{LayerView, Line};

/// A layer, identified by names that are equal in every rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layer {
    /// Name of its outermost module, as in [`LayerView`].
    pub root: Option<Arc<str>>,
    /// Its qualified name there; `None`: outside any layer.
    pub name: Option<Arc<str>>,
    /// Its class, if known.
    pub class: Option<Arc<str>>,
}

/// The names found so far.
#[derive(Default)]
pub struct Interned {
    lines: Mutex<HashSet<Arc<Line>>>,
    layers: Mutex<HashSet<Arc<Layer>>>,
}

impl Interned {
    pub(crate) fn line(&self, line: &Arc<Line>) -> Arc<Line> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lines.get(line) {
            return known.clone();
        }
        lines.insert(line.clone());
        line.clone()
    }

    pub(crate) fn layer(&self, view: &LayerView) -> Arc<Layer> {
        let layer = match view.name {
            None => Layer::default(),
            Some(_) => Layer { root: view.root_name.clone(), name: view.name.clone(), class: view.class.clone() },
        };
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = layers.get(&layer) {
            return known.clone();
        }
        let layer = Arc::new(layer);
        layers.insert(layer.clone());
        layer
    }
}
