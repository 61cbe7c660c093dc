//! Data of the screens: plain values taken from the models at one moment.
//!
//! The background thread creates them, and the screens only read them.

mod calls;
mod gpu_times;
mod relations;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memlab_job::{DeviceSummary, Job, RankSummary};
use memlab_trace::record::{Header, Phase};
use memlab_trace::{
    AllocationTotals, CategoryView, CodeOrigin, DeviceView, DriverView, EventKind, EventView, GpuWorkView, GrowthView,
    LayerView, Line, LineView, Model, OomView, RangeView, Replay, Scope, SegmentMap, Sources, StepView, StepWaitView,
    Timeline, TrainingView,
};

pub use self::calls::Calls;
pub use self::gpu_times::{GpuTime, GpuTimes};
pub use self::relations::{Related, Relations};
use crate::cards::CardStatus;
use memlab_base::file_names::FileNames;
use memlab_base::findings::{self, Finding, Words};
use memlab_base::query::{Comparison, Cursor, Detail, HoldersAnswer};
use memlab_base::ranges::range_name;
use memlab_base::text::missing_events;

/// All followed processes.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Processes, one per trace, by rank and pid.
    ///
    /// Empty: no trace yet.
    pub processes: Vec<ProcessSnapshot>,
    /// Moment of the live figures; `None`: the latest.
    pub cursor: Option<Cursor>,
    /// Level of detail.
    pub detail: Detail,
    /// The trace with the detail; `None`: all.
    pub trace: Option<PathBuf>,
    /// Comparison of two moments, if requested.
    pub comparison: Option<Arc<Comparison>>,
    /// Holders of the memory of a row, if requested and found.
    pub holders: Option<Arc<HoldersAnswer>>,
    /// State of this machine's cards; empty without a running process.
    pub cards: Arc<Vec<CardStatus>>,
    /// Comparison of the job's ranks; `None`: fewer than two ranks, or none read yet.
    pub job: Option<Arc<Job>>,
}

/// State of the process that writes the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessState {
    /// The part written before the viewer started is being read.
    Opening {
        /// Bytes read.
        read: u64,
        /// Bytes in the file.
        total: u64,
    },
    /// The process runs.
    #[default]
    Recording,
    /// The process is stopped (SIGSTOP, SIGTSTP, a debugger).
    Stopped,
    /// The process ended, and it or its launcher recorded the end.
    Ended {
        /// Exit code.
        code: Option<i32>,
        /// Signal that ended it.
        signal: Option<i32>,
    },
    /// The process is gone for an unknown reason.
    Killed,
    /// The trace cannot be read any further, so the process's state is unknown.
    Unreadable,
}

impl ProcessState {
    /// The state in one or two words.
    pub fn short(self) -> String {
        match self {
            Self::Opening { read, total } => format!("opening {}", memlab_units::format::percent(read, total)),
            Self::Recording => "recording".to_owned(),
            Self::Stopped => "stopped".to_owned(),
            Self::Ended { signal: Some(signal), .. } => memlab_base::signals::describe(signal),
            Self::Ended { code: Some(code @ 1..), .. } => format!("exit code {code}"),
            Self::Ended { .. } => "ended".to_owned(),
            Self::Killed => "killed".to_owned(),
            Self::Unreadable => "unreadable".to_owned(),
        }
    }

    /// Returns true if the trace is complete.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ended { .. } | Self::Killed | Self::Unreadable)
    }
}

/// One traced process.
#[derive(Clone, Debug, Default)]
pub struct ProcessSnapshot {
    /// Path of its trace.
    pub path: PathBuf,
    /// Identity of the process.
    pub header: Header,
    /// State of the process.
    pub state: ProcessState,
    /// Time of the latest event, in nanoseconds since the trace's start.
    pub time: u64,
    /// Events read so far.
    pub events_read: u64,
    /// Completed optimizer steps.
    pub steps_ended: u64,
    /// Phase of the latest event.
    pub phase: Phase,
    /// Devices, by index.
    pub devices: Vec<DeviceSnapshot>,
    /// The first out-of-memory errors.
    pub ooms: Vec<OomView>,
    /// Number of out-of-memory errors.
    pub oom_count: u64,
    /// Text of source lines, as far as the trace contains it.
    pub sources: Arc<Sources>,
    /// Names of source files in tables.
    pub file_names: Arc<FileNames>,
    /// Findings, most urgent first.
    pub findings: Vec<Finding>,
    /// The findings in one line; `None`: no device is known.
    pub verdict: Option<Words>,
    /// Scope of the shown lines.
    pub scope: Scope,
    /// The user's line that only calls libraries, if library lines are shown.
    pub dominant_library_call: Option<Arc<Line>>,
    /// Failures of memlab in this process.
    pub warnings: Vec<String>,
    /// Number of unreadable lines of the trace.
    pub skipped_lines: u64,
    /// Reason why the trace cannot be read any further.
    pub failure: Option<String>,
    /// Moment of the devices' live figures; `None`: the latest.
    pub shown_at: Option<ShownAt>,
    /// Latest events up to that moment, oldest first; empty if not requested.
    pub events: Arc<[EventView]>,
    /// Names of the ids in `events` and `segments`.
    pub names: Arc<SnapshotNames>,
    /// True if only figures are known: another trace is in front, and this one has no whole model.
    pub is_summary: bool,
}

