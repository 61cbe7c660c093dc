//! Totals of every process, for the metrics and the list of processes.
//!
//! The models keep these totals anyway, so they cost nothing extra.

use std::sync::Arc;

use memlab_trace::{Category, CategoryView, DeviceView, Model};

use memlab_base::text::{fit, short_command};
use memlab_follow::cards::{CardStatus, card_of, cards};
use memlab_follow::feed::Followed;
use memlab_follow::snapshot::{ProcessState, steps_per_second};

/// Longest command shown, in columns.
const MAX_COMMAND_COLUMNS: usize = 60;

/// The most devices shown for a process; a machine has sixteen.
const MAX_DEVICES: usize = 16;

/// Figures of one device of a process.
#[derive(Clone, Debug)]
pub struct DeviceFigures {
    /// Totals of the device.
    pub totals: DeviceView,
    /// Bytes by category.
    pub categories: [CategoryView; Category::COUNT],
    /// State of its card; `None`: not known, or the process has ended.
    pub card: Option<CardStatus>,
}

/// Figures of one process.
#[derive(Clone, Debug)]
pub struct ProcessFigures {
    /// Name in addresses: the identity of its trace.
    pub id: String,
    /// Identity of its trace as the process reports it.
    pub trace_id: String,
    /// Process id.
    pub pid: u32,
    /// Rank, if a launcher set one.
    pub rank: Option<u32>,
    /// Command, shortened.
    pub command: String,
    /// State of the process.
    pub state: ProcessState,
    /// Events read so far.
    pub events: u64,
    /// Events that could not be recorded.
    pub lost_events: u64,
    /// Completed optimizer steps.
    pub steps: u64,
    /// Steps per second over the latest few.
    pub steps_per_second: Option<f64>,
    /// Out-of-memory errors.
    pub ooms: u64,
    /// Devices, by index.
    pub devices: Vec<DeviceFigures>,
}

impl ProcessFigures {
    /// Figures of a trace as far as it was read.
    pub fn of(followed: &Followed) -> Self {
        let model = followed.model();
        let header = model.header().cloned().unwrap_or_default();
        let cards = if followed.state().is_over() { Arc::default() } else { cards() };
        let device = |totals: DeviceView| {
            let categories = model.categories(totals.index);
            let card = card_of(&cards, totals.bus_id.as_deref(), &header.host).cloned();
            DeviceFigures { totals, categories, card }
        };
        Self {
            id: id_of(model),
            trace_id: header.id.clone(),
            pid: header.pid,
            rank: header.rank,
            command: fit(&short_command(&header.command), MAX_COMMAND_COLUMNS, "…").into_owned(),
            state: followed.state(),
            events: model.events(),
            lost_events: model.lost_events(),
            steps: model.steps_ended(),
            steps_per_second: steps_per_second(model.steps()),
            ooms: model.oom_count(),
            devices: model.devices().into_iter().take(MAX_DEVICES).map(device).collect(),
        }
    }

    /// Version that changes with every change of the figures.
    pub fn version(&self) -> String {
        format!("{} {}", self.events, self.state.short())
    }

    /// Returns true if the figures are current: the trace has been read to its end, and the process still runs.
    pub fn is_live(&self) -> bool {
        matches!(self.state, ProcessState::Recording | ProcessState::Stopped)
    }
}

/// Returns the identity of a trace, for use in addresses.
pub fn id_of(model: &Model) -> String {
    let Some(header) = model.header() else { return String::new() };
    let id: String = header.id.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    format!("{}-{id}", header.pid)
}

/// Figures of all processes.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Processes by rank and pid.
    pub processes: Vec<ProcessFigures>,
    /// Number of running processes beyond the limit.
    pub left_out: usize,
    /// Processes that do not answer: pid and reason.
    pub problems: Vec<(u32, String)>,
}
