//! A row of the ranges.

use memlab_trace::{RangePath, RangeView};

use crate::context::ShownMoment;
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
    /// Bytes of the range alone at the displayed moment.
    pub(super) own_bytes: u64,
}

impl RangeItem {
    pub(super) fn new(node: RangeNode, depth: u16, moment: ShownMoment) -> Self {
        let own_bytes = match moment {
            ShownMoment::Peak => node.own.live_bytes_at_peak,
            ShownMoment::Now | ShownMoment::Cursor => node.own.live_bytes,
        };
        Self { name: node.name(), node, depth, is_open: None, own_bytes }
    }

    /// Names of the enclosing ranges and the range.
    pub(super) fn path(&self) -> &RangePath {
        self.node.path()
    }

    /// Full name.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// The displayed figures, which include inner ranges.
    pub(super) fn figures(&self) -> &RangeView {
        &self.node.inclusive
    }

    /// Live bytes at a moment.
    pub(super) fn bytes_at(&self, moment: ShownMoment) -> u64 {
        let figures = self.figures();
        if moment == ShownMoment::Peak { figures.live_bytes_at_peak } else { figures.live_bytes }
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
