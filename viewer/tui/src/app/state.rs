//! State of the dashboard, and its incoming data.

use std::sync::{Arc, Mutex};

use super::prompt::Prompt;
use crate::config::Config;
use crate::context::{ChartWindow, Context, ShownMoment};
use crate::overlays::Overlay;
use crate::program_terminal::ProgramTerminal;
use crate::screen::{OverviewTable, Screen};
use crate::screens::events::EventsScreen;
use crate::screens::layers::LayersScreen;
use crate::screens::lines::LinesScreen;
use crate::screens::output::OutputScreen;
use crate::screens::overview::OverviewScreen;
use crate::screens::ranks::RanksScreen;
use crate::screens::screen_state::ScreenState;
use crate::screens::segments::SegmentsScreen;
use crate::screens::steps::StepsScreen;
use crate::screens::time::TimeScreen;
use memlab_base::query::{ComparisonQuery, Cursor, Detail, Query};
use memlab_base::theme::Theme;
use memlab_follow::offload::mover::MoverUpdate;
use memlab_follow::snapshot::{ProcessState, Snapshot};

/// Minimum advance of the displayed time before the screen is redrawn.
const CLOCK_RESOLUTION_NS: u64 = 250_000_000;

/// The dashboard.
pub struct App {
    /// State shared by all screens.
    pub context: Context,
    /// The screen in front.
    pub screen: Screen,
    pub overview: OverviewScreen,
    pub lines: LinesScreen,
    pub layers: LayersScreen,
    pub segments: SegmentsScreen,
    pub steps: StepsScreen,
    pub events: EventsScreen,
    pub ranks: RanksScreen,
    pub time: TimeScreen,
    pub output: OutputScreen,
    /// Overlay drawn over the screen.
    pub overlay: Option<Overlay>,
    /// The line being typed.
    pub prompt: Option<Prompt>,
    /// True if the dashboard uses the mouse.
    pub uses_mouse: bool,
    /// Message while no trace exists yet.
    pub waiting_for: String,
    /// Time of the first tick: nanoseconds since 1970; 0 before it.
    started_unix_ns: u64,
    pub latest: Arc<Snapshot>,
    /// Latest moment at the time of the pause.
    paused_at: Option<Cursor>,
    /// Moment to go to when the first data arrives.
    start_moment: Option<String>,
}

/// State of a screen of `$app`, borrowed as `&dyn ScreenState` or, with `mut`, as `&mut dyn ScreenState`.
macro_rules! screen_state {
    ($app:ident, $screen:expr $(, $mutable:tt)?) => {{
        let state: &$($mutable)? dyn ScreenState = match $screen {
            Screen::Overview => &$($mutable)? $app.overview,
            Screen::Lines => &$($mutable)? $app.lines,
            Screen::Layers => &$($mutable)? $app.layers,
            Screen::Segments => &$($mutable)? $app.segments,
            Screen::Steps => &$($mutable)? $app.steps,
            Screen::Events => &$($mutable)? $app.events,
            Screen::Ranks => &$($mutable)? $app.ranks,
            Screen::Time => &$($mutable)? $app.time,
            Screen::Output => &$($mutable)? $app.output,
        };
        state
    }};
}

impl App {
    /// Makes a dashboard that waits for its first snapshot.
    pub fn new(theme: Theme, waiting_for: impl Into<String>) -> Self {
        Self {
            context: Context::new(theme),
            screen: Screen::Overview,
            overview: OverviewScreen::default(),
            lines: LinesScreen::default(),
            layers: LayersScreen::default(),
            segments: SegmentsScreen::default(),
            steps: StepsScreen::default(),
            events: EventsScreen::default(),
            ranks: RanksScreen::default(),
            time: TimeScreen::default(),
            output: OutputScreen::default(),
            overlay: None,
            prompt: None,
            uses_mouse: true,
            waiting_for: waiting_for.into(),
            started_unix_ns: 0,
            latest: Arc::default(),
            paused_at: None,
            start_moment: None,
        }
    }

    /// Adds a screen for the output that the program prints to `terminal`.
    pub fn with_program(mut self, terminal: Arc<Mutex<ProgramTerminal>>) -> Self {
        self.output = OutputScreen::of_program(terminal);
        self
    }

    /// Applies the user's preferences.
    pub fn configure(&mut self, config: &Config) {
        self.context.units = config.units;
        self.context.inclusive = config.inclusive;
        self.context.window = match config.window_seconds {
            0 => ChartWindow::Run,
            seconds => ChartWindow::Last(seconds),
        };
        self.screen = config.screen;
        self.uses_mouse = config.mouse;
    }

    /// Available screens.
    pub fn screens(&self) -> Vec<Screen> {
        let has_program = self.output.has_program();
        Screen::ALL.into_iter().filter(|screen| *screen != Screen::Output || has_program).collect()
    }

    /// State of a screen, and the context.
    pub(super) fn screen_mut(&mut self, screen: Screen) -> (&mut dyn ScreenState, &mut Context) {
        (screen_state!(self, screen, mut), &mut self.context)
    }

    /// State of the screen in front.
    pub(super) fn current_screen(&self) -> &dyn ScreenState {
        screen_state!(self, self.screen)
    }

    /// The screen whose rows the keys move; on the overview, the screen of the table with the focus.
    pub(super) fn table_screen(&self) -> Screen {
        match (self.screen, self.overview.focus) {
            (Screen::Overview, OverviewTable::Lines) => Screen::Lines,
            (Screen::Overview, OverviewTable::Layers) => Screen::Layers,
            (screen, _) => screen,
        }
    }

