//! The last line: keys, the filter being typed, and messages.

use crossterm::event::KeyCode;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::prompt::{Prompt, PromptKind};
use super::state::App;
use crate::context::{HitTarget, ShownMoment};
use crate::screen::Screen;
use crate::screens::screen_state::{FooterKey, footer_keys};
use crate::widgets::pane::put_spans;
use memlab_base::category::category_list;
use memlab_base::text;

/// Draws the footer.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.context.theme;
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
    // The answer to a key comes first.
    if let Some(progress) = app.move_progress(area.width).filter(|_| app.context.notice.is_none()) {
        put_spans(buffer, area.x + 1, area.y, area.right(), &[Span::styled(progress, theme.accent)], theme);
        return;
    }
    let notice = notice(app);
    let notice_width = notice.iter().map(Span::width).sum::<usize>() as u16;
    let notice_x = area.right().saturating_sub(notice_width + 1).max(area.x);
    let mut x = area.x + 1;
    for (key, what) in keys(app) {
        let code = key_code(key);
        let key = if theme.glyphs.unicode { key } else { ascii(key) };
        let width = key.chars().count() + what.chars().count() + 3;
        if x + width as u16 > notice_x {
            break;
        }
        let spans = [Span::styled(key, theme.key), Span::styled(format!(" {what}"), theme.dim), Span::raw("  ")];
        let from = x;
        x = put_spans(buffer, x, area.y, notice_x, &spans, theme);
        if let Some(code) = code {
            app.context
                .hit_targets
                .put(Rect { x: from, width: x.saturating_sub(from + 2), ..area }, HitTarget::Key(code));
        }
    }
    put_spans(buffer, notice_x, area.y, area.right(), &notice, theme);
}

fn draw_prompt(buffer: &mut Buffer, area: Rect, app: &App, prompt: &Prompt) {
    let theme = &app.context.theme;
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

/// True while a category is being typed.
fn is_category(prompt: &Prompt) -> bool {
    let word = prompt.text.split_whitespace().last().unwrap_or_default();
    prompt.kind == PromptKind::Filter && word.trim_start_matches('!').starts_with("category:")
}

fn keys(app: &App) -> Vec<FooterKey> {
    let context = &app.context;
    let own = app.current_screen().footer_keys(context);
    let mut keys = footer_keys(&[("q", "quit"), ("?", "help")]);
    keys.extend(own.first);
    if app.screen == Screen::Output {
        return keys;
    }
    let latest = if context.process().is_some_and(|process| process.state.is_over()) { "end" } else { "now" };
    let peak = if context.moment == ShownMoment::Peak { latest } else { "peak" };
    if context.process().is_some_and(|process| !process.findings.is_empty()) {
        keys.push(("!", "findings".to_owned()));
    }
    keys.push(("A", "advice".to_owned()));
    let pause = if context.paused { "go on" } else { "pause" };
    keys.extend(footer_keys(&[("←→", "time"), ("p", peak), ("space", pause), ("/", "filter"), ("s", "sort")]));
    keys.extend(own.last);
    keys.extend(footer_keys(&[("e", "export"), ("u", context.units.as_str())]));
    let moved = app.moved_process();
    match moved.and_then(|process| Some((context.is_offloaded(process), context.memory_location(process)?))) {
        Some((true, _)) => keys.insert(2, ("r", "restore".to_owned())),
        Some((false, location)) if location.moving.is_some() => keys.push(("o", "offload".to_owned())),
        _ => {}
    }
    if context.target_count() > 1 {
        keys.push(("d", "next device".to_owned()));
        if app.screen != Screen::Ranks {
            keys.push(("b", "ranks".to_owned()));
        }
    }
    keys
}

/// Code of a key of the footer; `None`: several keys.
fn key_code(key: &str) -> Option<KeyCode> {
    let mut characters = key.chars();
    match (key, characters.next(), characters.next()) {
        ("⏎", ..) => Some(KeyCode::Enter),
        ("space", ..) => Some(KeyCode::Char(' ')),
        ("Esc", ..) => Some(KeyCode::Esc),
        (_, Some(character), None) => Some(KeyCode::Char(character)),
        _ => None,
    }
}

/// Name of a key on a terminal without Unicode.
fn ascii(key: &'static str) -> &'static str {
    match key {
        "↑↓" => "j/k",
        "←→" => "</>",
        "⏎" => "Enter",
        key => key,
    }
}

/// The notice, the active filter, or the warnings.
fn notice(app: &App) -> Vec<Span<'static>> {
    let theme = &app.context.theme;
    if let Some(notice) = &app.context.notice {
        return vec![Span::styled(notice.clone(), theme.warn)];
    }
    if !app.context.filter.is_empty() {
        return vec![Span::styled("filter: ", theme.dim), Span::styled(app.context.filter_text.clone(), theme.warn)];
    }
    let Some(process) = app.context.process() else { return Vec::new() };
    let mut notices = Vec::new();
    if let (Some(line), true) = (&process.dominant_library_call, matches!(app.screen, Screen::Overview | Screen::Lines))
    {
        notices.push(format!("{} only calls libraries (L: your lines)", process.file_names.place(line)));
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
    // Keeps the keys readable next to a long warning, which the help shows in full.
    let words = text::fit(&text::clean(&words), 60, theme.glyphs.ellipsis).into_owned();
    vec![Span::styled(words, theme.warn)]
}
