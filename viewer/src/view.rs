//! The screens. [`draw`] puts the whole dashboard of an [`App`] on a buffer; each screen and pane has a file of its
//! own below `view/`.

mod categories;
mod chart;
mod footer;
mod header;
mod help;
mod layers;
mod leave;
mod lines;
pub mod output;
mod overview;
mod pane;
mod table;
mod waiting;

pub use lines::place;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::{App, Overlay, Screen};
use crate::text;

/// Below this a line of figures is shown instead of a dashboard.
const LEAST_COLUMNS: u16 = 30;
const LEAST_ROWS: u16 = 8;

/// Where things are on a screen of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Areas {
    header: Rect,
    body: Rect,
    footer: Rect,
}

fn areas(area: Rect) -> Areas {
    let header = Rect { height: area.height.min(2), ..area };
    let footer = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..area };
    let body = Rect { y: header.bottom(), height: area.height.saturating_sub(3), ..area };
    Areas { header, body, footer }
}

/// Draws everything.
pub fn draw(buffer: &mut Buffer, app: &mut App) {
    let area = buffer.area;
    buffer.set_style(area, app.theme.text);
    if area.width < LEAST_COLUMNS || area.height < LEAST_ROWS {
        header::draw_least(buffer, area, app);
    } else {
        let areas = areas(area);
        header::draw(buffer, areas.header, app);
        match app.screen {
            Screen::Output => output::draw(buffer, areas.body, app),
            _ if app.device().is_none() => waiting::draw(buffer, areas.body, app),
            Screen::Overview => overview::draw(buffer, areas.body, app),
            Screen::Lines => lines::draw(buffer, areas.body, app),
            Screen::Layers => layers::draw(buffer, areas.body, app),
        }
        footer::draw(buffer, areas.footer, app);
        match app.overlay {
            Some(Overlay::Help) => help::draw(buffer, area, app),
            Some(Overlay::Leave) => leave::draw(buffer, area, app),
            None => {}
        }
    }
    disarm(buffer, app.theme.glyphs.unicode);
}

/// The last gate: whatever was drawn, no cell holds a character that a terminal obeys, or one that it cannot show.
fn disarm(buffer: &mut Buffer, unicode: bool) {
    for cell in &mut buffer.content {
        if cell.symbol().chars().any(text::is_unsafe) {
            cell.set_symbol("\u{fffd}");
        }
        if !unicode && !cell.symbol().is_ascii() {
            let plain = match cell.symbol() {
                "–" => "-",
                "…" => "~",
                "Σ" => "S",
                "µ" => "u",
                _ => "?",
            };
            cell.set_symbol(plain);
        }
    }
}

/// The size of the pane that shows what the program prints, on a terminal of this size: rows, columns.
pub fn output_size(columns: u16, rows: u16) -> (u16, u16) {
    let inner = output::inner(areas(Rect::new(0, 0, columns, rows)).body);
    (inner.height.max(1), inner.width.max(1))
}