/// A past moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownAt {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// Optimizer steps completed by then.
    pub steps_ended: u64,
    /// Phase of the process.
    pub phase: Phase,
    /// True if the trace no longer has the requested moment, and this is the earliest one.
    pub is_earliest: bool,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Source line.
    pub line: Arc<Line>,
    /// Owner of the code.
    pub origin: CodeOrigin,
}

/// Names of ids.
#[derive(Clone, Debug, Default)]
pub struct SnapshotNames {
    /// Frames of stacks, innermost first.
    pub stacks: HashMap<u32, Vec<StackFrame>>,
    /// Lines of stacks; absent: none.
    pub lines: HashMap<u32, Arc<Line>>,
    /// Qualified names of layers.
    pub layers: HashMap<u32, Arc<str>>,
    /// Ranges with the ranges around them.
    pub ranges: HashMap<u32, String>,
    /// Names of threads.
    pub threads: HashMap<u32, String>,
}

impl SnapshotNames {
    /// Adds the names of a stack and a layer.
    fn note(&mut self, model: &Model, stack: u32, layer: u32) {
        if stack != 0 && !self.stacks.contains_key(&stack) {
            let frames = std::iter::zip(model.frames(stack), model.frame_origins(stack));
            self.stacks.insert(stack, frames.map(|(line, origin)| StackFrame { line, origin }).collect());
            if let Some(line) = model.line_of(stack) {
                self.lines.insert(stack, line);
            }
        }
        if layer != 0
            && !self.layers.contains_key(&layer)
            && let Some(name) = model.layer_name(layer)
        {
            self.layers.insert(layer, name);
        }
    }
}

/// Figures of one line, with its growth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineFigures {
    /// Memory that the line allocated itself.
    pub own: LineView,
    /// Memory of the line and everything it called; `None` unless requested.
    pub inclusive: Option<AllocationTotals>,
    /// Growth per step, by the trend over the run; `None`: unknown for this call.
    pub growth_per_step: Option<f64>,
    /// Blocks allocated per second: recently while the program runs, over the run afterwards.
    pub allocations_per_second: f64,
}

/// One device of one process.
#[derive(Clone, Debug, Default)]
pub struct DeviceSnapshot {
    /// Totals.
    pub totals: DeviceView,
    /// Memory over time.
    pub timeline: Timeline,
    /// Largest allocated bytes in equal parts of the run so far; empty: unknown.
    pub strip: Vec<u64>,
    /// Growth per step of steadily growing lines; `None`: no whole model read yet.
    pub growth_per_step: Option<f64>,
    /// Figures by category.
    pub categories: Vec<CategoryView>,
    /// Figures by line, including lines that only used GPU time.
    pub lines: Vec<LineFigures>,
    /// Figures by layer; only layers that held memory or used GPU time.
    pub layers: Vec<LayerView>,
    /// GPU work on the device over the run; `None` if not recorded.
    pub times: Option<Arc<GpuTimes>>,
    /// Figures by range; empty if the program names none.
    pub ranges: Vec<RangeView>,
    /// Figures by step.
    pub steps: Vec<StepView>,
    /// Training records of these steps; empty if the program writes none.
    pub trainings: Vec<Option<TrainingView>>,
    /// Waits in these steps; empty if no GPU time was recorded.
    pub waits: Vec<Option<StepWaitView>>,
    /// Lines that hold more from step to step.
    pub growth: Vec<GrowthView>,
    /// Driver memory outside PyTorch.
    pub driver: Vec<DriverView>,
    /// The call tree; `None` unless requested.
    pub calls: Option<Arc<Calls>>,
    /// Related lines, layers and categories; `None` unless requested.
    pub relations: Option<Arc<Relations>>,
    /// The memory map; `None` unless requested.
    pub segments: Option<Arc<SegmentMap>>,
}

