//! Handles keys. The overlay and the prompt come first, then the dashboard, then the screen in front.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::moving::who;
use super::prompt::PromptKind;
use super::state::App;
use crate::context::ShownMoment;
use crate::overlays::{AdviceView, Answer, ExportMenu, FindingsView, Help, HoldersView, Overlay, SourceView};
use crate::screen::Screen;
use crate::screens::screen_state::Action;
use memlab_base::findings::Kind;
use memlab_base::query::HoldersQuery;
use memlab_follow::request::UiRequest;

/// Number of columns that the cursor moves with Shift.
const SHIFT_COLUMNS: i64 = 10;

/// More rows than any table has.
const ALL_ROWS: isize = isize::MAX / 2;

impl App {
    /// Handles a key press.
    pub fn on_key(&mut self, key: KeyEvent) -> Option<UiRequest> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        self.change_moment(|app| app.route_key(key))
    }

    fn route_key(&mut self, key: KeyEvent) -> Option<UiRequest> {
        self.context.notice = None;
        if self.is_typing() {
            return self.output.on_typed_key(key);
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return self.on_interrupt(),
                KeyCode::Char('l') => return Some(UiRequest::Redraw),
                KeyCode::Char('d') => self.scroll(&|page| page / 2),
                KeyCode::Char('u') => self.scroll(&|page| -(page / 2)),
                _ => {}
            }
            return None;
        }
        if self.prompt.is_some() {
            self.on_prompt_key(key.code);
            return None;
        }
        if let Some(overlay) = &mut self.overlay {
            return match overlay.on_key(key.code, self.output.program_runs()) {
                Answer::Stay => None,
                Answer::Copy(text) => {
                    self.context.notice = Some("copied, if the terminal allows it".to_owned());
                    Some(UiRequest::Copy(text))
                }
                Answer::Close => {
                    self.overlay = None;
                    None
                }
                Answer::Request(request) => {
                    self.overlay = None;
                    Some(request)
                }
                Answer::GoToFinding(index) => {
                    self.overlay = None;
                    self.go_to_finding(index);
                    None
                }
            };
        }
        self.on_plain_key(key)
    }

    /// True while keys go to the program.
    pub fn is_typing(&self) -> bool {
        self.screen == Screen::Output && self.output.is_typing() && self.overlay.is_none()
    }

    fn on_plain_key(&mut self, key: KeyEvent) -> Option<UiRequest> {
        let by = if key.modifiers.contains(KeyModifiers::SHIFT) { SHIFT_COLUMNS } else { 1 };
        match key.code {
            KeyCode::Char('q') if self.output.program_runs() => self.overlay = Some(Overlay::Leave),
            KeyCode::Char('q') => return Some(UiRequest::Quit),
            KeyCode::Char('?') | KeyCode::F(1) => {
                self.overlay = Some(Overlay::Help(Help::new(self.current_screen().help())))
            }
            KeyCode::Tab => self.turn_screen(1),
            KeyCode::BackTab => self.turn_screen(self.screens().len() - 1),
            KeyCode::Char(digit @ '1'..='9') => {
                let index = digit as usize - '1' as usize;
                self.screen = self.screens().get(index).copied().unwrap_or(self.screen);
            }
            KeyCode::Char(' ') => self.toggle_pause(),
            KeyCode::Char('u') => self.context.units = self.context.units.next(),
            KeyCode::Char('w') => self.context.window = self.context.window.next(),
            KeyCode::Char('T') => self.context.theme = self.context.theme.next(),
            KeyCode::Char('d') => self.context.turn_target(1),
            KeyCode::Char('D') => self.context.turn_target(self.context.target_count().saturating_sub(1)),
            KeyCode::Char('e') => {
                // The overview and the output are not tables.
                let has_rows = !matches!(self.screen, Screen::Overview | Screen::Output);
                self.overlay = Some(Overlay::Export(ExportMenu { has_rows }));
            }
            KeyCode::Char('!') => self.show_findings(),
            KeyCode::Char('A') => {
                let process = self.context.process();
                self.overlay = process.map(|process| Overlay::Advice(AdviceView::open(&process.path)));
            }
            KeyCode::Char('H') => self.show_holders(),
            KeyCode::Char('i') => self.context.inclusive = !self.context.inclusive,
            KeyCode::Char('L') => self.context.toggle_libraries(),
            KeyCode::Char('b') | KeyCode::Backspace => self.screen = Screen::Ranks,
            KeyCode::Char('/') => self.ask_for(PromptKind::Filter),
            KeyCode::Char('s') => {
                let (screen, context) = self.screen_mut(self.table_screen());
                screen.sort_by_next(context);
            }
            KeyCode::Char('S') => {
                if let Some(table) = self.screen_mut(self.table_screen()).0.table() {
                    table.invert_sort();
                }
            }
            KeyCode::Char('o') => self.confirm_offload(),
            KeyCode::Char('r') => return self.restore(),
            KeyCode::Esc => self.on_escape(),
            KeyCode::Enter => self.on_enter(),
            // Moments.
            KeyCode::Char('p') => self.context.toggle_peak(),
            KeyCode::Char('t') => self.ask_for(PromptKind::GoTo),
            KeyCode::Char('n') => self.context.go_to_next_step(true),
            KeyCode::Char('N') => self.context.go_to_next_step(false),
            KeyCode::Char('O') => self.context.notice = self.context.go_to_next_oom().err(),
            KeyCode::Left => self.context.move_cursor(-by),
            KeyCode::Right => self.context.move_cursor(by),
            // Rows.
            KeyCode::Down | KeyCode::Char('j') => self.scroll(&|_| 1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(&|_| -1),
            KeyCode::PageDown => self.scroll(&|page| page),
            KeyCode::PageUp => self.scroll(&|page| -page),
            KeyCode::Home | KeyCode::Char('g') => self.scroll(&|_| -ALL_ROWS),
            KeyCode::End | KeyCode::Char('G') => self.scroll(&|_| ALL_ROWS),
            code => {
                let (screen, context) = self.screen_mut(self.screen);
                screen.on_key(code, context);
            }
        }
        None
    }

    /// Handles Enter on the row under the cursor.
    pub(super) fn on_enter(&mut self) {
        let (screen, context) = self.screen_mut(self.screen);
        match screen.on_enter(context) {
            Some(Action::Show(screen)) => self.screen = screen,
            Some(Action::OpenSource(line)) => {
                let process = self.context.process();
                self.overlay = process.map(|process| Overlay::Source(SourceView::open(line, process)));
            }
            None => {}
        }
    }

    /// Shows the findings in full.
    pub(super) fn show_findings(&mut self) {
        self.overlay = Some(Overlay::Findings(FindingsView::default()));
    }

    /// Shows the moment of a finding, and its line if it names one.
    fn go_to_finding(&mut self, index: usize) {
        let context = &mut self.context;
        let Some(finding) = context.process().and_then(|process| process.findings.get(index)).cloned() else { return };
        context.show_device(finding.device);
        match finding.kind {
            Kind::OutOfMemory => context.notice = context.go_to_oom_of(finding.device).err(),
            // Grown memory is seen at the end of the last step: the end of the run may have freed it.
            Kind::Leak => match context.device().and_then(|device| device.steps.last().copied()) {
                Some(step) => context.go_to_event(step.end_event, step.end_time),
                None => context.go_home(),
            },
            _ => context.show(ShownMoment::Peak),
        }
        if let Some(line) = &finding.line {
            context.clear_filter();
            self.screen = Screen::Lines;
            self.lines.select_line(line.clone());
        } else {
            self.screen = if finding.kind == Kind::Fragmentation { Screen::Segments } else { Screen::Overview };
        }
    }

    /// Shows what holds the memory of the line or layer under the cursor.
    fn show_holders(&mut self) {
        let row = self.current_screen().held_row(&self.context);
        let shown = self.context.process().zip(self.context.device());
        match (row, shown) {
            (Some((of, name)), Some((process, device))) => {
                let (trace, device) = (process.path.clone(), device.totals.index);
                let query = HoldersQuery { trace, device, of, since: None };
                self.overlay = Some(Overlay::Holders(HoldersView::open(query, name, who(process), process)));
            }
            _ => self.context.notice = Some("select a Python line or a layer on its screen first".to_owned()),
        }
    }

    /// Removes the filter, then goes back from the chosen moment.
    fn on_escape(&mut self) {
        if !self.context.filter.is_empty() {
            self.context.clear_filter();
        } else {
            self.context.go_home();
        }
    }

    /// Ctrl-C: leaves unless a program started here still runs. Otherwise asks, and the second time interrupts the
    /// program.
    fn on_interrupt(&mut self) -> Option<UiRequest> {
        if !self.output.program_runs() {
            return Some(UiRequest::Quit);
        }
        if self.overlay == Some(Overlay::Leave) {
            self.overlay = None;
            return Some(UiRequest::Interrupt);
        }
        self.overlay = Some(Overlay::Leave);
        None
    }

    fn turn_screen(&mut self, by: usize) {
        let screens = self.screens();
        let index = screens.iter().position(|screen| *screen == self.screen).unwrap_or(0);
        self.screen = screens[(index + by) % screens.len()];
    }

    /// Moves the cursor of the screen in front by rows; `by` receives the number of rows on a page.
    pub(super) fn scroll(&mut self, by: &dyn Fn(isize) -> isize) {
        let (screen, context) = self.screen_mut(self.table_screen());
        screen.scroll(by, context);
    }
}
