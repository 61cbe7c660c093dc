//! What is kept of a rank: some figures of each device, and what held the memory at its peak.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memlab_trace::record::{End, Header, MeshDimension, Stages};
use memlab_trace::{
    ByScope, Category, CategoryBytes, DeviceView, GrowthView, Line, Model, OomView, Progress, ReadError, Scope,
    StepView, load_whole,
};

use crate::interned::{Interned, Layer};
use crate::strip::strip;

/// The most lines and layers kept of a device: the largest. Those beyond hold less than a four-thousandth of the peak each, far
/// below what counts as a difference.
const MAX_ROWS: usize = 4096;

/// The most lines that grow kept of a device.
const MAX_GROWING_LINES: usize = 16;

/// The most ends of steps kept: the last.
const MAX_STEP_ENDS: usize = 256;

/// One rank.
#[derive(Clone, Debug)]
pub struct RankSummary {
    /// Its trace.
    pub path: PathBuf,
    /// Rank, host, process, command and start.
    pub header: Header,
    /// How it ended; `None`: it still runs, or was killed.
    pub end: Option<End>,
    /// The dimensions of the device meshes that it is in.
    pub mesh: Vec<MeshDimension>,
    /// The stages of a pipeline that it holds.
    pub stages: Stages,
    /// Nanoseconds from the start of the trace to its last event.
    pub duration: u64,
    /// Events of the trace.
    pub events: u64,
    /// Events missing in it.
    pub lost_events: u64,
    /// Garbled lines of it.
    pub skipped_lines: u64,
    /// Optimizer steps ended.
    pub steps_ended: u64,
    /// When the last of them ended: their numbers, and nanoseconds since 1970 by the clock of its host.
    pub step_ends: Vec<(u64, u64)>,
    /// Its devices, by index.
    pub devices: Vec<DeviceSummary>,
    /// The first out-of-memory event.
    pub first_oom: Option<OomView>,
    /// The number of out-of-memory events.
    pub oom_count: u64,
    /// The lines that its own report shows.
    pub scope: Scope,
}

/// One device of a rank.
#[derive(Clone, Debug, Default)]
pub struct DeviceSummary {
    /// Its figures.
    pub view: DeviceView,
    /// Its context at the end of the trace.
    pub context_bytes: u64,
    /// What categories held at the peak. They sum to the use of the device then.
    pub categories: CategoryBytes,
    /// What lines held at the peak, the most first.
    pub lines: ByScope<Vec<(Option<Arc<Line>>, u64)>>,
    /// What layers held at the peak, the most first.
    pub layers: Vec<(Arc<Layer>, u64)>,
    /// The lines that hold more after every step, the largest growth first.
    pub growth: ByScope<Vec<GrowthView>>,
    /// The line that allocated most over the run.
    pub busiest_line: Option<Arc<Line>>,
    /// The most allocated in equal parts of the duration; empty: not known.
    pub strip: Vec<u64>,
}