impl ProcessSnapshot {
    /// Takes a snapshot of `replay`.
    pub fn of(replay: &Replay, path: &Path, state: ProcessState, detail: Detail) -> Self {
        let model = &replay.model;
        let found = findings::of(model);
        let mut process = Self {
            path: path.to_owned(),
            header: model.header().cloned().unwrap_or_default(),
            state,
            time: model.time(),
            events_read: model.events(),
            steps_ended: model.steps_ended(),
            phase: model.phase(),
            devices: model.devices().into_iter().map(|totals| DeviceSnapshot::of(model, totals, detail)).collect(),
            ooms: model.ooms(),
            oom_count: model.oom_count(),
            sources: model.sources().clone(),
            file_names: FileNames::of(model).into(),
            verdict: findings::verdict(model, &found),
            findings: found,
            warnings: model.warnings().iter().cloned().chain(missing_events(model.lost_events())).collect(),
            scope: model.scope(),
            dominant_library_call: dominant_library_call(model),
            ..Self::default()
        };
        process.note_names(replay, detail);
        process
    }

    /// Builds the snapshot of a run that has only a summary.
    pub fn of_summary(summary: &RankSummary, state: ProcessState) -> Self {
        Self {
            path: summary.path.clone(),
            header: summary.header.clone(),
            state,
            time: summary.duration,
            events_read: summary.events,
            steps_ended: summary.steps_ended,
            devices: summary.devices.iter().map(|device| DeviceSnapshot::of_summary(device, summary.scope)).collect(),
            ooms: summary.first_oom.iter().cloned().collect(),
            oom_count: summary.oom_count,
            scope: summary.scope,
            warnings: missing_events(summary.lost_events).into_iter().collect(),
            skipped_lines: summary.skipped_lines,
            is_summary: true,
            ..Self::default()
        }
    }

    /// Shows the memory allocated around a moment: the largest value in one part of the timeline.
    pub fn show_about(&mut self, time: u64, summary: Option<&RankSummary>) {
        for device in &mut self.devices {
            let part = |part: u64| (part as usize).min(device.strip.len().saturating_sub(1));
            let at = part((u128::from(time) * device.strip.len() as u128 / (u128::from(self.time) + 1)) as u64);
            device.totals.allocated_bytes = device.strip.get(at).copied().unwrap_or(0);
            (device.totals.reserved_bytes, device.totals.used_bytes) = (0, 0);
        }
        let unix_ns = self.header.start_unix_ns.saturating_add(time);
        let later = summary.map_or(0, |summary| summary.step_ends.iter().filter(|(_, end)| *end > unix_ns).count());
        let steps_ended = self.steps_ended.saturating_sub(later as u64);
        self.shown_at = Some(ShownAt { time, steps_ended, phase: self.phase, is_earliest: false });
    }

    /// Returns the same run with the live figures of an earlier moment.
    pub fn at(mut self, earlier: &Replay, is_earliest: bool, detail: Detail) -> Self {
        let model = &earlier.model;
        let past = Self::of(earlier, &self.path, self.state, detail);
        self.shown_at =
            Some(ShownAt { time: model.time(), steps_ended: past.steps_ended, phase: past.phase, is_earliest });
        for device in &mut self.devices {
            let index = device.totals.index;
            let past = past.devices.iter().find(|past| past.totals.index == index);
            device.show(past.unwrap_or(&DeviceSnapshot::default()));
        }
        (self.events, self.names) = (past.events, past.names);
        self
    }

    fn note_names(&mut self, replay: &Replay, detail: Detail) {
        let mut names = SnapshotNames::default();
        if detail == Detail::Events {
            self.events = replay.events().cloned().collect();
            for event in self.events.iter() {
                names.note(&replay.model, event.stack, event.layer);
                if let (EventKind::InRange, Ok(range @ 1..)) = (event.kind, u32::try_from(event.address)) {
                    let path = || range_name(&replay.model.range_path(range));
                    names.ranges.entry(range).or_insert_with(path);
                }
                if let Some(thread) = replay.model.thread(event.thread) {
                    names.threads.entry(event.thread).or_insert_with(|| thread.name.clone());
                }
            }
        }
        for segments in self.devices.iter().filter_map(|device| device.segments.as_ref()) {
            for block in segments.segments.iter().flat_map(|segment| &segment.blocks) {
                names.note(&replay.model, block.stack, block.layer);
            }
        }
        self.names = Arc::new(names);
    }

