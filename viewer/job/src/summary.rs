//! The summary of a rank: figures of each device, and the holders of its peak.

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

/// The most lines and layers kept for a device, the largest ones.
///
/// The others hold less than 1/4000 of the peak each, far below any reported difference.
const MAX_ROWS: usize = 4096;

/// The most growing lines kept for a device.
const MAX_GROWING_LINES: usize = 16;

/// The most step ends kept, the latest ones.
const MAX_STEP_ENDS: usize = 256;

/// Summary of one rank.
#[derive(Clone, Debug)]
pub struct RankSummary {
    /// Path of its trace.
    pub path: PathBuf,
    /// Rank, host, process, command and start.
    pub header: Header,
    /// Recorded end; `None`: it still runs, or was killed.
    pub end: Option<End>,
    /// Dimensions of the device meshes that contain the rank.
    pub mesh: Vec<MeshDimension>,
    /// Stages of a pipeline held by the rank.
    pub stages: Stages,
    /// Nanoseconds from the start of the trace to its last event.
    pub duration: u64,
    /// Events in the trace.
    pub events: u64,
    /// Events missing from the trace.
    pub lost_events: u64,
    /// Garbled lines in the trace.
    pub skipped_lines: u64,
    /// Completed optimizer steps.
    pub steps_ended: u64,
    /// Ends of the latest steps: step number, and nanoseconds since 1970 by the clock of its host.
    pub step_ends: Vec<(u64, u64)>,
    /// Devices, by index.
    pub devices: Vec<DeviceSummary>,
    /// The first out-of-memory event.
    pub first_oom: Option<OomView>,
    /// Number of out-of-memory events.
    pub oom_count: u64,
    /// Scope of the lines in the rank's report.
    pub scope: Scope,
}

/// Summary of one device of a rank.
#[derive(Clone, Debug, Default)]
pub struct DeviceSummary {
    /// Totals.
    pub view: DeviceView,
    /// Bytes of the context at the end of the trace.
    pub context_bytes: u64,
    /// Bytes by category at the peak.
    ///
    /// They sum to the use of the device at that time.
    pub categories: CategoryBytes,
    /// Bytes by line at the peak, the largest first.
    pub lines: ByScope<Vec<(Option<Arc<Line>>, u64)>>,
    /// Bytes by layer at the peak, the largest first.
    pub layers: Vec<(Arc<Layer>, u64)>,
    /// Lines that hold more after every step, the fastest growth first.
    pub growth: ByScope<Vec<GrowthView>>,
    /// The line that allocated most over the run.
    pub busiest_line: Option<Arc<Line>>,
    /// Largest allocated bytes in equal parts of the duration; empty: unknown.
    pub strip: Vec<u64>,
}

impl RankSummary {
    /// Reads a trace.
    ///
    /// Calls `progress` about every MiB; if it breaks, returns the summary of the part read so far.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not a trace.
    pub fn read(
        path: &Path,
        names: &Interned,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self, ReadError> {
        let mut loaded = load_whole(path, progress)?;
        loaded.model.set_scope(None);
        Ok(Self::of(path, &loaded.model, loaded.skipped.count, names))
    }

    /// Summarizes a trace that was read into `model`, except for `skipped_lines` garbled lines.
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

    /// Updates the totals from a model that need not classify memory or contain all `events`.
    ///
    /// Attribution at the peak (categories, lines, layers) and growing lines keep their last values. The event number of the
    /// peak becomes 0.
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

    /// The rank's number.
    pub fn rank(&self) -> u32 {
        self.header.rank.unwrap_or_default()
    }

    /// Returns the fullest device; `None`: the rank allocated nothing.
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

    /// Bytes by which lines grew from warm-up to the last step, and their growth per step.
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

/// Rows that hold memory, one per name, the largest first.
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
