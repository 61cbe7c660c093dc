//! The top two lines: process, device and state; tabs and steps.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;

use super::state::App;
use crate::context::{HitTarget, ShownMoment};
use crate::screen::Screen;
use crate::screens::output::Program;
use crate::widgets::pane::{put, put_spans};
use memlab_base::findings::Kind;
use memlab_base::text;
use memlab_follow::snapshot::ProcessState;
use memlab_units::format;

/// Draws both lines. The moment is always shown: beside the state if the tabs leave no room.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.context.theme;
    let tabs = tab_spans(app, area.width);
    let tabs_width: u16 = tabs.iter().map(|(_, tab)| columns(tab)).sum();
    let room = area.width.saturating_sub(tabs_width + 3);
    let moment = moment_spans(app);
    let mut found = finding_spans(app);
    let moment_is_above = area.height < 2 || columns(&moment) + columns(&found[..found.len().min(1)]) > room;
    let mut above = if moment_is_above { moment.clone() } else { Vec::new() };
    above.extend(state_spans(app));
    let above_x = area.right().saturating_sub(columns(&above) + 1).max(area.x);
    put_spans(buffer, above_x, area.y, area.right(), &above, theme);
    put_spans(buffer, area.x, area.y, above_x.saturating_sub(1), &who_spans(app), theme);
    if area.height < 2 {
        return;
    }
    let mut x = area.x + 1;
    for (screen, tab) in tabs {
        let from = x;
        x = put_spans(buffer, x, area.y + 1, area.right(), &tab, theme);
        app.context
            .hit_targets
            .put(Rect { x: from, y: area.y + 1, width: x - from, height: 1 }, HitTarget::Tab(screen));
    }
    let mut facts = if moment_is_above { Vec::new() } else { moment };
    for (index, fact) in fact_spans(app).into_iter().enumerate() {
        // The step of the moment comes before the findings, and those before the rest.
        let reserved = if index == 0 { 0 } else { columns(&found) };
        if columns(&facts) + columns(&fact) + reserved <= room {
            facts.extend(fact);
        }
    }
    if columns(&facts) + columns(&found) > room {
        found.truncate(1);
    }
    if columns(&facts) + columns(&found) > room {
        found.clear();
    }
    let x = area.right().saturating_sub(columns(&facts) + columns(&found) + 1);
    let facts_x = put_spans(buffer, x, area.y + 1, area.right(), &found, theme);
    put_spans(buffer, facts_x, area.y + 1, area.right(), &facts, theme);
    if facts_x > x {
        let place = Rect { x, y: area.y + 1, width: facts_x - x, height: 1 };
        app.context.hit_targets.put(place, HitTarget::Findings);
    }
}

/// The number of findings, then the word.
fn finding_spans(app: &App) -> Vec<Span<'static>> {
    let theme = &app.context.theme;
    let Some(process) = app.context.process() else { return Vec::new() };
    let style = match process.findings.first().map(|finding| finding.kind) {
        None => return Vec::new(),
        Some(Kind::OutOfMemory) => theme.bad,
        Some(_) => theme.warn,
    };
    let count = process.findings.len();
    let word = if count == 1 { "finding   " } else { "findings   " };
    vec![Span::styled(format!("! {count} "), style), Span::styled(word, style)]
}

