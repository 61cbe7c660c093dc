//! The screens. [`draw`] puts the whole dashboard of an [`App`] on a buffer; each screen and pane has a file of its
//! own below `view/`.

mod categories;
mod chart;
mod comparison;
mod events;
mod export;
mod facts;
mod footer;
mod gauge;
mod header;
mod help;
mod layers;
mod leave;
mod lines;
mod moving;
pub mod output;
mod overview;
mod pane;
mod processes;
mod ranks;
mod segments;
mod source;
mod step_bars;
mod steps;
mod strip;
mod table;
mod waiting;

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
    /// The run in one row, on screens without a chart.
    strip: Rect,
    footer: Rect,
}

fn areas(area: Rect, has_strip: bool) -> Areas {
    let header = Rect { height: area.height.min(2), ..area };
    let footer = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..area };
    let strip_rows = u16::from(has_strip && area.height >= 16);
    let strip = Rect { y: footer.y - strip_rows, height: strip_rows, ..area };
    let body = Rect { y: header.bottom(), height: area.height.saturating_sub(3 + strip_rows), ..area };
    Areas { header, body, strip, footer }
}

/// Draws everything.
pub fn draw(buffer: &mut Buffer, app: &mut App) {
    let area = buffer.area;
    buffer.set_style(area, app.theme.text);
    app.spots.clear();
    if area.width < LEAST_COLUMNS || area.height < LEAST_ROWS {
        header::draw_least(buffer, area, app);
    } else {
        let has_strip = !matches!(app.screen, Screen::Overview | Screen::Output);
        let areas = areas(area, has_strip);
        header::draw(buffer, areas.header, app);
        match app.screen {
            Screen::Output => output::draw(buffer, areas.body, app),
            Screen::Processes if app.process().is_some() => processes::draw(buffer, areas.body, app),
            _ if app.device().is_none() => waiting::draw(buffer, areas.body, app),
            Screen::Overview => overview::draw(buffer, areas.body, app),
            Screen::Lines => lines::draw(buffer, areas.body, app),
            Screen::Layers => layers::draw(buffer, areas.body, app),
            Screen::Segments => segments::draw(buffer, areas.body, app),
            Screen::Steps => steps::draw(buffer, areas.body, app),
            Screen::Events => events::draw(buffer, areas.body, app),
            Screen::Processes => processes::draw(buffer, areas.body, app),
        }
        strip::draw(buffer, areas.strip, app);
        footer::draw(buffer, areas.footer, app);
        match app.overlay.clone() {
            Some(Overlay::Help(row)) => help::draw(buffer, area, app, row),
            Some(Overlay::Leave) => leave::draw(buffer, area, app),
            Some(Overlay::Export) => export::draw(buffer, area, app),
            Some(Overlay::Move(question)) => moving::draw_question(buffer, area, app, &question),
            Some(Overlay::Told(words)) => moving::draw_told(buffer, area, app, &words),
            Some(Overlay::Source(source)) => source::draw(buffer, areas.body, app, &source),
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
    let inner = output::inner(areas(Rect::new(0, 0, columns, rows), false).body);
    (inner.height.max(1), inner.width.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_over_another() {
        for width in [30, 80, 121, 300] {
            for height in 8..120 {
                for has_strip in [false, true] {
                    let area = Rect::new(0, 0, width, height);
                    let Areas { header, body, strip, footer } = areas(area, has_strip);
                    let all = [header, body, strip, footer];
                    assert_eq!(all.iter().map(|part| part.area()).sum::<u32>(), area.area(), "{area:?}");
                    for (index, part) in all.iter().enumerate() {
                        assert!(all[..index].iter().all(|other| part.intersection(*other).area() == 0), "{area:?}");
                        assert_eq!(part.intersection(area), *part, "{area:?}");
                    }
                }
            }
        }
    }
}
