//! The state of the dashboard: what is shown, of which device, sorted and filtered how. Keys, ticks and data come in
//! through [`App::on_key`], [`App::on_tick`] and [`App::on_snapshot`]; nothing here waits or draws.

mod keys;
mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memlab_trace::{LayerView, LineView};

pub use self::keys::Request;
pub use self::table::{Column, LayerColumn, LineColumn, TableState};
use crate::format::Units;
use crate::screen::ProgramScreen;
use crate::snapshot::{DeviceSnapshot, ProcessSnapshot, Snapshot};
use crate::theme::Theme;

/// One of the screens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Screen {
    /// All at a glance.
    #[default]
    Overview,
    /// Memory by Python line.
    Lines,
    /// Memory by layer.
    Layers,
    /// What the program prints.
    Output,
}

impl Screen {
    /// Its name on its tab.
    pub fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Lines => "Lines",
            Self::Layers => "Layers",
            Self::Output => "Output",
        }
    }
}

/// Which moment the tables and the categories show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// The latest.
    #[default]
    Now,
    /// When the most was allocated.
    Peak,
}

/// How much of the past the chart shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Window {
    /// The whole run.
    #[default]
    Run,
    /// The last so many seconds.
    Last(u64),
}

impl Window {
    fn next(self) -> Self {
        match self {
            Self::Run => Self::Last(300),
            Self::Last(300) => Self::Last(60),
            Self::Last(60) => Self::Last(10),
            Self::Last(_) => Self::Run,
        }
    }
}

/// What lies over the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlay {
    /// The keys.
    Help,
    /// How to leave a program that still runs.
    Leave,
}

/// The program that `memlab run --live` started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// It runs.
    Running,
    /// It ended; in words.
    Ended(String),
}

/// The table that the keys of the overview move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Focus {
    /// The lines.
    #[default]
    Lines,
    /// The layers.
    Layers,
}

/// A text to look for, as it is typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The text; upper and lower case are the same.
    pub text: String,
    /// Whether keys go here.
    pub editing: bool,
}

/// The dashboard.
pub struct App {
    /// What is on the screen.
    pub shown: Arc<Snapshot>,
    latest: Arc<Snapshot>,
    /// Whether `shown` stands still; the program goes on.
    pub paused: bool,
    /// The screen in front.
    pub screen: Screen,
    /// Which device of which process, in the order of [`App::targets`].
    target: usize,
    /// The moment of tables and categories.
    pub moment: Moment,
    /// Whether a person chose it.
    moment_was_chosen: bool,
    /// How sizes are written.
    pub units: Units,
    /// How much of the past the chart shows.
    pub window: Window,
    /// Which rows are shown.
    pub filter: Filter,
    /// What lies over the screen.
    pub overlay: Option<Overlay>,
    /// The table of the overview that has the keys.
    pub focus: Focus,
    /// The table of lines.
    pub lines: TableState<LineColumn>,
    /// The table of layers.
    pub layers: TableState<LayerColumn>,
    /// Colours and glyphs.
    pub theme: Theme,
    /// The present: nanoseconds since 1970.
    pub now_unix_ns: u64,
    /// The program, if this memlab started it.
    pub program: Option<Program>,
    /// What it prints.
    output: Option<Arc<Mutex<ProgramScreen>>>,
    /// What to say while there is no trace yet.
    pub waiting_for: String,
}

impl App {
    /// A dashboard that waits for its first snapshot.
    pub fn new(theme: Theme, waiting_for: impl Into<String>) -> Self {
        Self {
            shown: Arc::default(),
            latest: Arc::default(),
            paused: false,
            screen: Screen::Overview,
            target: 0,
            moment: Moment::Now,
            moment_was_chosen: false,
            units: Units::Auto,
            window: Window::Run,
            filter: Filter::default(),
            overlay: None,
            focus: Focus::Lines,
            lines: TableState::new(LineColumn::Now),
            layers: TableState::new(LayerColumn::Now),
            theme,
            now_unix_ns: 0,
            program: None,
            output: None,
            waiting_for: waiting_for.into(),
        }
    }

    /// The same with a pane for what the program prints.
    pub fn with_program(mut self, output: Arc<Mutex<ProgramScreen>>) -> Self {
        self.program = Some(Program::Running);
        self.output = Some(output);
        self
    }

