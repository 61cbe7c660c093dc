//! What each key does.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{App, Focus, Moment, Overlay, Program, PromptKind, Screen, Window};
use crate::offload::mover::MoveOrder;

/// What a key asks of those who own the terminal and the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Leave; nothing runs that was started here.
    Quit,
    /// Leave, and let the program go on with the terminal.
    Detach,
    /// Send what was typed to the program.
    Input(Vec<u8>),
    /// Interrupt the program, as Ctrl-C does.
    Interrupt,
    /// Ask the program to end.
    Terminate,
    /// Draw all anew.
    Redraw,
    /// Write what is on the screen to a file.
    Export(ExportKind),
    /// Move a program's memory.
    Move(MoveOrder),
}

/// How what is on the screen is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportKind {
    /// The table as comma-separated values.
    Csv,
    /// The table as JSON.
    Json,
    /// The screen as a picture.
    Svg,
}

/// Columns that Shift moves the cursor at once.
const FAR_COLUMNS: i64 = 10;

/// Further than any table is long.
const FAR: isize = isize::MAX / 2;

impl App {
    /// A key was pressed.
    pub fn on_key(&mut self, key: KeyEvent) -> Option<Request> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        self.notice = None;
        if self.is_typing() {
            return self.on_typed_key(key);
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => self.on_interrupt(),
                KeyCode::Char('l') => Some(Request::Redraw),
                KeyCode::Char('d') => self.scroll(|page| page / 2),
                KeyCode::Char('u') => self.scroll(|page| -(page / 2)),
                _ => None,
            };
        }
        if self.prompt.is_some() {
            self.on_prompt_key(key.code);
            return None;
        }
        match &self.overlay {
            Some(Overlay::Leave) => self.on_leave_key(key.code),
            Some(Overlay::Export) => self.on_export_key(key.code),
            Some(Overlay::Source(_)) => self.on_source_key(key.code),
            Some(Overlay::Move(_)) => self.on_question_key(key.code),
            Some(Overlay::Help(row)) => {
                self.overlay = self.turn_help(*row, key.code);
                None
            }
            Some(Overlay::Told(_)) => {
                self.overlay = None;
                None
            }
            None => self.on_plain_key(key),
        }
    }

    /// Where the keys are scrolled to; any other key takes them away.
    fn turn_help(&self, row: u16, key: KeyCode) -> Option<Overlay> {
        const PAGE: u16 = 10;
        let to = match key {
            KeyCode::Down | KeyCode::Char('j') => row + 1,
            KeyCode::Up | KeyCode::Char('k') => row.saturating_sub(1),
            KeyCode::PageDown => row + PAGE,
            KeyCode::PageUp => row.saturating_sub(PAGE),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => u16::MAX,
            _ => return None,
        };
        Some(Overlay::Help(to.min(self.help_end.get())))
    }

    fn on_plain_key(&mut self, key: KeyEvent) -> Option<Request> {
        let by = if key.modifiers.contains(KeyModifiers::SHIFT) { FAR_COLUMNS } else { 1 };
        match key.code {
            KeyCode::Char('q') if self.program_runs() => self.overlay = Some(Overlay::Leave),
            KeyCode::Char('q') => return Some(Request::Quit),
            KeyCode::Char('?') | KeyCode::F(1) => self.overlay = Some(Overlay::Help(0)),
            KeyCode::Tab => self.turn_screen(1),
            KeyCode::BackTab => self.turn_screen(self.screens().len() - 1),
            KeyCode::Char(digit @ '1'..='9') => {
                let index = digit as usize - '1' as usize;
                self.screen = self.screens().get(index).copied().unwrap_or(self.screen);
            }
            KeyCode::Char(' ') => self.turn_pause(),
            KeyCode::Char('u') => self.units = self.units.next(),
            KeyCode::Char('w') => self.window = self.window.next(),
            KeyCode::Char('T') => self.theme = self.theme.next(),
            KeyCode::Char('d') => self.turn_target(1),
            KeyCode::Char('D') => self.turn_target(self.targets().len().saturating_sub(1)),
            KeyCode::Char('e') => self.overlay = Some(Overlay::Export),
            KeyCode::Char('i') => self.inclusive = !self.inclusive,
            KeyCode::Char('L') => self.turn_libraries(),
            KeyCode::Char('/') => self.ask_for(PromptKind::Filter),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('S') => self.invert_sort(),
            KeyCode::Char('o') => self.ask_to_offload(),
            KeyCode::Char('r') => return self.restore(),
            KeyCode::Esc => self.on_escape(),
            KeyCode::Enter => return self.on_enter(),
            // Moments.
            KeyCode::Char('p') => self.turn_moment(),
            KeyCode::Char('t') => self.ask_for(PromptKind::GoTo),
            KeyCode::Char('n') => self.go_to_next_step(true),
            KeyCode::Char('N') => self.go_to_next_step(false),
            KeyCode::Char('O') => self.notice = self.go_to_next_oom().err(),
            KeyCode::Left => self.move_cursor(-by),
            KeyCode::Right => self.move_cursor(by),
            // Rows.
            KeyCode::Down | KeyCode::Char('j') => return self.scroll(|_| 1),
            KeyCode::Up | KeyCode::Char('k') => return self.scroll(|_| -1),
            KeyCode::PageDown => return self.scroll(|page| page),
            KeyCode::PageUp => return self.scroll(|page| -page),
            KeyCode::Home | KeyCode::Char('g') => return self.scroll(|_| -FAR),
            KeyCode::End | KeyCode::Char('G') => return self.scroll(|_| FAR),
            code => self.on_screen_key(code),
        }
        None
    }

    /// Keys that mean something on some screens only.
    fn on_screen_key(&mut self, key: KeyCode) {
        match (self.screen, key) {
            (Screen::Overview, KeyCode::Char('h')) => self.focus = Focus::Lines,
            (Screen::Overview, KeyCode::Char('l')) => self.focus = Focus::Layers,
            (Screen::Overview, KeyCode::Char('+' | '=')) => self.zoom(true),
            (Screen::Overview, KeyCode::Char('-')) => self.zoom(false),
            (Screen::Overview, KeyCode::Char('0')) => self.window = Window::Run,
            (Screen::Overview, KeyCode::Char('c')) => self.shows_categories = !self.shows_categories,
            (Screen::Lines, KeyCode::Char('l' | '+')) => self.open_line(true),
            (Screen::Lines, KeyCode::Char('h' | '-')) => self.open_line(false),
            (Screen::Lines, KeyCode::Char('c')) => self.lines.turn_tree(),
            (Screen::Layers, KeyCode::Char('l' | '+')) => self.open_layer(true),
            (Screen::Layers, KeyCode::Char('h' | '-')) => self.open_layer(false),
            (Screen::Layers, KeyCode::Char('z')) => self.layers.turn_all(),
            (Screen::Segments, key) => self.on_segments_key(key),
            (Screen::Steps, key) => self.on_steps_key(key),
            _ => {}
        }
    }

    /// The row under the cursor is chosen.
    pub(super) fn on_enter(&mut self) -> Option<Request> {
        match self.screen {
            Screen::Overview => {
                self.screen = if self.focus == Focus::Lines { Screen::Lines } else { Screen::Layers };
            }
            Screen::Lines => self.show_source(),
            Screen::Layers => self.turn_layer(),
            Screen::Segments => self.show_block_source(),
            Screen::Steps => self.go_to_selected_step(),
            Screen::Events => self.go_to_selected_event(),
            Screen::Processes => self.show_selected_process(),
            Screen::Output => self.type_to_program(),
        }
        None
    }

    /// Takes back what was narrowed last: the filter, then the moment.
    fn on_escape(&mut self) {
        if !self.filter.is_empty() {
            self.set_filter("");
        } else if self.moment == Moment::Then {
            self.show(Moment::Now);
        }
    }

    /// Ctrl-C: leaves when nothing was started here, else asks, and the second time interrupts.
    fn on_interrupt(&mut self) -> Option<Request> {
        if !self.program_runs() {
            return Some(Request::Quit);
        }
        if self.overlay == Some(Overlay::Leave) {
            self.overlay = None;
            return Some(Request::Interrupt);
        }
        self.overlay = Some(Overlay::Leave);
        None
    }

    fn on_leave_key(&mut self, key: KeyCode) -> Option<Request> {
        let request = match key {
            KeyCode::Char('i') => Some(Request::Interrupt),
            KeyCode::Char('t') => Some(Request::Terminate),
            KeyCode::Char('d') => Some(Request::Detach),
            KeyCode::Char('q') if !self.program_runs() => Some(Request::Quit),
            KeyCode::Esc | KeyCode::Char('n' | 'q') => None,
            _ => return None,
        };
        self.overlay = None;
        request
    }

    fn on_export_key(&mut self, key: KeyCode) -> Option<Request> {
        self.overlay = None;
        match key {
            KeyCode::Char('c') => Some(Request::Export(ExportKind::Csv)),
            KeyCode::Char('j') => Some(Request::Export(ExportKind::Json)),
            KeyCode::Char('s') => Some(Request::Export(ExportKind::Svg)),
            _ => None,
        }
    }

    /// The program ended.
    pub fn on_program_end(&mut self, how: String) {
        self.program = Some(Program::Ended(how));
        self.types_to_program = false;
        if self.overlay == Some(Overlay::Leave) {
            self.overlay = None;
        }
    }

    fn turn_screen(&mut self, by: usize) {
        let screens = self.screens();
        let index = screens.iter().position(|screen| *screen == self.screen).unwrap_or(0);
        self.screen = screens[(index + by) % screens.len()];
    }

    fn turn_pause(&mut self) {
        self.paused = !self.paused;
        self.paused_at = if self.paused { self.latest_cursor() } else { None };
        if !self.paused {
            let latest = self.latest.clone();
            self.on_snapshot(latest);
        }
    }

    fn turn_target(&mut self, by: usize) {
        let targets = self.targets().len();
        if targets > 0 {
            self.target = (self.target() + by) % targets;
        }
    }

    /// The screen whose table has the keys: the overview lends them to that of its pane.
    fn table(&self) -> Screen {
        match (self.screen, self.focus) {
            (Screen::Overview, Focus::Lines) => Screen::Lines,
            (Screen::Overview, Focus::Layers) => Screen::Layers,
            (screen, _) => screen,
        }
    }

    fn sort_by_next(&mut self) {
        match self.table() {
            Screen::Lines => self.lines.table.sort_by_next(),
            Screen::Layers => self.layers.table.sort_by_next(),
            Screen::Steps => self.steps.table.sort_by_next(),
            Screen::Events => self.events.table.sort_by_next(),
            Screen::Processes => self.processes.sort_by_next(),
            Screen::Segments => self.segments.sort_by_next(),
            Screen::Overview | Screen::Output => {}
        }
    }

    /// Sorts by a column of the table, the other way round if it already is.
    pub(super) fn sort_by(&mut self, column: usize) {
        match self.table() {
            Screen::Lines => self.lines.table.sort_by(column),
            Screen::Layers => self.layers.table.sort_by(column),
            Screen::Steps => self.steps.table.sort_by(column),
            Screen::Events => self.events.table.sort_by(column),
            Screen::Processes => self.processes.sort_by(column),
            Screen::Overview | Screen::Segments | Screen::Output => {}
        }
    }

    fn invert_sort(&mut self) {
        let ascending = match self.table() {
            Screen::Lines => &mut self.lines.table.ascending,
            Screen::Layers => &mut self.layers.table.ascending,
            Screen::Steps => &mut self.steps.table.ascending,
            Screen::Events => &mut self.events.table.ascending,
            Screen::Processes => &mut self.processes.ascending,
            Screen::Overview | Screen::Segments | Screen::Output => return,
        };
        *ascending = !*ascending;
    }

    /// Puts the cursor on a row; whether it was there already.
    pub(super) fn select(&mut self, row: usize) -> bool {
        let selected = match self.table() {
            Screen::Lines => &mut self.lines.table.selected,
            Screen::Layers => &mut self.layers.table.selected,
            Screen::Steps => &mut self.steps.table.selected,
            Screen::Events => &mut self.events.table.selected,
            Screen::Processes => &mut self.processes.selected,
            Screen::Overview | Screen::Segments | Screen::Output => return false,
        };
        std::mem::replace(selected, row) == row
    }

    /// Moves what is on the screen by some of the rows of its page.
    pub(super) fn scroll(&mut self, by: impl Fn(isize) -> isize) -> Option<Request> {
        match self.table() {
            Screen::Lines => self.lines.table.scroll(by),
            Screen::Layers => self.layers.table.scroll(by),
            Screen::Segments => self.scroll_segments(by),
            Screen::Steps => self.steps.table.scroll(by),
            Screen::Events => self.events.table.scroll(by),
            Screen::Processes => self.processes.scroll(by),
            Screen::Overview => {}
            Screen::Output => {
                if let Some(mut output) = self.output() {
                    let page = output.rows() as isize;
                    output.scroll(by(page));
                }
            }
        }
        None
    }
}
