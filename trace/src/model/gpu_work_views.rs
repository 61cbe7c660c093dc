//! Views of the work on a device: its sums, grouped.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::device_views::{LayerRow, class_of_row, layer_row};
use super::gpu_work::GpuWork;
use super::line::Line;
use super::scope::Scope;
use super::symbols::Symbols;
use super::views::{GpuWorkView, KernelView, LayerWorkView, LineWorkView, WorkTotals};
use memlab_format::record::Phase;

impl GpuWork {
    pub(crate) fn view(&self, scope: Scope, symbols: &Symbols) -> GpuWorkView {
        let mut kernels: BTreeMap<Arc<str>, WorkTotals> = BTreeMap::new();
        let mut lines: HashMap<Option<Arc<Line>>, LineWorkView> = HashMap::new();
        let mut layers: BTreeMap<LayerRow, LayerWorkView> = BTreeMap::new();
        // Names are resolved once per stack and layer, not once per sum.
        let mut line_of: HashMap<u32, Option<Arc<Line>>> = HashMap::new();
        let mut row_of: HashMap<u32, LayerRow> = HashMap::new();
        let mut counted = WorkTotals::default();
        for (&(stack, layer, phase, kernel), &totals) in &self.sums {
            counted.add(totals);
            kernels.entry(symbols.kernel_name(kernel)).or_default().add(totals);
            let line =
                line_of.entry(stack).or_insert_with(|| symbols.frame_of(stack, scope).map(|frame| frame.line.clone()));
            let in_phase = |wanted: Phase| if phase == wanted as u8 { totals.nanoseconds } else { 0 };
            let view = lines.entry(line.clone()).or_default();
            view.totals.add(totals);
            view.backward_nanoseconds += in_phase(Phase::Backward);
            let row = row_of.entry(layer).or_insert_with(|| layer_row(layer, symbols)).clone();
            let view = layers.entry(row).or_default();
            view.totals.add(totals);
            view.forward_nanoseconds += in_phase(Phase::Forward);
            view.backward_nanoseconds += in_phase(Phase::Backward);
            if view.class.is_none() {
                view.class = symbols.layer_class(layer);
            }
        }
        let rest = self.total.without(counted);
        if rest.calls > 0 {
            lines.entry(None).or_default().totals.add(rest);
            layers.entry((0, None)).or_default().totals.add(rest);
            kernels.entry(symbols.kernel_name(0)).or_default().add(rest);
        }
        let root_names = symbols.root_names(&layers.keys().map(|(root, _)| *root).collect());
        let mut view = GpuWorkView {
            total: self.total,
            busy: self.busy,
            kernels: kernels.into_iter().map(|(name, totals)| KernelView { name, totals }).collect(),
            lines: lines.into_iter().map(|(line, view)| LineWorkView { line, ..view }).collect(),
            layers: layers
                .into_iter()
                .map(|((root, name), view)| LayerWorkView {
                    root,
                    root_class: symbols.layer_class(root),
                    root_name: root_names.get(&root).cloned(),
                    class: class_of_row(root, name.as_ref(), view.class.clone(), symbols),
                    name,
                    ..view
                })
                .collect(),
        };
        view.kernels.sort_by(|a, b| (b.totals.nanoseconds, &a.name).cmp(&(a.totals.nanoseconds, &b.name)));
        view.lines.sort_by(|a, b| (b.totals.nanoseconds, &a.line).cmp(&(a.totals.nanoseconds, &b.line)));
        view.layers.sort_by(|a, b| {
            let (of_a, of_b) = (a.totals.nanoseconds, b.totals.nanoseconds);
            of_b.cmp(&of_a).then_with(|| (a.root, &a.name).cmp(&(b.root, &b.name)))
        });
        view
    }
}
