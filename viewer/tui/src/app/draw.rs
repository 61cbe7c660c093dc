//! Draws the whole dashboard: header, the screen in front, footer and overlay.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::state::App;
use super::{footer, header, strip, waiting};
use crate::screen::Screen;
use crate::screens::output::inner;
use crate::screens::overview::OverviewParts;
use memlab_base::text;

/// Smaller terminals show some figures instead of the dashboard.
const MIN_COLUMNS: u16 = 30;
const MIN_ROWS: u16 = 8;

/// Areas of a screen of a given size.
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

/// Draws the whole dashboard.
pub fn draw(buffer: &mut Buffer, app: &mut App) {
    let area = buffer.area;
    buffer.set_style(area, app.context.theme.text);
    app.context.hit_targets.clear();
    app.context.is_seeking = app.is_seeking();
    if area.width < MIN_COLUMNS || area.height < MIN_ROWS {
        header::draw_minimal(buffer, area, app);
    } else {
        let has_strip = !matches!(app.screen, Screen::Overview | Screen::Output);
        let areas = areas(area, has_strip);
        header::draw(buffer, areas.header, app);
        draw_body(buffer, areas.body, app);
        strip::draw(buffer, areas.strip, &app.context);
        footer::draw(buffer, areas.footer, app);
        if let Some(overlay) = &mut app.overlay {
            overlay.draw(buffer, area, areas.body, &app.context);
        }
    }
    replace_unsafe(buffer, app.context.theme.glyphs.unicode);
}

/// Draws the screen in front, or a message before the first device appears.
fn draw_body(buffer: &mut Buffer, body: Rect, app: &mut App) {
    let context = &app.context;
    match app.screen {
        Screen::Output => app.output.draw(buffer, body, context),
        Screen::Ranks if context.process().is_some() => app.ranks.draw(buffer, body, context),
        _ if context.device().is_none() || context.process().is_some_and(|process| process.is_summary) => {
            waiting::draw(buffer, body, app)
        }
        Screen::Overview => {
            let parts = OverviewParts { lines: &mut app.lines, layers: &mut app.layers, output: &app.output };
            app.overview.draw(buffer, body, context, parts);
        }
        Screen::Lines => app.lines.draw(buffer, body, context),
        Screen::Layers => app.layers.draw(buffer, body, context),
        Screen::Segments => app.segments.draw(buffer, body, context),
        Screen::Steps => app.steps.draw(buffer, body, context),
        Screen::Events => app.events.draw(buffer, body, context),
        Screen::Time => app.time.draw(buffer, body, context),
        Screen::Ranks => app.ranks.draw(buffer, body, context),
    }
}

/// Replaces characters that a terminal would obey or cannot show, whoever drew them.
fn replace_unsafe(buffer: &mut Buffer, unicode: bool) {
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

/// Size of the output pane on a terminal of this size: rows, columns.
pub fn output_size(columns: u16, rows: u16) -> (u16, u16) {
    let inner = inner(areas(Rect::new(0, 0, columns, rows), false).body);
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
