//! The screen before the first data: a message, or the progress of opening the trace.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::state::App;
use crate::screens::output::Program;
use crate::widgets::pane::{bar, put};
use memlab_base::text;
use memlab_follow::snapshot::ProcessState;
use memlab_units::format::{clock, size};

/// A shorter wait is not worth a clock.
const SHOWN_FROM_NS: u64 = 2_000_000_000;

/// Draws the message in the middle.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.context.theme;
    let mut lines = Vec::new();
    match app.context.process() {
        Some(process) => match process.state {
            // The displayed rank has changed: its model is built first.
            _ if process.is_summary => {
                lines.push((format!("opening {}", process.path.display()), theme.title));
                lines.extend(process.failure.iter().map(|failure| (failure.clone(), theme.bad)));
            }
            ProcessState::Opening { read, total } => {
                let share = if total == 0 { 0.0 } else { read as f64 / total as f64 };
                let sizes = [read, total].map(size);
                lines.push((format!("opening {}", process.path.display()), theme.title));
                lines.push((format!("{} of {}", sizes[0], sizes[1]), theme.dim));
                lines.push((bar(share, 40, theme.glyphs.unicode), theme.accent));
            }
            state => {
                let what =
                    if state.is_over() { "no device memory was allocated" } else { "no device memory allocated yet" };
                lines.push((what.to_owned(), theme.title));
                lines.push((process.path.display().to_string(), theme.dim));
                lines.extend(process.failure.iter().map(|failure| (failure.clone(), theme.bad)));
                lines.extend(process.warnings.iter().map(|warning| (warning.clone(), theme.warn)));
            }
        },
        None => {
            match &app.output.program {
                Some(Program::Ended(how)) => {
                    lines.push((format!("{how}: it did not use CUDA"), theme.title));
                }
                _ => {
                    let waited = app.waited(app.context.now_unix_ns);
                    let elapsed = if waited < SHOWN_FROM_NS { String::new() } else { format!("  {}", clock(waited)) };
                    lines.push((app.waiting_for.clone() + &elapsed, theme.title));
                }
            }
            if let Some(mut output) = app.output.terminal() {
                lines.push((String::new(), theme.text));
                let rows = usize::from(area.height / 2);
                lines.extend(output.last_rows(rows).into_iter().map(|row| (row, theme.dim)));
            }
        }
    }
    let top = area.y + area.height.saturating_sub(lines.len() as u16) / 2;
    let widest = lines.iter().map(|(line, _)| text::width(&text::clean(line))).max().unwrap_or(0) as u16;
    let widest = widest.min(area.width.saturating_sub(2));
    for (y, (line, style)) in (top..area.bottom()).zip(lines) {
        let width = if app.context.process().is_some() { (text::width(&line) as u16).min(widest) } else { widest };
        let x = area.x + (area.width - width) / 2;
        put(buffer, x, y, widest, &line, style, theme);
    }
}
