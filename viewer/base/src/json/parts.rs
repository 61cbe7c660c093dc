//! Parts that the JSON of reports, exports and comparisons share: a contract with scripts.
//!
//! Keys are added, never renamed or removed.

use std::path::Path;
use std::sync::Arc;

use memlab_trace::{Anomalies, DriverView, Line, Model, RangePath, Skipped, TrainingView};
use serde::Serialize;

use crate::holdings::LayerName;
use crate::parallel::Parallel;
use crate::text::NO_LAYER;

/// The trace file, and its damage.
#[derive(Serialize)]
pub struct Trace {
    path: String,
    version: String,
    events: u64,
    duration_ns: u64,
    skipped_lines: u64,
    truncated: bool,
    anomalies: Anomalies,
    #[serde(skip_serializing_if = "is_zero")]
    missing_events: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The process that wrote the trace.
#[derive(Serialize)]
pub struct Process {
    pid: u32,
    command: Vec<String>,
    rank: Option<u32>,
    /// Exit code; null if a signal ended the process or its end is not known.
    exit: Option<i32>,
    signal: Option<i32>,
    parent_pid: u32,
    local_rank: Option<u32>,
    world_size: Option<u32>,
    directory: String,
    host: String,
    start_unix_ns: u64,
    #[serde(flatten)]
    parallel: Parallel,
}

/// A line; all null: no Python frame.
#[derive(Serialize)]
pub struct CodeLine {
    file: Option<String>,
    line: Option<u32>,
    function: Option<String>,
}

/// Figures on a device, for a line, a layer, a range or a library's driver memory.
#[derive(Serialize)]
pub struct Row<K: Serialize, F: Serialize> {
    /// Index of the device; -1 is the host.
    pub device: i32,
    /// Subject of the figures.
    #[serde(flatten)]
    pub of: K,
    /// The figures.
    #[serde(flatten)]
    pub figures: F,
}

/// A layer; one row covers memory outside any layer.
#[derive(Serialize)]
pub struct Layer {
    name: Arc<str>,
    #[serde(rename = "type")]
    class: Option<Arc<str>>,
    /// Layer id of the outermost module, which identifies the model.
    root: u32,
    root_type: Option<Arc<str>>,
    root_name: Option<Arc<str>>,
}

impl From<LayerName> for Layer {
    fn from(layer: LayerName) -> Self {
        let LayerName { root, root_class: root_type, root_name, name, class } = layer;
        Self { name: name.unwrap_or_else(|| NO_LAYER.into()), class, root, root_type, root_name }
    }
}

/// A range that the program names, without the ranges inside it.
///
/// The row with an empty path is outside any range; with it, the rows sum to the allocated bytes. A program without
/// ranges has no rows.
#[derive(Serialize)]
pub struct Range {
    /// Names of the enclosing ranges and of the range, outermost first.
    pub path: RangePath,
}

/// Driver memory outside PyTorch's allocator.
#[derive(Serialize)]
pub struct DriverCall {
    kind: &'static str,
    call: Arc<str>,
    library: Arc<str>,
}

impl From<DriverView> for DriverCall {
    fn from(view: DriverView) -> Self {
        Self { kind: view.kind.as_str(), call: view.call, library: view.library }
    }
}

/// An optimizer step.
#[derive(Serialize)]
pub struct StepRow {
    index: u64,
    peak_allocated_bytes: u64,
    allocated_bytes_at_end: u64,
    end_time_ns: u64,
    /// Number of steps joined to this row, usually 1.
    steps: u64,
    /// Mean time of a step in which it waited for batches of a DataLoader; null: not recorded.
    data_wait_ns: Option<u64>,
    /// Mean time from the end of the previous step to the first launch; null: not recorded.
    launch_wait_ns: Option<u64>,
    /// Figures that the training run reports for the step.
    #[serde(flatten)]
    training: Option<TrainingRow>,
}

/// Figures of a training run in a step.
#[derive(Serialize)]
struct TrainingRow {
    epoch: u64,
    batch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<Arc<str>>,
    /// Null if not known or not a number.
    loss: Option<f64>,
    samples: u64,
    duration_ns: u64,
    samples_per_second: Option<f64>,
    way: Option<Arc<str>>,
    pieces: u64,
    offloaded_bytes: u64,
}

impl Trace {
    /// Describes the trace at `path`.
    pub fn of(path: &Path, model: &Model, skipped: &Skipped, truncated: bool) -> Self {
        Self {
            path: path.display().to_string(),
            version: model.header().map(|header| header.version.clone()).unwrap_or_default(),
            events: model.events(),
            duration_ns: model.time(),
            skipped_lines: skipped.count,
            truncated,
            anomalies: model.anomalies(),
            missing_events: model.lost_events(),
        }
    }
}

impl Process {
    /// Describes the process from the header and the end of the trace.
    pub fn of(model: &Model) -> Self {
        let header = model.header().cloned().unwrap_or_default();
        let end = model.end();
        Self {
            pid: header.pid,
            command: header.command,
            rank: header.rank,
            exit: end.and_then(|end| end.code),
            signal: end.and_then(|end| end.signal),
            parent_pid: header.parent_pid,
            local_rank: header.local_rank,
            world_size: header.world_size,
            directory: header.directory,
            host: header.host,
            start_unix_ns: header.start_unix_ns,
            parallel: Parallel::of(model.mesh(), model.stages()),
        }
    }
}

/// Resolves lines to absolute source files.
pub struct LineResolver {
    directory: String,
}

impl LineResolver {
    /// Resolves relative files against the directory of this run.
    pub fn of_run(model: &Model) -> Self {
        Self::in_directory(model.header().map_or("", |header| header.directory.as_str()))
    }

    /// Resolves relative files against this directory.
    pub fn in_directory(directory: &str) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Resolves a line, or no line.
    pub fn of(&self, line: Option<&Line>) -> CodeLine {
        let Some(line) = line else { return CodeLine { file: None, line: None, function: None } };
        // `<string>`, `In[3]` and `(compiled code, unknown line)` are not files; their names stay unchanged.
        let file = if line.file.starts_with(['/', '<', '(']) || line.file.starts_with("In[") {
            Some(line.file.to_string())
        } else if line.file.is_empty() || self.directory.is_empty() {
            // A relative path without a known directory cannot be made absolute.
            None
        } else {
            Some(format!("{}/{}", self.directory.trim_end_matches('/'), line.file.trim_start_matches("./")))
        };
        CodeLine { file, line: line.line, function: Some(line.function.to_string()) }
    }
}

/// Optimizer steps of a run.
pub fn steps(model: &Model) -> Vec<StepRow> {
    let row = |view: &memlab_trace::StepView| {
        let wait = model.step_wait(view);
        StepRow {
            index: view.index,
            peak_allocated_bytes: view.peak_allocated_bytes,
            allocated_bytes_at_end: view.allocated_bytes_at_end,
            end_time_ns: view.end_time,
            steps: view.steps,
            data_wait_ns: wait.map(|wait| wait.data_ns_per_step()),
            launch_wait_ns: wait.and_then(|wait| wait.launch_ns_per_step()),
            training: model.training(view).map(training),
        }
    };
    model.steps().iter().map(row).collect()
}

fn training(view: TrainingView) -> TrainingRow {
    TrainingRow {
        samples_per_second: view.samples_per_second(),
        epoch: view.epoch,
        batch: view.batch,
        phase: view.phase,
        loss: view.loss,
        samples: view.samples,
        duration_ns: view.duration,
        way: view.way,
        pieces: view.pieces,
        offloaded_bytes: view.offloaded_bytes,
    }
}
