//! GPU time of lines, layers and kernels over the run.

use std::collections::HashMap;
use std::sync::Arc;

use memlab_trace::{BusyView, GpuWorkView, Line, Model, WorkTotals};

use memlab_base::kernels::KernelTime;
use memlab_units::format;

/// GPU time of a line or a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuTime {
    /// Totals.
    pub totals: WorkTotals,
    /// Part of the time in forward; for layers only.
    pub forward_nanoseconds: u64,
    /// Part of the time in backward.
    pub backward_nanoseconds: u64,
    /// Time of the whole device, to compute the share.
    pub device_nanoseconds: u64,
}

impl GpuTime {
    /// Returns zero GPU time on the same device.
    pub fn none(&self) -> Self {
        Self { device_nanoseconds: self.device_nanoseconds, ..Self::default() }
    }

    /// Adds the GPU time of another line or layer on the same device.
    pub fn add(&mut self, other: &Self) {
        self.totals.add(other.totals);
        self.forward_nanoseconds = self.forward_nanoseconds.saturating_add(other.forward_nanoseconds);
        self.backward_nanoseconds = self.backward_nanoseconds.saturating_add(other.backward_nanoseconds);
    }
}

/// Work on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuTimes {
    /// Totals.
    pub total: WorkTotals,
    /// Time during which the device was busy.
    pub busy: BusyView,
    /// Recorded part: the whole run, or some of its steps.
    pub part: String,
    /// Times by kernel and copy; empty unless requested.
    pub kernels: Vec<KernelTime>,
    lines: HashMap<Option<Arc<Line>>, GpuTime>,
    layers: HashMap<(u32, Option<Arc<str>>), GpuTime>,
}

impl GpuTimes {
    pub(super) fn new(model: &Model, work: &GpuWorkView, with_kernels: bool) -> Self {
        let device_nanoseconds = work.total.nanoseconds;
        let line = |row: &memlab_trace::LineWorkView| GpuTime {
            totals: row.totals,
            backward_nanoseconds: row.backward_nanoseconds,
            forward_nanoseconds: 0,
            device_nanoseconds,
        };
        let layer = |row: &memlab_trace::LayerWorkView| GpuTime {
            totals: row.totals,
            backward_nanoseconds: row.backward_nanoseconds,
            forward_nanoseconds: row.forward_nanoseconds,
            device_nanoseconds,
        };
        Self {
            total: work.total,
            busy: work.busy,
            part: format::timed_part(model.steps_timed(), model.steps_ended()),
            kernels: if with_kernels { work.kernels.iter().map(KernelTime::new).collect() } else { Vec::new() },
            lines: work.lines.iter().map(|row| (row.line.clone(), line(row))).collect(),
            layers: work.layers.iter().map(|row| ((row.root, row.name.clone()), layer(row))).collect(),
        }
    }

    /// GPU time of a line.
    pub fn of_line(&self, line: Option<&Arc<Line>>) -> GpuTime {
        self.lines.get(&line.cloned()).copied().unwrap_or(self.nothing())
    }

    /// GPU time of a layer, without the layers inside it.
    pub fn of_layer(&self, root: u32, name: Option<&Arc<str>>) -> GpuTime {
        self.layers.get(&(root, name.cloned())).copied().unwrap_or(self.nothing())
    }

    fn nothing(&self) -> GpuTime {
        GpuTime { device_nanoseconds: self.total.nanoseconds, ..GpuTime::default() }
    }
}
