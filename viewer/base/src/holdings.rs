//! Memory held by lines, layers and categories of one device at one moment.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::record::Phase;
use memlab_trace::{
    BlockLayer, ByScope, Category, CategoryView, DeviceView, LayerView, Line, LineView, Model, RangePath, RangeView,
    ResolvedSnapshot, Scope,
};

use crate::text::compare_names;

/// Held memory for reports, exports and comparisons of runs, without empty entries.
///
/// The lines sum to the allocated bytes plus other arrays. So do the layers. The categories sum to the used bytes.
///
/// The dashboard compares steps by [`MomentHoldings`](crate::query::MomentHoldings), the unfiltered views of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Bytes handed out by PyTorch's allocator.
    pub allocated_bytes: u64,
    /// Bytes reserved by PyTorch's allocator.
    pub reserved_bytes: u64,
    /// Bytes in use on the whole device.
    pub used_bytes: u64,
    /// Lines that hold memory, largest first; the same memory in each scope.
    pub lines: ByScope<Vec<HeldLine>>,
    /// Layers that hold memory, largest first.
    pub layers: Vec<HeldLayer>,
    /// Ranges with held allocations, largest first; empty if the program names no range.
    pub ranges: Vec<HeldRange>,
    /// Categories that hold memory, in the order of [`Category::ALL`].
    pub categories: Vec<(Category, u64)>,
}

/// Memory of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldLine {
    /// The line; `None`: no Python frame of the user's code.
    pub line: Option<Arc<Line>>,
    /// Bytes held.
    pub bytes: u64,
    /// Bytes allocated in backward.
    pub backward_bytes: u64,
}

/// Name of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerName {
    /// As [`LayerView::root`].
    pub root: u32,
    /// As [`LayerView::root_class`].
    pub root_class: Option<Arc<str>>,
    /// As [`LayerView::root_name`].
    pub root_name: Option<Arc<str>>,
    /// As [`LayerView::name`].
    pub name: Option<Arc<str>>,
    /// As [`LayerView::class`].
    pub class: Option<Arc<str>>,
}

impl From<LayerView> for LayerName {
    fn from(view: LayerView) -> Self {
        let LayerView { root, root_class, root_name, name, class, .. } = view;
        Self { root, root_class, root_name, name, class }
    }
}

impl From<LayerName> for LayerView {
    fn from(name: LayerName) -> Self {
        let LayerName { root, root_class, root_name, name, class } = name;
        Self { root, root_class, root_name, name, class, ..Self::default() }
    }
}

/// Names of the layers of a device that ever held memory.
pub struct LayerNames(BTreeMap<BlockLayer, LayerName>);

impl LayerNames {
    /// Makes the names of a run.
    pub fn of(model: &Model, device: i32) -> Self {
        let layers = model.layers(device).into_iter();
        Self(layers.map(|view| (BlockLayer { root: view.root, name: view.name.clone() }, view.into())).collect())
    }

    /// Returns the whole name of a layer.
    pub fn name(&self, layer: BlockLayer) -> LayerName {
        let known = self.0.get(&layer).cloned().unwrap_or_default();
        LayerName { root: layer.root, name: layer.name, ..known }
    }
}

/// Memory of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldLayer {
    /// The layer.
    pub layer: LayerName,
    /// Bytes held.
    pub bytes: u64,
}

/// Memory allocated in a range, without the ranges inside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldRange {
    /// As [`RangeView::path`].
    pub path: RangePath,
    /// Bytes held.
    pub bytes: u64,
}

impl Holdings {
    /// Sum of the lines: allocated bytes and other arrays.
    pub fn attributed_bytes(&self) -> u64 {
        let of = |(category, bytes): &(Category, u64)| if *category == Category::OtherArrays { *bytes } else { 0 };
        self.allocated_bytes.saturating_add(self.categories.iter().map(of).sum())
    }

