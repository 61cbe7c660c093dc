//! The last line: what can be pressed, the filter as it is typed, and what is worth knowing.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::moving;
use super::pane::put_spans;
use crate::app::{App, Moment, Prompt, PromptKind, Screen, Window};
use crate::category::category_list;
use crate::format;
use crate::text::place;

/// Draws it.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    if let Some(prompt) = &app.prompt {
        draw_prompt(buffer, area, app, prompt);
        return;
    }
    if app.is_typing() {
        let spans = [
            Span::styled("typing to the program  ", theme.accent),
            Span::styled("Esc", theme.key),
            Span::styled(" back to memlab's keys", theme.dim),
        ];
        put_spans(buffer, area.x + 1, area.y, area.right(), &spans, theme);
        return;
    }
    if let Some(progress) = moving::progress(app, area.width) {
        put_spans(buffer, area.x + 1, area.y, area.right(), &[Span::styled(progress, theme.accent)], theme);
        return;
    }
    let notice = notice(app);
    let notice_width = notice.iter().map(Span::width).sum::<usize>() as u16;
    let notice_x = area.right().saturating_sub(notice_width + 1).max(area.x);
    let mut x = area.x + 1;
    for (key, what) in keys(app) {
        let key = if theme.glyphs.unicode { key } else { ascii(key) };
        let width = key.chars().count() + what.chars().count() + 3;
        if x + width as u16 > notice_x {
            break;
        }
        let spans = [Span::styled(key, theme.key), Span::styled(format!(" {what}"), theme.dim), Span::raw("  ")];
        x = put_spans(buffer, x, area.y, notice_x, &spans, theme);
    }
    put_spans(buffer, notice_x, area.y, area.right(), &notice, theme);
}

fn draw_prompt(buffer: &mut Buffer, area: Rect, app: &App, prompt: &Prompt) {
    let theme = &app.theme;
    let cursor = if theme.glyphs.unicode { "▏" } else { "_" };
    let (sign, help) = match prompt.kind {
        PromptKind::Filter => {
            (" / ", "  word  /regex/  size>1MiB  layer:h.3  category:activation  class:Linear  !not   Esc: all")
        }
        PromptKind::GoTo => (" go to ", "  12.5s  1:30  step 12  peak  oom  end   Esc: stay"),
    };
    let (help, style) = match &prompt.error {
        Some(error) => (format!("  {error}"), theme.bad),
        None if is_category(prompt) => (format!("  {}", category_list()), theme.dim),
        None => (help.to_owned(), theme.dim),
    };
    let spans = [
        Span::styled(sign, theme.key),
        Span::styled(prompt.text.clone(), theme.title),
        Span::styled(cursor, theme.accent),
        Span::styled(help, style),
    ];
    put_spans(buffer, area.x, area.y, area.right(), &spans, theme);
}

/// Whether a category is being typed.
fn is_category(prompt: &Prompt) -> bool {
    let word = prompt.text.split_whitespace().last().unwrap_or_default();
    prompt.kind == PromptKind::Filter && word.trim_start_matches('!').starts_with("category:")
}

fn keys(app: &App) -> Vec<(&'static str, String)> {
    let window = match app.window {
        Window::Run | Window::Around(..) => "window".to_owned(),
        Window::Last(seconds) => {
            format!("last {}", format::duration(seconds.saturating_mul(1_000_000_000)).replace(" 00s", ""))
        }
    };
    let own = |keys: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
        keys.iter().map(|(key, what)| (*key, (*what).to_owned())).collect()
    };
    let mut keys = own(&[("q", "quit"), ("?", "help")]);
    let inclusive = if app.inclusive { "own" } else { "inclusive" };
    keys.extend(match app.screen {
        Screen::Overview => vec![("w", window)],
        Screen::Lines => own(&[
            ("⏎", "source"),
            ("l", "callers"),
            ("c", if app.lines.is_tree { "table" } else { "call tree" }),
            ("i", inclusive),
        ]),
        Screen::Layers => own(&[("⏎", "open"), ("z", "all"), ("i", inclusive)]),
        Screen::Segments => own(&[("hl", "block"), ("jk", "segment"), ("fF", "hole"), ("+-", "zoom"), ("⏎", "source")]),
        Screen::Steps => own(&[("⏎", "go there"), ("m", "mark")]),
        Screen::Events => own(&[("⏎", "go there")]),
        Screen::Processes => own(&[("⏎", "show")]),
        Screen::Output => {
            return own(&[
                ("q", "quit"),
                ("?", "help"),
                ("⏎", "type to it"),
                ("↑↓", "scroll"),
                ("G", "latest"),
                ("Tab", "next screen"),
            ]);
        }
    });
    keys.push(("←→", "time".to_owned()));
    keys.push(("p", if app.moment == Moment::Peak { "now" } else { "peak" }.to_owned()));
    keys.push(("space", if app.paused { "go on" } else { "pause" }.to_owned()));
    keys.extend(own(&[("/", "filter"), ("s", "sort")]));
    if app.screen == Screen::Overview {
        keys.extend(own(&[("c", if app.shows_categories { "totals" } else { "categories" }), ("+-", "zoom")]));
    }
    keys.push(("e", "export".to_owned()));
    keys.push(("u", app.units.as_str().to_owned()));
    let moving = app.moved_process().and_then(|process| Some((app.is_away(process), app.whereabouts(process)?)));
    match moving {
        Some((true, _)) => keys.insert(2, ("r", "restore".to_owned())),
        Some((false, about)) if about.moving.is_some() => keys.push(("o", "offload".to_owned())),
        _ => {}
    }
    if app.targets().len() > 1 {
        keys.push(("d", "next device".to_owned()));
    }
    keys
}

/// A key as a terminal without Unicode shows it.
fn ascii(key: &'static str) -> &'static str {
    match key {
        "↑↓" => "j/k",
        "←→" => "</>",
        "⏎" => "Enter",
        key => key,
    }
}

/// The filter in force, or what did not go well.
fn notice(app: &App) -> Vec<Span<'static>> {
    let theme = &app.theme;
    if let Some(notice) = &app.notice {
        return vec![Span::styled(notice.clone(), theme.warn)];
    }
    if !app.filter.is_empty() {
        return vec![Span::styled("filter: ", theme.dim), Span::styled(app.filter_text.clone(), theme.warn)];
    }
    let Some(process) = app.process() else { return Vec::new() };
    let mut notices = Vec::new();
    if let (Some(line), true) = (&process.dominant_library_call, app.shows_lines()) {
        notices.push(format!("{} only calls libraries (L: your lines)", place(line, &process.header.directory)));
    }
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