    /// End of the time axis: the present while it runs, the latest event afterwards.
    pub fn until(&self, now_unix_ns: u64) -> u64 {
        match self.state {
            ProcessState::Recording => self.time.max(now_unix_ns.saturating_sub(self.header.start_unix_ns)),
            _ => self.time,
        }
    }
}

/// Growth per step of all steadily growing lines.
fn steady_growth(growth: &[GrowthView]) -> f64 {
    growth.iter().filter(|line| line.is_steady).map(|line| line.bytes_per_step.max(0.0)).sum()
}

/// The user's line that only calls libraries, on any device, if library lines are shown.
fn dominant_library_call(model: &Model) -> Option<Arc<Line>> {
    let mut devices = model.devices().into_iter().filter(|_| model.scope() == Scope::Libraries);
    devices.find_map(|device| model.dominant_library_call(device.index))
}

/// Lines that hold memory, then those that only used GPU time.
fn lines_with(model: &Model, device: i32, work: Option<&GpuWorkView>) -> Vec<LineView> {
    let mut lines = model.lines(device);
    let holding: HashSet<Option<Arc<Line>>> = lines.iter().map(|view| view.line.clone()).collect();
    let others = work.into_iter().flat_map(|work| &work.lines).filter(|row| !holding.contains(&row.line));
    lines.extend(others.map(|row| {
        let is_compiled = row.line.as_ref().is_some_and(|line| model.runs_compiled(line));
        LineView { line: row.line.clone(), is_compiled, ..LineView::default() }
    }));
    lines
}

/// Layers that hold memory, then those that only used GPU time.
fn layers_with(model: &Model, device: i32, work: Option<&GpuWorkView>) -> Vec<LayerView> {
    let mut layers = model.layers(device);
    let holding: HashSet<_> = layers.iter().map(|view| (view.root, view.name.clone())).collect();
    let others = work.into_iter().flat_map(|work| &work.layers);
    layers.extend(others.filter(|row| !holding.contains(&(row.root, row.name.clone()))).map(|row| row.to_layer()));
    layers
}

impl DeviceSnapshot {
    fn of(model: &Model, totals: DeviceView, detail: Detail) -> Self {
        let index = totals.index;
        let work = model.gpu_work(index);
        let calls = (detail == Detail::Calls).then(|| model.calls(index));
        let inclusive: HashMap<Arc<Line>, AllocationTotals> = calls
            .iter()
            .flat_map(|calls| calls.lines_inclusive(model.scope()))
            .map(|calls| (calls.line, calls.inclusive))
            .collect();
        let timeline = model.timeline(index);
        let growth = model.growth(index);
        let growth_of: HashMap<Option<&Arc<Line>>, f64> =
            growth.iter().map(|view| (view.line.as_ref(), view.bytes_per_step)).collect();
        let seconds = model.time() as f64 / 1e9;
        let row = |own: LineView| LineFigures {
            inclusive: calls.is_some().then(|| {
                let held = own.line.as_ref().and_then(|line| inclusive.get(line)).copied();
                held.unwrap_or_else(|| AllocationTotals::from(&own))
            }),
            growth_per_step: Some(growth_of.get(&own.line.as_ref()).copied().unwrap_or(0.0)),
            allocations_per_second: if seconds > 0.0 { own.allocations as f64 / seconds } else { 0.0 },
            own,
        };
        Self {
            totals,
            strip: memlab_job::strip(&timeline, model.time()),
            growth_per_step: Some(steady_growth(&growth)),
            timeline,
            categories: model.categories(index).to_vec(),
            lines: lines_with(model, index, work.as_ref()).into_iter().map(row).collect(),
            layers: layers_with(model, index, work.as_ref()),
            times: work.as_ref().map(|work| Arc::new(GpuTimes::new(model, work, detail == Detail::Time))),
            ranges: model.ranges(index),
            waits: if model.has_step_waits() {
                model.device_steps(index).iter().map(|step| model.step_wait(step)).collect()
            } else {
                Vec::new()
            },
            trainings: if model.has_trainings() {
                model.device_steps(index).iter().map(|step| model.training(step)).collect()
            } else {
                Vec::new()
            },
            steps: model.device_steps(index).to_vec(),
            driver: model.driver_memory(index),
            relations: detail.has_relations().then(|| Arc::new(Relations::new(&model.attributions(index)))),
            segments: (detail == Detail::Segments).then(|| Arc::new(model.segments(index))),
            calls: calls.map(|calls| Arc::new(Calls::new(calls.in_scope(model.scope()), &growth))),
            growth,
        }
    }

