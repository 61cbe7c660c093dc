//! What a screen shows: plain values taken from the models at one moment. The background thread makes them, the
//! screen only reads them.

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
    LayerView, Line, LineView, Model, OomView, RangeView, Replay, Scope, SegmentMap, Sources, StepView, Timeline,
    TrainingView,
};

pub use self::calls::Calls;
pub use self::gpu_times::{GpuTime, GpuTimes};
pub use self::relations::{Related, Relations};
use memlab_base::findings::{self, Finding};
use memlab_base::query::{Comparison, Cursor, Detail};
use memlab_base::ranges::range_name;
use memlab_base::text::missing_events;

/// All processes that are followed.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// One for each trace, by rank and pid. Empty: no trace yet.
    pub processes: Vec<ProcessSnapshot>,
    /// The moment whose live figures these are; `None`: the latest.
    pub cursor: Option<Cursor>,
    /// What there is in detail.
    pub detail: Detail,
    /// The trace that has the detail; `None`: all.
    pub trace: Option<PathBuf>,
    /// Two moments side by side, if that was wanted.
    pub comparison: Option<Arc<Comparison>>,
    /// The ranks of the job compared; `None`: there are no two, or none was read yet.
    pub job: Option<Arc<Job>>,
}

/// Whether the process still writes its trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessState {
    /// What was written before the viewer came is being read.
    Opening {
        /// Bytes read.
        read: u64,
        /// Bytes there are.
        total: u64,
    },
    /// The process runs.
    #[default]
    Recording,
    /// The process is stopped (SIGSTOP, SIGTSTP, a debugger).
    Stopped,
    /// The process ended and said so, or its launcher did.
    Ended {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
    },
    /// The process is gone, and how it ended is not known.
    Killed,
    /// The trace cannot be read any further; nothing more is known of the process.
    Unreadable,
}

impl ProcessState {
    /// In a word or two.
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

    /// Whether nothing more will come.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ended { .. } | Self::Killed | Self::Unreadable)
    }
}

/// One traced process.
#[derive(Clone, Debug, Default)]
pub struct ProcessSnapshot {
    /// Its trace.
    pub path: PathBuf,
    /// Who it is.
    pub header: Header,
    /// Whether it still writes.
    pub state: ProcessState,
    /// The latest event's time: nanoseconds since the trace's start.
    pub time: u64,
    /// Events read so far.
    pub events_read: u64,
    /// Optimizer steps ended.
    pub steps_ended: u64,
    /// The phase of its latest event.
    pub phase: Phase,
    /// Its devices, by index.
    pub devices: Vec<DeviceSnapshot>,
    /// Out-of-memories, the first ones.
    pub ooms: Vec<OomView>,
    /// How many there were.
    pub oom_count: u64,
    /// The text of source lines, as far as the trace has it.
    pub sources: Arc<Sources>,
    /// The findings, the most urgent first.
    pub findings: Vec<Finding>,
    /// Whose lines are shown.
    pub scope: Scope,
    /// The user's line that only calls libraries, where theirs are shown.
    pub dominant_library_call: Option<Arc<Line>>,
    /// What memlab could not do in this process.
    pub warnings: Vec<String>,
    /// Lines of the trace that could not be read.
    pub skipped_lines: u64,
    /// Why the trace cannot be read any further.
    pub failure: Option<String>,
    /// The moment whose live figures the devices show; `None`: the latest.
    pub shown_at: Option<ShownAt>,
    /// The latest events up to that moment, the oldest first; empty if they were not wanted.
    pub events: Arc<[EventView]>,
    /// The names of the ids in `events` and `segments`.
    pub names: Arc<SnapshotNames>,
    /// Only its figures are known: no whole model is kept of it, since another is in front.
    pub is_summary: bool,
}

/// A moment of the past, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownAt {
    /// When: nanoseconds since the trace's start.
    pub time: u64,
    /// Optimizer steps ended by then.
    pub steps_ended: u64,
    /// What it was doing.
    pub phase: Phase,
    /// The trace no longer has the moment that was wanted: this is the earliest it has.
    pub is_earliest: bool,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Where it is.
    pub line: Arc<Line>,
    /// Whose code it runs.
    pub origin: CodeOrigin,
}

/// The names of ids.
#[derive(Clone, Debug, Default)]
pub struct SnapshotNames {
    /// The frames of stacks, innermost first.
    pub stacks: HashMap<u32, Vec<StackFrame>>,
    /// The lines stacks belong to; absent: none.
    pub lines: HashMap<u32, Arc<Line>>,
    /// Layers' qualified names.
    pub layers: HashMap<u32, Arc<str>>,
    /// Ranges with those around them.
    pub ranges: HashMap<u32, String>,
    /// Threads' names.
    pub threads: HashMap<u32, String>,
}

impl SnapshotNames {
    /// Notes what these stacks and layers are called.
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

/// What one line holds, and how that grows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineFigures {
    /// What it allocated itself.
    pub own: LineView,
    /// It and all it called; `None` unless that was wanted.
    pub inclusive: Option<AllocationTotals>,
    /// How much more it holds after each step, by the trend over the run; `None`: that of this call is not known.
    pub growth_per_step: Option<f64>,
    /// Blocks allocated a second: recently while it runs, over the run afterwards.
    pub allocations_per_second: f64,
}

