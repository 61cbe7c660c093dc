//! Relates lines, layers and categories that share memory, for filters.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use memlab_trace::{AttributionView, Category, Line};

/// A layer: the outermost module's id and the name in it; `None`: outside any layer.
type LayerKey = (u32, Option<Arc<str>>);

/// Everything related to the memory of a line or layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Related {
    /// Lines that allocated it: file and number.
    pub places: BTreeSet<String>,
    /// Functions of these lines.
    pub functions: BTreeSet<Arc<str>>,
    /// Layers that hold it, by name.
    pub layers: BTreeSet<Option<Arc<str>>>,
    /// Classes of these layers.
    pub classes: BTreeSet<Arc<str>>,
    /// Categories of the memory.
    pub categories: BTreeSet<Category>,
}

impl Related {
    fn note(&mut self, holder: &AttributionView) {
        self.places.extend(holder.line.as_ref().map(|line| format!("{}:{}", line.file, line.line.unwrap_or(0))));
        self.functions.extend(holder.line.as_ref().map(|line| line.function.clone()));
        self.layers.insert(holder.layer.name.clone());
        self.classes.extend(holder.class.clone());
        self.categories.insert(holder.category);
    }
}

/// Relations of the memory that is live at the shown moment or was live at the peak.
#[derive(Clone, Debug, Default)]
pub struct Relations {
    lines: HashMap<Option<Arc<Line>>, Arc<Related>>,
    layers: HashMap<LayerKey, Arc<Related>>,
}

impl Relations {
    /// Collects the relations of the holders.
    pub fn new(holders: &[AttributionView]) -> Self {
        let mut lines: HashMap<Option<Arc<Line>>, Related> = HashMap::new();
        let mut layers: HashMap<LayerKey, Related> = HashMap::new();
        for holder in holders.iter().filter(|holder| holder.live_bytes > 0 || holder.live_bytes_at_peak > 0) {
            lines.entry(holder.line.clone()).or_default().note(holder);
            layers.entry((holder.layer.root, holder.layer.name.clone())).or_default().note(holder);
        }
        Self {
            lines: lines.into_iter().map(|(line, related)| (line, Arc::new(related))).collect(),
            layers: layers.into_iter().map(|(layer, related)| (layer, Arc::new(related))).collect(),
        }
    }

    /// Relations of a line.
    pub fn of_line(&self, line: Option<&Arc<Line>>) -> Option<Arc<Related>> {
        self.lines.get(&line.cloned()).cloned()
    }

    /// Relations of a layer.
    pub fn of_layer(&self, root: u32, name: Option<&str>) -> Option<Arc<Related>> {
        self.layers.get(&(root, name.map(Arc::from))).cloned()
    }
}