    /// New data. While paused it is kept for later.
    pub fn on_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        self.latest = snapshot;
        if !self.paused {
            self.shown = self.latest.clone();
            self.leave_an_empty_end();
        }
    }

    /// A program that gave all back before it ended has nothing to show at its end: the peak is shown instead.
    fn leave_an_empty_end(&mut self) {
        let is_over = self.process().is_some_and(|process| process.state.is_over());
        let is_empty =
            self.device().is_some_and(|device| device.totals.allocated_bytes < device.totals.peak_allocated_bytes / 20);
        if is_over && is_empty && !self.moment_was_chosen {
            self.show(Moment::Peak);
            self.moment_was_chosen = false;
        }
    }

    /// Time goes on. Returns whether the screen shows it.
    pub fn on_tick(&mut self, now_unix_ns: u64) -> bool {
        if self.paused {
            return false;
        }
        let clock = |now: u64| self.process().map(|process| process.until(now) / 250_000_000);
        let changed = clock(self.now_unix_ns) != clock(now_unix_ns);
        self.now_unix_ns = now_unix_ns;
        changed
    }

    /// The screens there are.
    pub fn screens(&self) -> &'static [Screen] {
        const ALL: [Screen; 4] = [Screen::Overview, Screen::Lines, Screen::Layers, Screen::Output];
        if self.output.is_some() { &ALL } else { &ALL[..3] }
    }

    /// All devices of all processes: indices into `processes` and its `devices`.
    pub fn targets(&self) -> Vec<(usize, Option<usize>)> {
        let of_process = |(index, process): (usize, &ProcessSnapshot)| -> Vec<(usize, Option<usize>)> {
            match process.devices.len() {
                0 => vec![(index, None)],
                devices => (0..devices).map(|device| (index, Some(device))).collect(),
            }
        };
        self.shown.processes.iter().enumerate().flat_map(of_process).collect()
    }

    /// Which of [`App::targets`] is shown.
    pub fn target(&self) -> usize {
        self.target.min(self.targets().len().saturating_sub(1))
    }

    /// The process shown.
    pub fn process(&self) -> Option<&ProcessSnapshot> {
        let (process, _) = *self.targets().get(self.target())?;
        self.shown.processes.get(process)
    }

    /// The device shown.
    pub fn device(&self) -> Option<&DeviceSnapshot> {
        let (process, device) = *self.targets().get(self.target())?;
        self.shown.processes.get(process)?.devices.get(device?)
    }

    /// The lines that pass the filter, sorted.
    pub fn sorted_lines(&self) -> Vec<&LineView> {
        let rows = self.device().map_or(&[][..], |device| &device.lines);
        let matches = |row: &&LineView| match &row.line {
            Some(line) => self.passes(&[&line.file, &line.function]),
            None => self.passes(&[NO_LINE]),
        };
        self.lines.sorted(rows.iter().filter(matches).collect(), self.moment)
    }

    /// The layers that pass the filter, sorted.
    pub fn sorted_layers(&self) -> Vec<&LayerView> {
        let rows = self.device().map_or(&[][..], |device| &device.layers);
        let matches = |row: &&LayerView| {
            let class = row.class.as_deref().unwrap_or_default();
            let root = row.root_class.as_deref().unwrap_or_default();
            self.passes(&[row.name.as_deref().unwrap_or(NO_LAYER), class, root])
        };
        self.layers.sorted(rows.iter().filter(matches).collect(), self.moment)
    }

    fn passes(&self, texts: &[&str]) -> bool {
        let wanted = self.filter.text.to_lowercase();
        wanted.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    /// What the program prints, if this memlab started it.
    pub fn output(&self) -> Option<MutexGuard<'_, ProgramScreen>> {
        self.output.as_ref().map(|output| output.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the program started by this memlab still runs.
    pub fn program_runs(&self) -> bool {
        self.program == Some(Program::Running)
    }
}

/// What stands in the place of a line where there is no frame of the user's.
pub const NO_LINE: &str = "(no Python line)";
/// What stands in the place of a layer's name outside any layer.
pub const NO_LAYER: &str = "(outside any layer)";
