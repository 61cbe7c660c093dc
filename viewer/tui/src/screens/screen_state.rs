//! Interface of every screen to the dashboard.

use std::sync::Arc;

use crossterm::event::KeyCode;
use memlab_trace::Line;

use crate::context::Context;
use crate::screen::Screen;
use crate::widgets::columns::TableControl;
use memlab_base::query::HeldMemory;
use memlab_report::export::rows::Rows;

/// State of a screen, as far as all screens share it.
pub trait ScreenState {
    /// Handles a key of this screen only.
    fn on_key(&mut self, _key: KeyCode, _context: &mut Context) {}

    /// Handles Enter, or a click on the row under the cursor.
    fn on_enter(&mut self, context: &mut Context) -> Option<Action>;

    /// The table that the keys move and sort, if the screen has one.
    fn table(&mut self) -> Option<&mut dyn TableControl> {
        None
    }

    /// Moves the cursor by rows; `by` receives the number of rows on a page.
    fn scroll(&mut self, by: &dyn Fn(isize) -> isize, _context: &Context) {
        if let Some(table) = self.table() {
            table.scroll(by);
        }
    }

    /// Changes the order of the rows.
    fn sort_by_next(&mut self, context: &Context) {
        if let Some(table) = self.table() {
            table.sort_by_next(context.has_gpu_time());
        }
    }

    /// Keys of this screen, for the footer.
    fn footer_keys(&self, context: &Context) -> FooterKeys;

    /// Keys of this screen, for the help.
    fn help(&self) -> ScreenHelp;

    /// Memory of the row under the cursor, and its name, for a question about its holders; `None`: the row has none.
    fn held_row(&self, _context: &Context) -> Option<(HeldMemory, String)> {
        None
    }

    /// Displayed rows, for a file; `None`: the screen is not a table.
    fn rows(&self, _context: &Context) -> Option<Rows> {
        None
    }
}

/// Request of a screen to the dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Shows a screen.
    Show(Screen),
    /// Shows the source around a line.
    OpenSource(Arc<Line>),
}

/// A key of the footer, and its effect.
pub type FooterKey = (&'static str, String);

/// Keys of a screen in the footer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FooterKeys {
    /// Keys before those of all screens.
    pub first: Vec<FooterKey>,
    /// Keys after those that change moment, filter and order.
    pub last: Vec<FooterKey>,
}

/// Converts keys of the footer.
pub fn footer_keys(keys: &[(&'static str, &str)]) -> Vec<FooterKey> {
    keys.iter().map(|(key, what)| (*key, (*what).to_owned())).collect()
}

/// A key of the help, and its effect.
pub type HelpKey = (&'static str, &'static str);

/// Part of the help about one screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScreenHelp {
    /// Title: the content of the screen.
    pub title: &'static str,
    /// Keys of the screen.
    pub keys: &'static [HelpKey],
}
