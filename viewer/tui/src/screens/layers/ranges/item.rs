//! A row of the ranges.

use memlab_trace::{RangePath, RangeView};

use memlab_base::filter::{Field, Filterable};
use memlab_base::ranges::RangeNode;

/// A row of the table.
#[derive(Clone, Debug)]
pub(in crate::screens::layers) struct RangeItem {
    pub(super) node: RangeNode,
    /// Its name in full.
    name: String,
    /// How deep it is indented.
    pub(super) depth: u16,
    /// Whether it is open; `None`: there is nothing inside it.
    pub(super) is_open: Option<bool>,
    /// Whether the inclusive figures are shown.
    pub(super) is_inclusive: bool,
}

impl RangeItem {
    pub(super) fn new(node: RangeNode, depth: u16, is_inclusive: bool) -> Self {
        Self { name: node.name(), node, depth, is_open: None, is_inclusive }
    }

    /// The range, and those around it.
    pub(super) fn path(&self) -> &RangePath {
        self.node.path()
    }

    /// The name in full.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// The figures shown: inclusive ones for a range that is closed over others, or where that was asked for.
    pub(super) fn figures(&self) -> &RangeView {
        if self.is_inclusive || self.is_open == Some(false) { &self.node.inclusive } else { &self.node.own }
    }
}

impl Filterable for RangeItem {
    fn texts(&self) -> Vec<&str> {
        vec![&self.name]
    }

    fn bytes(&self) -> u64 {
        self.figures().live_bytes.max(self.figures().live_bytes_at_peak)
    }

    fn field(&self, _field: Field) -> Vec<&str> {
        Vec::new()
    }
}
