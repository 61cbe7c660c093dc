//! The state of the dashboard: what is shown, of which device and moment, sorted and filtered how. Keys, the mouse, ticks
//! and data come in through [`App::on_key`], [`App::on_mouse`], [`App::on_tick`] and [`App::on_snapshot`]; what is to be
//! known beyond the next snapshot goes out through [`App::query`]. Nothing here waits or draws.

pub mod changes;
mod events;
mod keys;
mod layers;
mod lines;
mod moment;
mod mouse;
mod moving;
mod processes;
mod prompt;
mod segments;
mod source;
mod steps;
mod table;
mod typing;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::ValueEnum;
use memlab_trace::Scope;
use serde::Deserialize;

pub use self::events::{EventColumn, EventItem, EventsState};
pub use self::keys::{ExportKind, Request};
pub use self::layers::{LayerColumn, LayerItem, LayersState};
pub use self::lines::{LineColumn, LineItem, LinesState};
pub use self::moment::{Moment, Window};
pub use self::mouse::{Spot, Spots, TimeScale};
pub use self::moving::Question;
pub use self::processes::{Imbalance, ProcessColumn, ProcessItem};
pub use self::prompt::{Prompt, PromptKind};
pub use self::segments::{Cell, Digest, Piece, SegmentsState, Stretch, neighbours, piece_at, pieces};
pub use self::source::SourceView;
pub use self::steps::{StepColumn, StepItem, StepsState, step_at};
pub use self::table::{Column, TableState};
use crate::filter::Filter;
use crate::format::Units;
use crate::offload::mover::MemoryLocation;
use crate::program_screen::ProgramScreen;
use crate::query::{Cursor, Detail, Query};
use crate::snapshot::{DeviceSnapshot, ProcessSnapshot, Snapshot};
use crate::theme::Theme;

/// One of the screens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Screen {
    /// All at a glance.
    #[default]
    Overview,
    /// Memory by Python line.
    Lines,
    /// Memory by layer.
    Layers,
    /// The allocator's segments and the blocks in them.
    Segments,
    /// Memory by optimizer step.
    Steps,
    /// One event after the other.
    Events,
    /// All processes and their devices.
    Processes,
    /// What the program prints.
    Output,
}

impl Screen {
    /// All of them, in the order of their tabs.
    pub const ALL: [Self; 8] = [
        Self::Overview,
        Self::Lines,
        Self::Layers,
        Self::Segments,
        Self::Steps,
        Self::Events,
        Self::Processes,
        Self::Output,
    ];

    /// Its name on its tab.
    pub fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Lines => "Lines",
            Self::Layers => "Layers",
            Self::Segments => "Segments",
            Self::Steps => "Steps",
            Self::Events => "Events",
            Self::Processes => "Processes",
            Self::Output => "Output",
        }
    }

    /// Its name on a narrow terminal.
    pub fn short_title(self) -> &'static str {
        match self {
            Self::Overview => "Over",
            Self::Segments => "Segs",
            Self::Processes => "Procs",
            Self::Output => "Out",
            screen => screen.title(),
        }
    }

    /// What it needs beyond what every snapshot has.
    pub fn detail(self) -> Detail {
        match self {
            Self::Lines => Detail::Calls,
            Self::Segments => Detail::Segments,
            Self::Events => Detail::Events,
            _ => Detail::None,
        }
    }
}

/// What lies over the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlay {
    /// The keys, from this row on.
    Help(u16),
    /// How to leave a program that still runs.
    Leave,
    /// What of the screen to write to a file.
    Export,
    /// The source around a line.
    Source(SourceView),
    /// Whether to offload a program.
    Move(Question),
    /// What went wrong, in full.
    Told(String),
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

