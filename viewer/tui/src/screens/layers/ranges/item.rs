//! A row of the ranges.

use memlab_trace::{RangePath, RangeView};

use memlab_base::filter::{Field, Filterable};
use memlab_base::ranges::RangeNode;

/// A row of the table.
#[derive(Clone, Debug)]
pub(in crate::screens::layers) struct RangeItem {
    pub(super) node: RangeNode,
    /// Full name.
    name: String,
    /// Level of indentation.
    pub(super) depth: u16,
    /// True if the row is open; `None`: the row has no children.
    pub(super) is_open: Option<bool>,
    /// True if inclusive figures are shown.
    pub(super) is_inclusive: bool,
}

impl RangeItem {
    pub(super) fn new(node: RangeNode, depth: u16, is_inclusive: bool) -> Self {
        Self { name: node.name(), node, depth, is_open: None, is_inclusive }
    }

    /// Names of the enclosing ranges and the range.
    pub(super) fn path(&self) -> &RangePath {
        self.node.path()
    }

    /// Full name.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// The displayed figures: inclusive for a closed range with children, or on request.
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
