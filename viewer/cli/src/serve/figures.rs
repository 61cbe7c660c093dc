//! The totals of every process: what metrics and the list of processes are made of. They cost no more than the models keep by
//! themselves.

use memlab_trace::{Category, CategoryView, DeviceView, Model};

use memlab_base::text::{fit, short_command};
use memlab_follow::feed::Followed;
use memlab_follow::snapshot::{ProcessState, steps_per_second};

/// The longest command shown, in columns.
const MAX_COMMAND_COLUMNS: usize = 60;

/// The most devices shown of a process; a machine has sixteen.
const MAX_DEVICES: usize = 16;

/// One device of a process.
#[derive(Clone, Debug)]
pub struct DeviceFigures {
    /// Its totals.
    pub totals: DeviceView,
    /// By category.
    pub categories: [CategoryView; Category::COUNT],
}

/// One process.
#[derive(Clone, Debug)]
pub struct ProcessFigures {
    /// What it is called in addresses: the identity of its trace.
    pub id: String,
    /// The identity of its trace as its process tells it.
    pub trace_id: String,
    /// Its number.
    pub pid: u32,
    /// Its rank, if a launcher gave it one.
    pub rank: Option<u32>,
    /// Its command, cut to a length.
    pub command: String,
    /// Whether it still writes.
    pub state: ProcessState,
    /// Events read so far.
    pub events: u64,
    /// Events that could not be recorded.
    pub lost_events: u64,
    /// Optimizer steps ended.
    pub steps: u64,
    /// Steps a second over the latest few.
    pub steps_per_second: Option<f64>,
    /// Out-of-memory errors.
    pub ooms: u64,
    /// Its devices, by index.
    pub devices: Vec<DeviceFigures>,
}

impl ProcessFigures {
    /// Of a trace as far as it was read.
    pub fn of(followed: &Followed) -> Self {
        let model = followed.model();
        let header = model.header().cloned().unwrap_or_default();
        let device = |totals: DeviceView| {
            let categories = model.categories(totals.index);
            DeviceFigures { totals, categories }
        };
        Self {
            id: id_of(model),
            trace_id: header.id,
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

    /// Changes whenever something of it has.
    pub fn version(&self) -> String {
        format!("{} {}", self.events, self.state.short())
    }

    /// Whether its figures are those of now: it has been read to its end, and still runs.
    pub fn is_live(&self) -> bool {
        matches!(self.state, ProcessState::Recording | ProcessState::Stopped)
    }
}

/// What a trace is called in addresses.
pub fn id_of(model: &Model) -> String {
    let Some(header) = model.header() else { return String::new() };
    let id: String = header.id.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    format!("{}-{id}", header.pid)
}

/// All processes.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// By rank and number.
    pub processes: Vec<ProcessFigures>,
    /// Running processes that are too many to be followed.
    pub left_out: usize,
    /// Processes that do not answer: their number, and why.
    pub problems: Vec<(u32, String)>,
}