/// One device of one process.
#[derive(Clone, Debug, Default)]
pub struct DeviceSnapshot {
    /// Totals.
    pub totals: DeviceView,
    /// Memory over time.
    pub timeline: Timeline,
    /// The most allocated in equal parts of the run so far; empty: not known.
    pub strip: Vec<u64>,
    /// How much more it holds after each step, of lines that grow steadily; `None`: no whole model was read yet.
    pub growth_per_step: Option<f64>,
    /// By category.
    pub categories: Vec<CategoryView>,
    /// By line; with those that only had the GPU do something.
    pub lines: Vec<LineFigures>,
    /// By layer; only those that hold or held something, or had the GPU do something.
    pub layers: Vec<LayerView>,
    /// What ran on the device over the run; `None` if that was not recorded.
    pub times: Option<Arc<GpuTimes>>,
    /// By range; nothing if the program names none.
    pub ranges: Vec<RangeView>,
    /// By step.
    pub steps: Vec<StepView>,
    /// What a training says of each of these; empty if it says nothing.
    pub trainings: Vec<Option<TrainingView>>,
    /// Which lines hold more from step to step.
    pub growth: Vec<GrowthView>,
    /// Driver memory that is not PyTorch's.
    pub driver: Vec<DriverView>,
    /// The call tree; `None` unless that was wanted.
    pub calls: Option<Arc<Calls>>,
    /// Which lines, layers and categories belong together; `None` unless that was wanted.
    pub relations: Option<Arc<Relations>>,
    /// The memory map; `None` unless that was wanted.
    pub segments: Option<Arc<SegmentMap>>,
}

impl ProcessSnapshot {
    /// What `replay` shows now.
    pub fn of(replay: &Replay, path: &Path, state: ProcessState, detail: Detail) -> Self {
        let model = &replay.model;
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
            findings: findings::of(model),
            warnings: model.warnings().iter().cloned().chain(missing_events(model.lost_events())).collect(),
            scope: model.scope(),
            dominant_library_call: dominant_library_call(model),
            ..Self::default()
        };
        process.note_names(replay, detail);
        process
    }

    /// The figures of a run of which no model is kept.
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

    /// Shows what was allocated around a moment, as the memory over time tells: the most in one part of the run.
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

    /// The same run with the live figures of an earlier moment.
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

    /// The end of the time axis: the present while it runs, the latest event afterwards.
    pub fn until(&self, now_unix_ns: u64) -> u64 {
        match self.state {
            ProcessState::Recording => self.time.max(now_unix_ns.saturating_sub(self.header.start_unix_ns)),
            _ => self.time,
        }
    }
}

/// How much more lines hold after each step.
fn steady_growth(growth: &[GrowthView]) -> f64 {
    growth.iter().filter(|line| line.is_steady).map(|line| line.bytes_per_step.max(0.0)).sum()
}

/// The user's line that only calls libraries, on any device, where the lines of libraries are shown.
fn dominant_library_call(model: &Model) -> Option<Arc<Line>> {
    let mut devices = model.devices().into_iter().filter(|_| model.scope() == Scope::Libraries);
    devices.find_map(|device| model.dominant_library_call(device.index))
}

/// The lines that hold memory, then those that only had the GPU do something.
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

/// The layers that hold memory, then those that only had the GPU do something.
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

    /// The figures of a device without what they are made of.
    fn of_summary(device: &DeviceSummary, scope: Scope) -> Self {
        Self {
            totals: device.view.clone(),
            strip: device.strip.clone(),
            growth_per_step: Some(device.growth(scope).1),
            ..Self::default()
        }
    }

    /// Takes over what was live at an earlier moment; what concerns the whole run stays.
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
        // Growth is that of the run, as in the table.
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
        // Lines that got another name since, as those of stacks whose frames were not known yet.
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
                // Before the first range, everything is in none.
                None if earlier.is_empty() && row.path.is_empty() => {
                    (past.totals.allocated_bytes, past.totals.live_blocks)
                }
                None => (0, 0),
            };
        }
    }

    /// The index of the step that contains a time, if that step has ended.
    pub fn step_at(&self, time: u64) -> Option<usize> {
        let index = self.steps.partition_point(|step| step.end_time < time);
        (index < self.steps.len()).then_some(index)
    }

    /// Steps a second over the latest few steps.
    pub fn steps_per_second(&self) -> Option<f64> {
        steps_per_second(&self.steps)
    }
}

/// Steps a second over the latest few of these.
pub fn steps_per_second(steps: &[StepView]) -> Option<f64> {
    let recent = &steps[steps.len().saturating_sub(16)..];
    let (first, last) = (recent.first()?, recent.last()?);
    let steps: u64 = recent[1..].iter().map(|step| step.steps.max(1)).sum();
    let seconds = last.end_time.saturating_sub(first.end_time) as f64 / 1e9;
    (steps > 0 && seconds > 0.0).then(|| steps as f64 / seconds)
}