    /// Takes new data. While paused, data is kept for later, unless it answers a newer query.
    pub fn on_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        self.latest = snapshot;
        if let Some(Overlay::Holders(view)) = &mut self.overlay {
            view.on_snapshot(&self.latest);
        }
        let (new, old) = (&self.latest, &self.context.snapshot);
        let is_response = (&new.cursor, new.detail, &new.trace) != (&old.cursor, old.detail, &old.trace);
        if !self.context.paused || is_response && self.latest.cursor.is_some() {
            self.context.set_snapshot(self.latest.clone());
            self.change_moment(|app| {
                app.go_to_start_moment();
                app.context.settle_moment();
            });
        } else if self.awaits_comparison() {
            Arc::make_mut(&mut self.context.snapshot).comparison.clone_from(&self.latest.comparison);
        }
    }

    /// Advances the clock; returns true if the screen must be redrawn.
    pub fn on_tick(&mut self, now_unix_ns: u64) -> bool {
        let is_awaited = self.overlay.as_ref().is_some_and(Overlay::is_waiting);
        if self.context.paused {
            return is_awaited;
        }
        if self.started_unix_ns == 0 {
            self.started_unix_ns = now_unix_ns;
        }
        let clock = |now: u64| {
            let shown = self.context.process().map_or_else(|| self.waited(now), |process| process.until(now));
            shown / CLOCK_RESOLUTION_NS
        };
        let changed = clock(self.context.now_unix_ns) != clock(now_unix_ns);
        self.context.now_unix_ns = now_unix_ns;
        changed || is_awaited
    }

    /// Nanoseconds since the dashboard was opened.
    pub(super) fn waited(&self, now_unix_ns: u64) -> u64 {
        now_unix_ns.saturating_sub(self.started_unix_ns)
    }

    /// Handles the end of the program.
    pub fn on_program_end(&mut self, how: String) {
        self.output.on_program_end(how);
        if self.overlay == Some(Overlay::Leave) {
            self.overlay = None;
        }
    }

    /// Takes the locations of the processes' memory, and the results of orders.
    pub fn on_mover_update(&mut self, update: MoverUpdate) {
        self.context.memory_locations = update.known;
        for outcome in update.outcomes {
            match outcome {
                // The error is long and contains the next step.
                Err(error) if self.overlay.is_none() && self.prompt.is_none() => {
                    self.overlay = Some(Overlay::Message(error));
                }
                Ok(words) | Err(words) => self.context.notice = Some(words),
            }
        }
    }

    /// Query for the next snapshot.
    pub fn query(&self) -> Query {
        let context = &self.context;
        let detail = match self.screen.detail() {
            Detail::None if context.filter.asks_for_relations() => Detail::Relations,
            detail => detail,
        };
        // Snapshots contain only some figures of the peak; the others require a lookup at that moment.
        let peak = (context.moment == ShownMoment::Peak && matches!(detail, Detail::Segments | Detail::Events))
            .then(|| context.peak_cursor())
            .flatten();
        let trace = context.process().map(|process| process.path.clone()).filter(|_| detail != Detail::None);
        let cursor = context.cursor().cloned().or(peak).or_else(|| {
            let shown = &context.snapshot;
            let is_there = (detail, trace.as_ref()) == (shown.detail, shown.trace.as_ref());
            // The moment of the pause, for figures that the displayed snapshot lacks.
            self.paused_at.clone().filter(|_| !is_there || shown.cursor.is_some())
        });
        let front = context.process().map(|process| process.path.clone());
        let holders = match &self.overlay {
            Some(Overlay::Holders(view)) => view.query(),
            _ => None,
        };
        Query { detail, trace, front, cursor, compare: self.comparison_query(), holders, scope: context.scope }
    }

    fn comparison_query(&self) -> Option<ComparisonQuery> {
        if self.screen == Screen::Steps { self.steps.comparison_query(&self.context) } else { None }
    }

    /// True while a comparison is outstanding.
    pub fn awaits_comparison(&self) -> bool {
        self.screen == Screen::Steps && self.steps.awaits_comparison(&self.context)
    }

    /// True until the displayed snapshot is of the requested moment.
    pub fn is_seeking(&self) -> bool {
        !self.context.snapshot.processes.is_empty() && self.query().cursor != self.context.snapshot.cursor
    }

    /// Goes to a moment as soon as a trace exists; see [`Context::go_to`].
    pub fn start_at(&mut self, text: &str) {
        self.start_moment = Some(text.to_owned());
    }

    fn go_to_start_moment(&mut self) {
        let context = &mut self.context;
        if context.device().is_some_and(|device| device.totals.peak_used_bytes > 0)
            && context
                .process()
                .is_some_and(|process| !process.is_summary && !matches!(process.state, ProcessState::Opening { .. }))
            && let Some(text) = self.start_moment.take()
        {
            context.notice = context.go_to(&text).err();
        }
    }

    /// Runs an action that may change the displayed moment.
    ///
    /// Tables sorted by the old moment's figure are then sorted by the new one's.
    pub fn change_moment<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.context.moment;
        let result = change(self);
        let after = self.context.moment;
        if before != after {
            self.lines.table.follow(before, after);
            self.layers.follow(before, after);
        }
        result
    }

    /// Pauses or resumes the display.
    pub(super) fn toggle_pause(&mut self) {
        self.context.paused = !self.context.paused;
        self.paused_at = if self.context.paused { self.context.latest_cursor() } else { None };
        if !self.context.paused {
            let latest = self.latest.clone();
            self.on_snapshot(latest);
        }
    }
}
