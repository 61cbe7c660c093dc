//! Holders of memory at the peak of a plan. Layers that differ only in their number are one row.

use std::cmp::Reverse;
use std::sync::Arc;

use memlab_predict::plan::{Holding, Recording};
use memlab_trace::BlockLayer;
use serde::Serialize;

use crate::report::names;
use memlab_base::holdings::{LayerName, LayerNames};
use memlab_base::layer_groups::{LayerRow, grouped};
use memlab_units::format::size;

/// A holder of memory at the peak.
#[derive(Clone, Debug, Serialize)]
pub struct HoldingRow {
    /// Name of a line, a layer or a category.
    pub name: String,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Rows of holders with these names.
pub(super) fn rows<K>(all: &[(K, Holding)], name: impl Fn(&K) -> String) -> Vec<HoldingRow> {
    all.iter()
        .map(|(key, holding)| HoldingRow { name: name(key), bytes: holding.bytes, blocks: holding.blocks })
        .collect()
}

/// A layer that holds memory at the peak.
struct PlannedLayer {
    layer: LayerName,
    bytes: u64,
    blocks: u64,
}

impl LayerRow for PlannedLayer {
    type Figure = u64;

    fn layer(&self) -> (u32, Option<&str>, Option<&Arc<str>>) {
        (self.layer.root, self.layer.name.as_deref(), self.layer.class.as_ref())
    }

    fn figure(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }

    fn rename(&mut self, name: String) {
        self.layer.name = Some(name.into());
    }
}

/// Layers in groups, largest first.
pub(super) fn grouped_layers(recording: &Recording, layers: &[(BlockLayer, Holding)]) -> Vec<HoldingRow> {
    let known = LayerNames::of(&recording.model, recording.device);
    let layer = |(layer, holding): &(BlockLayer, Holding)| PlannedLayer {
        layer: known.name(layer.clone()),
        bytes: holding.bytes,
        blocks: holding.blocks,
    };
    let names = names::ReportNames::new(&recording.model);
    let mut groups: Vec<HoldingRow> = grouped(layers.iter().map(layer).collect())
        .into_iter()
        .map(|group| HoldingRow {
            name: names.layer(&group.sum.layer.clone().into()) + &group.words(size),
            bytes: group.sum.bytes,
            blocks: group.sum.blocks,
        })
        .collect();
    groups.sort_by_key(|row| Reverse(row.bytes));
    groups
}