impl RankSummary {
    /// Reads a trace. `progress` is called about every MiB; if it breaks, the summary is that of what was read so far.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is no trace.
    pub fn read(
        path: &Path,
        names: &Interned,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self, ReadError> {
        let mut loaded = load_whole(path, progress)?;
        loaded.model.set_scope(None);
        Ok(Self::of(path, &loaded.model, loaded.skipped.count, names))
    }

    /// The summary of a trace that was read into `model`, but for `skipped_lines` garbled lines.
    pub fn of(path: &Path, model: &Model, skipped_lines: u64, names: &Interned) -> Self {
        let header = model.header().cloned().unwrap_or_default();
        Self {
            path: path.to_owned(),
            end: model.end(),
            mesh: model.mesh().to_vec(),
            stages: model.stages().clone(),
            duration: model.time(),
            events: model.events(),
            lost_events: model.lost_events(),
            skipped_lines,
            steps_ended: model.steps_ended(),
            step_ends: step_ends(model, header.start_unix_ns),
            devices: model.devices().into_iter().map(|view| DeviceSummary::of(model, view, names)).collect(),
            first_oom: model.ooms().into_iter().next(),
            oom_count: model.oom_count(),
            scope: model.scope(),
            header,
        }
    }

    /// Takes over how much there is by now from a model that need not know what it is for, nor of all `events`: what categories, lines
    /// and layers held at the peak, and which lines grow, stays as it was read last. The number of the peak's event becomes 0.
    pub fn update(&mut self, model: &Model, events: u64, skipped_lines: u64) {
        self.end = model.end();
        self.duration = model.time();
        self.events = events;
        self.lost_events = model.lost_events();
        self.skipped_lines = skipped_lines;
        self.steps_ended = model.steps_ended();
        self.step_ends = step_ends(model, self.header.start_unix_ns);
        self.oom_count = model.oom_count();
        if self.first_oom.is_none() {
            self.first_oom = model.ooms().into_iter().next();
        }
        for view in model.devices() {
            let view = DeviceView { peak_event: 0, ..view };
            let strip = strip(&model.timeline(view.index), model.time());
            match self.devices.iter_mut().find(|device| device.view.index == view.index) {
                Some(device) => (device.view, device.strip) = (view, strip),
                None => self.devices.push(DeviceSummary { view, strip, ..DeviceSummary::default() }),
            }
        }
    }

    /// Its number.
    pub fn rank(&self) -> u32 {
        self.header.rank.unwrap_or_default()
    }

    /// The device that it fills most; `None`: it allocated nothing.
    pub fn own_device(&self) -> Option<&DeviceSummary> {
        let fullness = |device: &&DeviceSummary| (device.view.peak_allocated_bytes, device.view.peak_used_bytes);
        self.devices.iter().rev().max_by_key(fullness)
    }
}

impl DeviceSummary {
    fn of(model: &Model, view: DeviceView, names: &Interned) -> Self {
        let index = view.index;
        let known = |line: &Option<Arc<Line>>| line.as_ref().map(|line| names.line(line));
        let categories = model.categories(index);
        let lines_of = |scope| {
            let lines = model.lines_in(index, scope).into_iter();
            largest(lines.map(|view| (known(&view.line), view.live_bytes_at_peak)))
        };
        let growth_of = |scope| {
            let mut growth = model.growth_in(index, scope);
            growth.retain(|view| view.is_steady);
            growth.truncate(MAX_GROWING_LINES);
            growth.into_iter().map(|view| GrowthView { line: known(&view.line), ..view }).collect()
        };
        let layers = model.layers(index);
        let busiest = model.lines_in(index, Scope::Users).into_iter().max_by_key(|line| line.allocated_bytes);
        Self {
            context_bytes: categories[Category::Context as usize].bytes,
            categories: categories.map(|category| category.bytes_at_peak),
            lines: ByScope::from_fn(lines_of),
            layers: largest(layers.iter().map(|layer| (names.layer(layer), layer.live_bytes_at_peak))),
            growth: ByScope::from_fn(growth_of),
            busiest_line: busiest.and_then(|view| known(&view.line)),
            strip: strip(&model.timeline(index), model.time()),
            view,
        }
    }

    /// Bytes that lines hold more after the last step than after warm-up, and how many more after each step.
    pub fn growth(&self, scope: Scope) -> (u64, f64) {
        let growth = &self.growth[scope];
        let bytes = growth.iter().map(|line| line.to_bytes.saturating_sub(line.from_bytes));
        (bytes.fold(0, u64::saturating_add), growth.iter().map(|line| line.bytes_per_step.max(0.0)).sum())
    }
}

fn step_ends(model: &Model, start_unix_ns: u64) -> Vec<(u64, u64)> {
    let steps = model.steps();
    let end_of = |step: &StepView| (step.index, start_unix_ns.saturating_add(step.end_time));
    steps[steps.len().saturating_sub(MAX_STEP_ENDS)..].iter().map(end_of).collect()
}

/// Rows that hold something, each name once, the most first.
fn largest<K: Clone + Eq + Hash + Ord>(rows: impl Iterator<Item = (K, u64)>) -> Vec<(K, u64)> {
    let mut held: HashMap<K, u64> = HashMap::new();
    for (name, bytes) in rows.filter(|(_, bytes)| *bytes > 0) {
        let sum = held.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }
    let mut rows: Vec<(K, u64)> = held.into_iter().collect();
    rows.sort_unstable_by(|(a, held), (b, other)| (Reverse(held), a).cmp(&(Reverse(other), b)));
    rows.truncate(MAX_ROWS);
    rows.shrink_to_fit();
    rows
}