fn columns(spans: &[Span<'_>]) -> u16 {
    u16::try_from(spans.iter().map(Span::width).sum::<usize>()).unwrap_or(u16::MAX)
}

fn tab_spans(app: &App, width: u16) -> Vec<(Screen, [Span<'static>; 3])> {
    let theme = &app.context.theme;
    let tab = |(index, screen): (usize, &Screen)| {
        let style = if *screen == app.screen { theme.selected } else { theme.dim };
        let key = if *screen == app.screen { theme.selected.patch(Modifier::BOLD) } else { theme.key };
        // All nine fit from 80 columns on.
        let (title, gap) = match width {
            ..88 => (screen.short_title(), ""),
            88..104 => (screen.short_title(), " "),
            _ => (screen.title(), " "),
        };
        let spans =
            [Span::styled(format!(" {}", index + 1), key), Span::styled(format!(" {title} "), style), Span::raw(gap)];
        (*screen, spans)
    };
    app.screens().iter().enumerate().map(tab).collect()
}

/// Draws the figures that fit on a screen too small for the dashboard.
pub fn draw_minimal(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.context.theme;
    let lines = match app.context.device() {
        // The peak has a separate line.
        Some(device) => vec![
            (app.context.size(device.totals.allocated_bytes) + &cursor_text(app), theme.accent),
            (format!("peak {}", app.context.size(device.totals.peak_allocated_bytes)), theme.text),
            (format!("resv {}", app.context.size(device.totals.reserved_bytes)), theme.text),
            (format!("in use {}", app.context.size(device.totals.used_bytes)), theme.text),
            (state_of(app).0, theme.dim),
        ],
        None => vec![("memlab".to_owned(), theme.accent), (app.waiting_for.clone(), theme.dim)],
    };
    for (row, (line, style)) in (area.y..area.bottom()).zip(lines) {
        put(buffer, area.x, row, area.width, &line, style, theme);
    }
}

/// Time of the figures, if the user chose a moment.
fn cursor_text(app: &App) -> String {
    app.context.cursor_time().map(|time| format!(" at {}", format::duration(time))).unwrap_or_default()
}

fn who_spans(app: &App) -> Vec<Span<'static>> {
    let theme = &app.context.theme;
    let mut spans = vec![Span::styled(" memlab ", theme.accent)];
    let Some(process) = app.context.process() else { return spans };
    let separator = theme.glyphs.separator;
    spans.push(Span::styled(format!(" {}", text::short_command(&process.header.command)), theme.title));
    let mut facts = format!("{separator}pid {}", process.header.pid);
    if let Some(rank) = process.header.rank {
        facts += &format!("{separator}rank {rank}");
        if let Some(world) = process.header.world_size {
            facts += &format!("/{world}");
        }
    }
    spans.push(Span::styled(facts, theme.dim));
    if let Some(device) = app.context.device() {
        let name = if device.totals.name.is_empty() { "device" } else { &device.totals.name };
        spans.push(Span::styled(separator, theme.dim));
        spans.push(Span::styled(format!("cuda:{} {}", device.totals.index, text::clean(name)), theme.text));
        let targets = app.context.target_count();
        if targets > 1 {
            spans.push(Span::styled(format!(" ({}/{targets})", app.context.target() + 1), theme.dim));
        }
    }
    spans
}

/// State of the process in words, with its style.
fn state_of(app: &App) -> (String, Style) {
    let theme = &app.context.theme;
    if let Some(process) = app.context.process()
        && let Some(words) = app.context.memory_location_words(process)
    {
        return (words, theme.warn);
    }
    match app.context.process().map(|process| process.state) {
        None => match &app.output.program {
            Some(Program::Ended(how)) => (how.clone(), theme.warn),
            _ => ("waiting".to_owned(), theme.dim),
        },
        Some(ProcessState::Opening { read, total }) => {
            (format!("opening {}", format::percent(read, total)), theme.warn)
        }
        Some(ProcessState::Recording) => ("recording".to_owned(), theme.good),
        Some(ProcessState::Stopped) => ("stopped".to_owned(), theme.warn),
        Some(ProcessState::Ended { code: Some(0), .. }) => ("ended".to_owned(), theme.dim),
        Some(ProcessState::Ended { signal: Some(signal), .. }) => (memlab_base::signals::describe(signal), theme.bad),
        Some(ProcessState::Ended { code: Some(code), .. }) => (format!("exit code {code}"), theme.bad),
        Some(ProcessState::Ended { .. }) => ("ended".to_owned(), theme.dim),
        Some(ProcessState::Killed) => ("killed".to_owned(), theme.bad),
        Some(ProcessState::Unreadable) => ("unreadable".to_owned(), theme.bad),
    }
}

fn state_spans(app: &App) -> Vec<Span<'static>> {
    let theme = &app.context.theme;
    let (words, style) = state_of(app);
    let mut spans = Vec::new();
    if app.context.paused {
        spans.push(Span::styled(" PAUSED ", theme.selected));
        spans.push(Span::raw(" "));
    }
    spans.push(Span::styled(format!("{} ", theme.glyphs.dot), style));
    if app.context.process().is_some_and(|process| app.context.is_offloaded(process)) {
        // A waiting program is easily overlooked: make it conspicuous.
        let (state, how_much) = words.split_at(words.find(' ').unwrap_or(words.len()));
        spans.push(Span::styled(state.to_uppercase() + how_much, style));
        spans.push(Span::styled(" – ", theme.dim));
        spans.push(Span::styled("r", theme.key));
        spans.push(Span::styled(" restores", theme.dim));
    } else {
        spans.push(Span::styled(words, style));
    }
    if let Some(process) = app.context.process() {
        spans.push(Span::styled(format!(" {}", format::clock(process.until(app.context.now_unix_ns))), theme.text));
    }
    spans
}

/// The displayed moment, unless it is the latest.
fn moment_spans(app: &App) -> Vec<Span<'static>> {
    let theme = &app.context.theme;
    let mut spans = Vec::new();
    if let Some(moment) = moment_words(app) {
        spans.extend([Span::styled(format!(" {moment} "), theme.selected), Span::raw("  ")]);
    }
    spans
}

fn moment_words(app: &App) -> Option<String> {
    match (app.context.moment, app.context.cursor_time()) {
        (ShownMoment::Peak, _) => Some("at the peak".to_owned()),
        (ShownMoment::Cursor, Some(time)) => Some(format!("at {}", format::duration(time))),
        _ => None,
    }
}

/// Other known facts, most important first.
fn fact_spans(app: &App) -> Vec<Vec<Span<'static>>> {
    let theme = &app.context.theme;
    let Some(process) = app.context.process() else { return Vec::new() };
    let mut facts = Vec::new();
    if app.context.is_seeking {
        facts.push(vec![Span::styled("loading  ", theme.warn)]);
    } else if process.shown_at.is_some_and(|shown_at| shown_at.is_earliest) {
        facts.push(vec![Span::styled("earliest in the trace  ", theme.warn)]);
    }
    let at_peak =
        app.context.device().filter(|_| app.context.moment == ShownMoment::Peak).map(|device| device.totals.peak_step);
    let shown_at = process.shown_at.map(|shown_at| shown_at.steps_ended);
    let steps_ended = shown_at.unwrap_or(process.steps_ended);
    if process.steps_ended > 0 {
        let reached = match at_peak {
            Some(ended) => format::step_during(ended, process.steps_ended),
            None => format::step_reached(steps_ended),
        };
        facts.push(vec![Span::styled(reached, theme.text)]);
        if let Some(rate) = app.context.device().and_then(|device| device.steps_per_second()) {
            let rate = if rate >= 1.0 { format!("{rate:.1} steps/s") } else { format!("{:.1} s/step", 1.0 / rate) };
            facts.push(vec![Span::styled(format!("{}{rate}", theme.glyphs.separator), theme.dim)]);
        }
    }
    facts
}
