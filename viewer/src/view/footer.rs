//! The last line: what can be pressed, the filter as it is typed, and what is worth knowing.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::pane::put_spans;
use crate::app::{App, Screen, Window};
use crate::format;

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    if app.filter.editing {
        let cursor = if theme.glyphs.unicode { "▏" } else { "_" };
        let spans = [
            Span::styled(" / ", theme.key),
            Span::styled(app.filter.text.clone(), theme.title),
            Span::styled(cursor, theme.accent),
            Span::styled("  Enter keep   Esc clear", theme.dim),
        ];
        put_spans(buffer, area.x, area.y, area.right(), &spans, theme);
        return;
    }
    let notice = notice(app);
    let notice_width = notice.iter().map(Span::width).sum::<usize>() as u16;
    let notice_x = area.right().saturating_sub(notice_width + 1).max(area.x);
    let mut x = area.x + 1;
    for (key, what) in keys(app) {
        let width = key.chars().count() + what.chars().count() + 3;
        if x + width as u16 > notice_x {
            break;
        }
        let spans = [Span::styled(key, theme.key), Span::styled(format!(" {what}"), theme.dim), Span::raw("  ")];
        x = put_spans(buffer, x, area.y, notice_x, &spans, theme);
    }
    put_spans(buffer, notice_x, area.y, area.right(), &notice, theme);
}

fn keys(app: &App) -> Vec<(&'static str, String)> {
    let window = match app.window {
        Window::Run => "window".to_owned(),
        Window::Last(seconds) => format!("last {}", format::duration(seconds * 1_000_000_000).replace(" 00s", "")),
    };
    let mut keys = vec![("q", "quit".to_owned()), ("?", "help".to_owned())];
    match app.screen {
        Screen::Output => keys.extend([("↑↓", "scroll".to_owned()), ("G", "latest".to_owned())]),
        screen => {
            keys.extend([
                ("space", if app.paused { "go on" } else { "pause" }.to_owned()),
                ("p", "peak/now".to_owned()),
                ("s", "sort".to_owned()),
                ("/", "filter".to_owned()),
            ]);
            if screen == Screen::Overview {
                keys.push(("w", window));
            }
            keys.push(("u", app.units.as_str().to_owned()));
            if app.targets().len() > 1 {
                keys.push(("d", "next device".to_owned()));
            }
        }
    }
    keys.push(("Tab", "next screen".to_owned()));
    if !app.theme.glyphs.unicode {
        for (key, _) in &mut keys {
            *key = if *key == "↑↓" { "j/k" } else { key };
        }
    }
    keys
}

/// The filter in force, or what did not go well.
fn notice(app: &App) -> Vec<Span<'static>> {
    let theme = &app.theme;
    if !app.filter.text.is_empty() {
        return vec![Span::styled("filter: ", theme.dim), Span::styled(app.filter.text.clone(), theme.warn)];
    }
    let Some(process) = app.process() else { return Vec::new() };
    let mut notices = Vec::new();
    if let Some(failure) = &process.failure {
        notices.push(failure.clone());
    }
    if process.skipped_lines > 0 {
        let lines = if process.skipped_lines == 1 { "line" } else { "lines" };
        notices.push(format!("{} unreadable {lines} skipped", process.skipped_lines));
    }
    if let Some(warning) = process.warnings.last() {
        notices.push(warning.clone());
    }
    let words = notices.join(theme.glyphs.separator);
    // The keys stay readable next to a long warning: it is in full in the help.
    let words = crate::text::fit(&crate::text::clean(&words), 60, theme.glyphs.ellipsis).into_owned();
    vec![Span::styled(words, theme.warn)]
}