/// The dashboard.
pub struct App {
    /// What is on the screen.
    pub shown: Arc<Snapshot>,
    latest: Arc<Snapshot>,
    /// Whether `shown` stands still; the program goes on.
    pub paused: bool,
    /// The moment it stands at.
    paused_at: Option<Cursor>,
    /// The screen in front.
    pub screen: Screen,
    /// Which device of which process, in the order of [`App::targets`].
    target: usize,
    /// The moment of tables and categories.
    pub moment: Moment,
    /// Whether a person chose it.
    moment_was_chosen: bool,
    /// The moment chosen, where `moment` is [`Moment::Then`].
    cursor: Option<Cursor>,
    /// The moment to go to when the first data comes.
    begins_at: Option<String>,
    /// How sizes are written.
    pub units: Units,
    /// How much of the past the chart shows.
    pub window: Window,
    /// Whether the chart shows what memory is used for.
    pub shows_categories: bool,
    /// Whether what a line or layer holds includes what those it calls hold.
    pub inclusive: bool,
    /// Whose lines are shown, if a person chose.
    scope: Option<Scope>,
    /// Which rows are shown.
    pub filter: Filter,
    /// The filter as it was typed.
    pub filter_text: String,
    /// What is being typed, and what for.
    pub prompt: Option<Prompt>,
    /// Something to tell until the next key.
    pub notice: Option<String>,
    /// What lies over the screen.
    pub overlay: Option<Overlay>,
    /// How far down the keys can be scrolled, as they were drawn.
    pub help_end: std::cell::Cell<u16>,
    /// The table of the overview that has the keys.
    pub focus: Focus,
    /// The lines.
    pub lines: LinesState,
    /// The layers.
    pub layers: LayersState,
    /// The memory map.
    pub segments: SegmentsState,
    /// The steps.
    pub steps: StepsState,
    /// The events.
    pub events: EventsState,
    /// The processes.
    pub processes: TableState<ProcessColumn>,
    /// Colours and glyphs.
    pub theme: Theme,
    /// Whether the mouse is taken from the terminal.
    pub takes_mouse: bool,
    /// What the mouse finds where; filled as the screen is drawn.
    pub spots: Spots,
    /// The present: nanoseconds since 1970.
    pub now_unix_ns: u64,
    /// The program, if this memlab started it.
    pub program: Option<Program>,
    /// Whether it reads what is typed.
    pub program_takes_keys: bool,
    /// Whether keys on the screen of its output go to it.
    types_to_program: bool,
    /// What it prints.
    output: Option<Arc<Mutex<ProgramScreen>>>,
    /// Where the memory of each process is, by its number.
    moves: HashMap<u32, MemoryLocation>,
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
            paused_at: None,
            screen: Screen::Overview,
            target: 0,
            moment: Moment::Now,
            moment_was_chosen: false,
            cursor: None,
            begins_at: None,
            units: Units::Auto,
            window: Window::Run,
            shows_categories: false,
            inclusive: false,
            scope: None,
            filter: Filter::default(),
            filter_text: String::new(),
            prompt: None,
            notice: None,
            overlay: None,
            help_end: std::cell::Cell::new(0),
            focus: Focus::Lines,
            lines: LinesState::default(),
            layers: LayersState::default(),
            segments: SegmentsState::default(),
            steps: StepsState::default(),
            events: EventsState::default(),
            processes: TableState::new(ProcessColumn::Process),
            theme,
            takes_mouse: true,
            spots: Spots::default(),
            now_unix_ns: 0,
            program: None,
            program_takes_keys: true,
            types_to_program: false,
            output: None,
            moves: HashMap::new(),
            waiting_for: waiting_for.into(),
        }
    }

    /// The same with a pane for what the program prints.
    pub fn with_program(mut self, output: Arc<Mutex<ProgramScreen>>) -> Self {
        self.program = Some(Program::Running);
        self.output = Some(output);
        self
    }

    /// New data. While paused it is kept for later, unless it answers what was asked since.
    pub fn on_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        self.latest = snapshot;
        let (new, old) = (&self.latest, &self.shown);
        let answers = (&new.cursor, new.detail, &new.trace) != (&old.cursor, old.detail, &old.trace);
        if !self.paused || answers && self.latest.cursor.is_some() {
            self.shown = self.latest.clone();
            self.go_where_it_begins();
            self.leave_an_empty_end();
        } else if self.awaits_comparison() {
            Arc::make_mut(&mut self.shown).comparison.clone_from(&self.latest.comparison);
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

    /// What snapshots should show beyond what all do.
    pub fn query(&self) -> Query {
        let detail = match self.screen.detail() {
            Detail::None if self.filter.asks_for_relations() => Detail::Relations,
            detail => detail,
        };
        // What is not in every snapshot for the peak has to be looked up there.
        let peak = (self.moment == Moment::Peak && matches!(detail, Detail::Segments | Detail::Events))
            .then(|| self.peak_cursor())
            .flatten();
        // Until there is something to show, nobody knows of which trace.
        let trace = self.process().map(|process| process.path.clone()).filter(|_| detail != Detail::None);
        let cursor = self.cursor.clone().or(peak).or_else(|| self.paused_cursor(detail, trace.as_ref()));
        Query { detail, trace, cursor, compare: self.wanted_comparison(), scope: self.scope }
    }

    /// Whether lines are on the screen.
    pub fn shows_lines(&self) -> bool {
        matches!(self.screen, Screen::Overview | Screen::Lines)
    }

    /// Shows the lines of libraries too, or the user's alone.
    fn turn_libraries(&mut self) {
        self.scope = Some(match self.process().map(|process| process.scope) {
            Some(Scope::Libraries) => Scope::Users,
            _ => Scope::Libraries,
        });
    }

    /// Whether what is shown is not yet what was asked for.
    pub fn is_seeking(&self) -> bool {
        !self.shown.processes.is_empty() && self.query().cursor != self.shown.cursor
    }

    /// The screens there are.
    pub fn screens(&self) -> &'static [Screen] {
        let all = &Screen::ALL;
        if self.output.is_some() { all } else { &all[..all.len() - 1] }
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

    /// Shows one of [`App::targets`].
    pub fn set_target(&mut self, target: usize) {
        self.target = target;
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

    /// What the program prints, if this memlab started it.
    pub fn output(&self) -> Option<MutexGuard<'_, ProgramScreen>> {
        self.output.as_ref().map(|output| output.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the program started by this memlab still runs.
    pub fn program_runs(&self) -> bool {
        self.program == Some(Program::Running)
    }
}
