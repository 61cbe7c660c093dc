//! What a screen shows: plain values taken from the models at one moment. The background thread makes them, the
//! screen only reads them.

use std::path::{Path, PathBuf};

use memlab_trace::record::{Header, Phase};
use memlab_trace::{CategoryView, DeviceView, LayerView, LineView, Model, OomView, StepView, Timeline};

/// All processes that are followed.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// One for each trace, by rank and pid. Empty: no trace yet.
    pub processes: Vec<ProcessSnapshot>,
}

/// Whether the process still writes its trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
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
    /// The process is gone and nobody said how.
    Killed,
}

impl State {
    /// Whether nothing more will come.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ended { .. } | Self::Killed)
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
    pub state: State,
    /// The latest event's time: nanoseconds since the trace's start.
    pub time: u64,
    /// Events so far.
    pub events: u64,
    /// Optimizer steps ended.
    pub steps_ended: u64,
    /// What it was doing last.
    pub phase: Phase,
    /// Its devices, by index.
    pub devices: Vec<DeviceSnapshot>,
    /// Out-of-memories, the first ones.
    pub ooms: Vec<OomView>,
    /// How many there were.
    pub oom_count: u64,
    /// What memlab could not do in this process.
    pub warnings: Vec<String>,
    /// Lines of the trace that could not be read.
    pub skipped_lines: u64,
    /// Why the trace cannot be read any further.
    pub failure: Option<String>,
}

/// One device of one process.
#[derive(Clone, Debug, Default)]
pub struct DeviceSnapshot {
    /// Totals.
    pub totals: DeviceView,
    /// Memory over time.
    pub timeline: Timeline,
    /// By category.
    pub categories: Vec<CategoryView>,
    /// By line.
    pub lines: Vec<LineView>,
    /// By layer; only those that hold or held something.
    pub layers: Vec<LayerView>,
    /// By step.
    pub steps: Vec<StepView>,
}

impl ProcessSnapshot {
    /// What `model` shows now.
    pub fn of(model: &Model, path: &Path, state: State) -> Self {
        Self {
            path: path.to_owned(),
            header: model.header().cloned().unwrap_or_default(),
            state,
            time: model.time(),
            events: model.events(),
            steps_ended: model.steps_ended(),
            phase: model.phase(),
            devices: model.devices().into_iter().map(|totals| DeviceSnapshot::of(model, totals)).collect(),
            ooms: model.ooms(),
            oom_count: model.oom_count(),
            warnings: model.warnings().to_vec(),
            skipped_lines: 0,
            failure: None,
        }
    }

    /// The end of the time axis: the present while it runs, the latest event afterwards.
    pub fn until(&self, now_unix_ns: u64) -> u64 {
        match self.state {
            State::Recording => self.time.max(now_unix_ns.saturating_sub(self.header.start_unix_ns)),
            _ => self.time,
        }
    }
}

impl DeviceSnapshot {
    fn of(model: &Model, totals: DeviceView) -> Self {
        let index = totals.index;
        Self {
            totals,
            timeline: model.timeline(index),
            categories: model.categories(index).to_vec(),
            lines: model.lines(index),
            layers: model.layers(index),
            steps: model.device_steps(index).to_vec(),
        }
    }

    /// Steps a second over the latest few steps.
    pub fn steps_per_second(&self) -> Option<f64> {
        let recent = &self.steps[self.steps.len().saturating_sub(16)..];
        let (first, last) = (recent.first()?, recent.last()?);
        let steps: u64 = recent[1..].iter().map(|step| step.steps.max(1)).sum();
        let seconds = last.end_time.saturating_sub(first.end_time) as f64 / 1e9;
        (steps > 0 && seconds > 0.0).then(|| steps as f64 / seconds)
    }
}
