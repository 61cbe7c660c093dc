//! State and keys of the output screen: the program that `memlab run --live` started, and the target of the keys.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossterm::event::{KeyCode, KeyEvent};

use super::typed_bytes::typed_bytes;
use crate::context::Context;
use crate::program_terminal::ProgramTerminal;
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use memlab_follow::request::UiRequest;

/// The program that `memlab run --live` started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// Still runs.
    Running,
    /// Ended; a description.
    Ended(String),
}

/// Screen of the program's output.
#[derive(Default)]
pub struct OutputScreen {
    /// The program, if this memlab started it.
    pub program: Option<Program>,
    /// True if its standard input is this terminal.
    pub takes_keys: bool,
    /// True if keys on this screen go to the program.
    pub(super) is_typing: bool,
    terminal: Option<Arc<Mutex<ProgramTerminal>>>,
}

impl ScreenState for OutputScreen {
    /// Sends keys to the program from now on, if it reads them.
    fn on_enter(&mut self, context: &mut Context) -> Option<Action> {
        if !self.program_runs() {
            context.notice = Some("the program has ended".to_owned());
        } else if !self.takes_keys {
            context.notice = Some("the program's input is a pipe or a file, not this terminal".to_owned());
        } else {
            self.is_typing = true;
            // The cursor of the program is at the end of its output.
            if let Some(mut terminal) = self.terminal() {
                terminal.scroll(isize::MAX / 2);
            }
        }
        None
    }

    fn scroll(&mut self, by: &dyn Fn(isize) -> isize, _context: &Context) {
        if let Some(mut terminal) = self.terminal() {
            let page = terminal.rows() as isize;
            terminal.scroll(by(page));
        }
    }

    fn footer_keys(&self, _context: &Context) -> FooterKeys {
        let keys = [("⏎", "type input"), ("↑↓", "scroll"), ("G", "latest"), ("Tab", "next screen")];
        FooterKeys { first: footer_keys(&keys), ..FooterKeys::default() }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "Output of the program",
            keys: &[
                ("j  k, PgUp PgDn", "scroll; G: the latest"),
                ("Enter", "type to the program: it gets every key, Ctrl-C too, until Esc"),
            ],
        }
    }
}

impl OutputScreen {
    /// Screen of a running program that prints to `terminal`.
    pub fn of_program(terminal: Arc<Mutex<ProgramTerminal>>) -> Self {
        Self { program: Some(Program::Running), takes_keys: true, is_typing: false, terminal: Some(terminal) }
    }

    /// True if this memlab started a program.
    pub fn has_program(&self) -> bool {
        self.terminal.is_some()
    }

    /// Terminal of the program.
    pub fn terminal(&self) -> Option<MutexGuard<'_, ProgramTerminal>> {
        self.terminal.as_ref().map(|terminal| terminal.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True while the program runs.
    pub fn program_runs(&self) -> bool {
        self.program == Some(Program::Running)
    }

    /// True if keys on this screen go to the program.
    pub fn is_typing(&self) -> bool {
        self.is_typing && self.program_runs()
    }

    /// Handles the end of the program.
    pub fn on_program_end(&mut self, how: String) {
        self.program = Some(Program::Ended(how));
        self.is_typing = false;
    }

    /// Handles a key while keys go to the program; Esc ends that.
    pub fn on_typed_key(&mut self, key: KeyEvent) -> Option<UiRequest> {
        if key.code == KeyCode::Esc {
            self.is_typing = false;
            return None;
        }
        let keypad = self.terminal().is_some_and(|terminal| terminal.screen().application_cursor());
        Some(UiRequest::Input(typed_bytes(key, keypad)?))
    }
}
