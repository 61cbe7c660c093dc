//! State and keys of the overview.

use crossterm::event::KeyCode;

use crate::context::{ChartWindow, Context};
use crate::screen::{OverviewTable, Screen};
use crate::screens::screen_state::{Action, FooterKeys, ScreenHelp, ScreenState, footer_keys};
use memlab_units::format;

/// Screen of the overview.
#[derive(Clone, Copy, Debug, Default)]
pub struct OverviewScreen {
    /// The table that the keys move.
    pub focus: OverviewTable,
    /// True if the chart shows memory by category.
    pub shows_categories: bool,
}

impl ScreenState for OverviewScreen {
    fn on_key(&mut self, key: KeyCode, context: &mut Context) {
        match key {
            KeyCode::Char('h') => self.focus = OverviewTable::Lines,
            KeyCode::Char('l') => self.focus = OverviewTable::Layers,
            KeyCode::Char('+' | '=') => context.zoom(true),
            KeyCode::Char('-') => context.zoom(false),
            KeyCode::Char('0') => context.window = ChartWindow::Run,
            KeyCode::Char('c') => self.shows_categories = !self.shows_categories,
            KeyCode::Char('x') => context.chart_by_step = !context.chart_by_step,
            _ => {}
        }
    }

    fn on_enter(&mut self, _context: &mut Context) -> Option<Action> {
        Some(Action::Show(match self.focus {
            OverviewTable::Lines => Screen::Lines,
            OverviewTable::Layers => Screen::Layers,
        }))
    }

    fn footer_keys(&self, context: &Context) -> FooterKeys {
        let window = match context.window {
            ChartWindow::Run | ChartWindow::Around(..) => "window".to_owned(),
            ChartWindow::Last(seconds) => {
                format!("last {}", format::duration(seconds.saturating_mul(1_000_000_000)).replace(" 00s", ""))
            }
        };
        let axis = if context.chart_by_step { "by time" } else { "by step" };
        let categories = if self.shows_categories { "totals" } else { "categories" };
        FooterKeys { first: vec![("w", window)], last: footer_keys(&[("c", categories), ("x", axis), ("+-", "zoom")]) }
    }

    fn help(&self) -> ScreenHelp {
        ScreenHelp {
            title: "Overview",
            keys: &[
                ("h  l", "select the table of lines, of layers"),
                ("Enter", "open the selected table"),
                ("c", "chart: memory by category, or totals"),
                ("x", "chart: each step as wide as the others, or as long as it took"),
                ("+  -  0", "chart: zoom in at the moment shown, zoom out, whole run"),
            ],
        }
    }
}