    /// Figures of a device without their attribution.
    fn of_summary(device: &DeviceSummary, scope: Scope) -> Self {
        Self {
            totals: device.view.clone(),
            strip: device.strip.clone(),
            growth_per_step: Some(device.growth(scope).1),
            ..Self::default()
        }
    }

    /// Takes over the live figures of an earlier moment; figures of the whole run stay.
    fn show(&mut self, past: &Self) {
        let (totals, earlier) = (&mut self.totals, &past.totals);
        totals.allocated_bytes = earlier.allocated_bytes;
        totals.reserved_bytes = earlier.reserved_bytes;
        totals.used_bytes = earlier.used_bytes;
        totals.segments = earlier.segments;
        totals.live_blocks = earlier.live_blocks;
        for view in &mut self.categories {
            let earlier = past.categories.iter().find(|earlier| earlier.category == view.category);
            view.bytes = earlier.map_or(0, |earlier| earlier.bytes);
        }
        self.show_lines(past);
        self.show_layers(past);
        self.show_ranges(past);
        self.driver.clone_from(&past.driver);
        // Growth covers the run, as in the table.
        self.calls = past.calls.as_ref().map(|calls| Arc::new(calls.with_growth(&self.growth)));
        self.relations.clone_from(&past.relations);
        self.segments.clone_from(&past.segments);
    }

    fn show_lines(&mut self, past: &Self) {
        let mut earlier: HashMap<_, _> = past.lines.iter().map(|row| (row.own.line.clone(), row)).collect();
        for row in &mut self.lines {
            let earlier = earlier.remove(&row.own.line);
            row.own.live_bytes = earlier.map_or(0, |earlier| earlier.own.live_bytes);
            row.own.live_blocks = earlier.map_or(0, |earlier| earlier.own.live_blocks);
            row.own.backward_bytes = earlier.map_or(0, |earlier| earlier.own.backward_bytes);
            if let Some(inclusive) = &mut row.inclusive {
                let earlier = earlier.and_then(|earlier| earlier.inclusive);
                inclusive.live_bytes = earlier.map_or(0, |earlier| earlier.live_bytes);
                inclusive.live_blocks = earlier.map_or(0, |earlier| earlier.live_blocks);
            }
        }
        // Lines renamed since, for example of stacks whose frames were not known yet.
        let renamed = earlier.into_values().filter(|row| row.own.live_bytes > 0);
        self.lines.extend(renamed.map(|row| LineFigures {
            own: LineView { live_bytes_at_peak: 0, peak_live_bytes: 0, backward_bytes_at_peak: 0, ..row.own.clone() },
            ..row.clone()
        }));
    }

    fn show_layers(&mut self, past: &Self) {
        let mut earlier: HashMap<_, _> =
            past.layers.iter().map(|row| ((row.root, row.name.clone()), row.live_bytes)).collect();
        for row in &mut self.layers {
            row.live_bytes = earlier.remove(&(row.root, row.name.clone())).unwrap_or(0);
        }
        for ((root, name), live_bytes) in earlier.into_iter().filter(|(_, bytes)| *bytes > 0) {
            self.layers.push(LayerView { root, name, live_bytes, ..LayerView::default() });
        }
    }

    fn show_ranges(&mut self, past: &Self) {
        let earlier: HashMap<_, _> =
            past.ranges.iter().map(|row| (&row.path, (row.live_bytes, row.live_blocks))).collect();
        for row in &mut self.ranges {
            (row.live_bytes, row.live_blocks) = match earlier.get(&row.path) {
                Some(held) => *held,
                // Before the first range, all memory belongs to none.
                None if earlier.is_empty() && row.path.is_empty() => {
                    (past.totals.allocated_bytes, past.totals.live_blocks)
                }
                None => (0, 0),
            };
        }
    }

    /// Index of the step that contains a time, if that step has ended.
    pub fn step_at(&self, time: u64) -> Option<usize> {
        let index = self.steps.partition_point(|step| step.end_time < time);
        (index < self.steps.len()).then_some(index)
    }

    /// Steps per second over the latest few steps.
    pub fn steps_per_second(&self) -> Option<f64> {
        steps_per_second(&self.steps)
    }
}

/// Steps per second over the latest few of these steps.
pub fn steps_per_second(steps: &[StepView]) -> Option<f64> {
    let recent = &steps[steps.len().saturating_sub(16)..];
    let (first, last) = (recent.first()?, recent.last()?);
    let steps: u64 = recent[1..].iter().map(|step| step.steps.max(1)).sum();
    let seconds = last.end_time.saturating_sub(first.end_time) as f64 / 1e9;
    (steps > 0 && seconds > 0.0).then(|| steps as f64 / seconds)
}