    /// Holdings at the moment of a snapshot.
    pub fn at_moment(snapshot: &ResolvedSnapshot, device: i32) -> Self {
        let lines = |scope: Scope| {
            let mut lines: BTreeMap<Option<Arc<Line>>, HeldLine> = BTreeMap::new();
            for block in snapshot.attributed(device) {
                let line = snapshot.final_model.line_in(block.stack, scope);
                let held = lines.entry(line.clone()).or_insert_with(|| HeldLine { line, ..HeldLine::default() });
                held.bytes = held.bytes.saturating_add(block.bytes);
                if block.phase == Phase::Backward {
                    held.backward_bytes = held.backward_bytes.saturating_add(block.bytes);
                }
            }
            lines.into_values().collect::<Vec<_>>()
        };
        let mut layers: BTreeMap<BlockLayer, u64> = BTreeMap::new();
        for block in snapshot.attributed(device) {
            let held = layers.entry(snapshot.final_model.layer_of(&block)).or_default();
            *held = held.saturating_add(block.bytes);
        }
        let names = LayerNames::of(&snapshot.final_model, device);
        let layer = |(layer, bytes): (BlockLayer, u64)| HeldLayer { layer: names.name(layer), bytes };
        let mut ranges: BTreeMap<RangePath, u64> = BTreeMap::new();
        for block in snapshot.attributed(device) {
            let held = ranges.entry(snapshot.final_model.range_path(block.range)).or_default();
            *held = held.saturating_add(block.bytes);
        }
        let totals = snapshot.model.totals(device);
        Self {
            allocated_bytes: totals.allocated_bytes,
            reserved_bytes: totals.reserved_bytes,
            used_bytes: snapshot.used_bytes(device),
            lines: ByScope::from_fn(|scope| sorted_lines(lines(scope))),
            layers: layers.into_iter().map(layer).collect(),
            ranges: ranges.into_iter().map(|(path, bytes)| HeldRange { path, bytes }).collect(),
            categories: snapshot.categories(device).to_vec(),
        }
        .sorted()
    }

    /// Holdings at the device's peak, from the model's own records. Works for traces that no longer contain that
    /// moment.
    pub fn at_peak(model: &Model, device: &DeviceView) -> Self {
        Self::of_model(
            model,
            device.index,
            [device.peak_allocated_bytes, device.reserved_bytes_at_peak, device.used_bytes_at_peak],
            |line| (line.live_bytes_at_peak, line.backward_bytes_at_peak),
            |layer| layer.live_bytes_at_peak,
            |range| range.live_bytes_at_peak,
            |category| category.bytes_at_peak,
        )
    }

    /// Current holdings.
    pub fn now(model: &Model, device: &DeviceView) -> Self {
        Self::of_model(
            model,
            device.index,
            [device.allocated_bytes, device.reserved_bytes, device.used_bytes],
            |line| (line.live_bytes, line.backward_bytes),
            |layer| layer.live_bytes,
            |range| range.live_bytes,
            |category| category.bytes,
        )
    }

    fn of_model(
        model: &Model,
        device: i32,
        [allocated_bytes, reserved_bytes, used_bytes]: [u64; 3],
        of_line: impl Fn(&LineView) -> (u64, u64),
        of_layer: impl Fn(&LayerView) -> u64,
        of_range: impl Fn(&RangeView) -> u64,
        of_category: impl Fn(&CategoryView) -> u64,
    ) -> Self {
        let line = |view: LineView| {
            let (bytes, backward_bytes) = of_line(&view);
            HeldLine { line: view.line, bytes, backward_bytes }
        };
        let lines = |scope: Scope| model.lines_in(device, scope).into_iter().map(line).collect::<Vec<_>>();
        let layer = |view: LayerView| HeldLayer { bytes: of_layer(&view), layer: view.into() };
        Self {
            allocated_bytes,
            reserved_bytes,
            used_bytes,
            lines: ByScope::from_fn(|scope| sorted_lines(lines(scope))),
            layers: model.layers(device).into_iter().map(layer).collect(),
            ranges: (model.ranges(device).into_iter())
                .map(|view| HeldRange { bytes: of_range(&view), path: view.path })
                .collect(),
            categories: model.categories(device).iter().map(|view| (view.category, of_category(view))).collect(),
        }
        .sorted()
    }

    fn sorted(mut self) -> Self {
        self.layers.retain(|layer| layer.bytes > 0);
        let order = |held: &HeldLayer| (Reverse(held.bytes), held.layer.root);
        self.layers.sort_by(|a, b| {
            let names = || compare_names(a.layer.name.as_deref(), b.layer.name.as_deref());
            order(a).cmp(&order(b)).then_with(names)
        });
        self.ranges.retain(|range| range.bytes > 0);
        self.ranges.sort_by(|a, b| (b.bytes, &a.path).cmp(&(a.bytes, &b.path)));
        if self.ranges.iter().all(|range| range.path.is_empty()) {
            self.ranges.clear();
        }
        self.categories.retain(|(_, bytes)| *bytes > 0);
        self
    }
}

fn sorted_lines(mut lines: Vec<HeldLine>) -> Vec<HeldLine> {
    lines.retain(|line| line.bytes > 0);
    lines.sort_by(|a, b| (b.bytes, &a.line).cmp(&(a.bytes, &b.line)));
    lines
}
