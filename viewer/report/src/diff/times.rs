//! GPU time of two runs, over the whole runs, independent of the compared moments.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::{ByScope, GpuWorkView};

use super::change::{Change, order};
use super::layers::{self, LayerChange};
use super::lines::{self, LineChange, LineFigures};
use super::side::Side;
use memlab_base::holdings::LayerName;
use memlab_base::kernels::{Kernel, short};

/// Changes of GPU time.
#[derive(Clone, Debug)]
pub struct TimeDifference {
    /// All work on the device.
    pub total: Change,
    /// By line, greatest change first; the same time in each scope.
    pub lines: ByScope<Vec<LineChange>>,
    /// By layer, greatest change first.
    pub layers: Vec<LayerChange>,
    /// By kernel and kind of copy, greatest change first.
    pub kernels: Vec<KernelChange>,
}

/// Change of a kernel's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelChange {
    /// Readable name.
    pub name: String,
    /// Short name.
    pub short_name: String,
    /// Nanoseconds.
    pub change: Change,
}

/// Compares two runs; `None`: one of them has no times, or both are the same run.
pub(super) fn compare(before: &Side, after: &Side) -> Option<TimeDifference> {
    let (work_before, work_after) = (before.work.as_ref()?, after.work.as_ref()?);
    if before.named.path == after.named.path {
        return None;
    }
    let [all_before, all_after] = [work_before, work_after].map(|work| &work[memlab_trace::Scope::Users]);
    Some(TimeDifference {
        total: Change { before: all_before.total.nanoseconds, after: all_after.total.nanoseconds },
        lines: ByScope::from_fn(|scope| {
            let [figures_before, figures_after] = [work_before, work_after].map(|work| line_figures(&work[scope]));
            lines::compare((before, &figures_before), (after, &figures_after), scope)
        }),
        layers: layers::compare((before, layer_figures(all_before)), (after, layer_figures(all_after))),
        kernels: kernels(all_before, all_after),
    })
}

fn line_figures(work: &GpuWorkView) -> LineFigures {
    work.lines.iter().map(|row| (row.line.clone(), row.totals.nanoseconds)).collect()
}

fn layer_figures(work: &GpuWorkView) -> Vec<(LayerName, u64)> {
    work.layers.iter().map(|row| (row.to_layer().into(), row.totals.nanoseconds)).collect()
}

fn kernels(before: &GpuWorkView, after: &GpuWorkView) -> Vec<KernelChange> {
    let mut changes: BTreeMap<Arc<str>, Change> = BTreeMap::new();
    for row in &before.kernels {
        changes.entry(row.name.clone()).or_default().before = row.totals.nanoseconds;
    }
    for row in &after.kernels {
        changes.entry(row.name.clone()).or_default().after = row.totals.nanoseconds;
    }
    let kernel = |(recorded, change): (Arc<str>, Change)| {
        let (name, short_name) = match Kernel::of(&recorded) {
            Kernel::Named(name) => (name.to_string(), short(&name)),
            Kernel::Copy(..) | Kernel::Fill => (recorded.to_string(), recorded.to_string()),
        };
        KernelChange { name, short_name, change }
    };
    let mut kernels: Vec<KernelChange> = changes.into_iter().map(kernel).collect();
    kernels.sort_by(|a, b| order(a.change).cmp(&order(b.change)).then_with(|| a.name.cmp(&b.name)));
    kernels
}
