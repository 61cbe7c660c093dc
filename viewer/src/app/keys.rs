//! What each key does.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use memlab_trace::{LayerView, LineView};

use super::{App, Focus, LayerColumn, LineColumn, Moment, Overlay, Program, Screen, TableState};

/// What a key asks of those who own the terminal and the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Leave; nothing runs that was started here.
    Quit,
    /// Leave, and let the program go on with the terminal.
    Detach,
    /// Interrupt the program, as Ctrl-C does.
    Interrupt,
    /// Ask the program to end.
    Terminate,
    /// Draw all anew.
    Redraw,
}

impl App {
    /// A key was pressed.
    pub fn on_key(&mut self, key: KeyEvent) -> Option<Request> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control {
            return match key.code {
                KeyCode::Char('c') => self.on_interrupt(),
                KeyCode::Char('l') => Some(Request::Redraw),
                KeyCode::Char('d') => self.scroll(|page| page / 2),
                KeyCode::Char('u') => self.scroll(|page| -(page / 2)),
                _ => None,
            };
        }
        if self.filter.editing {
            self.on_filter_key(key.code);
            return None;
        }
        match self.overlay {
            Some(Overlay::Leave) => self.on_leave_key(key.code),
            Some(Overlay::Help) => {
                self.overlay = None;
                None
            }
            None => self.on_plain_key(key.code),
        }
    }

    fn on_plain_key(&mut self, key: KeyCode) -> Option<Request> {
        match key {
            KeyCode::Char('q') if self.program_runs() => self.overlay = Some(Overlay::Leave),
            KeyCode::Char('q') => return Some(Request::Quit),
            KeyCode::Char('?') | KeyCode::F(1) => self.overlay = Some(Overlay::Help),
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
            KeyCode::Char('p') => self.turn_moment(),
            KeyCode::Char('/') => self.filter.editing = true,
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('S') => self.invert_sort(),
            KeyCode::Esc => self.filter.text.clear(),
            KeyCode::Enter if self.screen == Screen::Overview => {
                self.screen = if self.focus == Focus::Lines { Screen::Lines } else { Screen::Layers };
            }
            KeyCode::Left | KeyCode::Char('h') => self.focus = Focus::Lines,
            KeyCode::Right | KeyCode::Char('l') => self.focus = Focus::Layers,
            KeyCode::Down | KeyCode::Char('j') => return self.scroll(|_| 1),
            KeyCode::Up | KeyCode::Char('k') => return self.scroll(|_| -1),
            KeyCode::PageDown => return self.scroll(|page| page),
            KeyCode::PageUp => return self.scroll(|page| -page),
            KeyCode::Home | KeyCode::Char('g') => return self.scroll(|_| -FAR),
            KeyCode::End | KeyCode::Char('G') => return self.scroll(|_| FAR),
            _ => {}
        }
        None
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

    fn on_filter_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.filter.editing = false,
            KeyCode::Esc => {
                self.filter.editing = false;
                self.filter.text.clear();
            }
            KeyCode::Backspace => {
                self.filter.text.pop();
            }
            KeyCode::Char(character) if !crate::text::is_unsafe(character) && self.filter.text.len() < 256 => {
                self.filter.text.push(character);
            }
            _ => {}
        }
    }

    /// The program ended.
    pub fn on_program_end(&mut self, how: String) {
        self.program = Some(Program::Ended(how));
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

    fn turn_moment(&mut self) {
        self.show(match self.moment {
            Moment::Now => Moment::Peak,
            Moment::Peak => Moment::Now,
        });
    }

    /// Shows a moment.
    pub fn show(&mut self, moment: Moment) {
        let old = self.moment;
        self.moment = moment;
        self.moment_was_chosen = true;
        // A table sorted by the figure of the old moment follows.
        follow::<LineView, LineColumn>(&mut self.lines, old, self.moment);
        follow::<LayerView, LayerColumn>(&mut self.layers, old, self.moment);
    }

    /// Whether the keys of tables go to the layers.
    fn on_layers(&self) -> bool {
        match self.screen {
            Screen::Overview => self.focus == Focus::Layers,
            screen => screen == Screen::Layers,
        }
    }

    fn sort_by_next(&mut self) {
        if self.on_layers() {
            self.layers.sort_by_next::<LayerView>();
        } else {
            self.lines.sort_by_next::<LineView>();
        }
    }

    fn invert_sort(&mut self) {
        if self.on_layers() {
            self.layers.ascending = !self.layers.ascending;
        } else {
            self.lines.ascending = !self.lines.ascending;
        }
    }

    fn scroll(&mut self, by: impl Fn(isize) -> isize) -> Option<Request> {
        if self.screen == Screen::Output {
            if let Some(mut output) = self.output() {
                let page = output.rows() as isize;
                output.scroll(by(page));
            }
        } else if self.on_layers() {
            self.layers.step(by(self.layers.page as isize));
        } else {
            self.lines.step(by(self.lines.page as isize));
        }
        None
    }
}

/// Further than any table is long.
const FAR: isize = isize::MAX / 2;

fn follow<Row, C: super::Column<Row>>(table: &mut TableState<C>, old: Moment, new: Moment) {
    if table.sort == C::of_moment(old) {
        table.sort = C::of_moment(new);
    }
}
