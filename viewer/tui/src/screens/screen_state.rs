//! What the dashboard asks of every screen.

use std::sync::Arc;

use crossterm::event::KeyCode;
use memlab_trace::Line;

use crate::context::Context;
use crate::screen::Screen;
use crate::widgets::columns::TableControl;
use memlab_report::export::rows::Rows;

/// The state of a screen, as far as all screens have the same.
pub trait ScreenState {
    /// A key that means something on this screen only.
    fn on_key(&mut self, _key: KeyCode, _context: &mut Context) {}

    /// Enter, or a click on the row under the cursor.
    fn on_enter(&mut self, context: &mut Context) -> Option<Action>;

    /// The table that the keys move and sort, if the screen has one.
    fn table(&mut self) -> Option<&mut dyn TableControl> {
        None
    }

    /// Moves the cursor by some rows; `by` takes the rows of a page.
    fn scroll(&mut self, by: &dyn Fn(isize) -> isize, _context: &Context) {
        if let Some(table) = self.table() {
            table.scroll(by);
        }
    }

    /// Changes the order of what is shown.
    fn sort_by_next(&mut self, context: &Context) {
        if let Some(table) = self.table() {
            table.sort_by_next(context.has_gpu_time());
        }
    }

    /// The keys of this screen, for the footer.
    fn footer_keys(&self, context: &Context) -> FooterKeys;

    /// The keys of this screen, for the help.
    fn help(&self) -> ScreenHelp;

    /// The rows shown, for a file; `None`: the screen is no table.
    fn rows(&self, _context: &Context) -> Option<Rows> {
        None
    }
}

/// What a screen asks of the dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Show a screen.
    Show(Screen),
    /// Show the source around a line.
    OpenSource(Arc<Line>),
}

/// A key of the footer, and what it does.
pub type FooterKey = (&'static str, String);

/// The keys of a screen in the footer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FooterKeys {
    /// Before the keys that all screens have.
    pub first: Vec<FooterKey>,
    /// After those that change moment, filter and order.
    pub last: Vec<FooterKey>,
}

/// Keys of the footer.
pub fn footer_keys(keys: &[(&'static str, &str)]) -> Vec<FooterKey> {
    keys.iter().map(|(key, what)| (*key, (*what).to_owned())).collect()
}

/// A key of the help, and what it does.
pub type HelpKey = (&'static str, &'static str);

/// The part of the help that is about one screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScreenHelp {
    /// What the screen shows.
    pub title: &'static str,
    /// Its keys.
    pub keys: &'static [HelpKey],
}
