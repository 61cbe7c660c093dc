//! Draws the processes: ranks beside each other, children below their parents, and one of them in full.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::columns::ProcessColumn;
use super::imbalance::Imbalance;
use super::item::ProcessItem;
use super::look::{draw_bar, imbalance_words, state_style, who};
use super::state::ProcessesScreen;
use crate::context::{Context, ShownMoment};
use crate::format;
use crate::snapshot::{ProcessSnapshot, ProcessState};
use crate::text;
use crate::theme::Theme;
use crate::widgets::columns::Column;
use crate::widgets::pane::{Fact, fact, frame, put, put_right};
use crate::widgets::table::{self, Label, Look};

/// Columns of the words before each fact of a process.
const WORDS: u16 = 11;

impl ProcessesScreen {
    /// Draws the table, and the process under the cursor in full.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let rows = self.items(context);
        let selected = rows.get(self.table.selected.min(rows.len().saturating_sub(1)));
        let details = selected.map(|item| details(context, item)).unwrap_or_default();
        let table_rows = (rows.len() as u16).saturating_add(4);
        let wanted = details.iter().fold(2_u16, |sum, detail| sum.saturating_add(detail.rows(area.width)));
        let detail_rows = match area.height {
            ..10 => 0,
            height => wanted.min(height - table_rows.min(height * 11 / 20)),
        };
        let table = Rect { height: area.height - detail_rows, ..area };
        self.draw_table(buffer, table, context, &rows);
        if let (Some(item), 3..) = (rows.get(self.table.selected), detail_rows) {
            draw_details(
                buffer,
                Rect { y: table.bottom(), height: detail_rows, ..area },
                &who(item, &rows),
                &details,
                &context.theme,
            );
        }
    }

    fn draw_table(&mut self, buffer: &mut Buffer, area: Rect, context: &Context, rows: &[ProcessItem]) {
        let mut state = self.table;
        let theme = &context.theme;
        let inner = frame(buffer, area, "Processes", facts(context, rows), theme);
        let imbalance = Imbalance::of(rows).filter(|_| inner.height > 4);
        let fact_rows = u16::from(imbalance.is_some());
        let place = Rect { height: inner.height - fact_rows, ..inner };
        let columns = table::columns_that_fit::<ProcessColumn>(inner.width);
        let look = Look { context, columns: &columns, pane: None, has_focus: true };
        table::draw(buffer, place, &look, &mut state, rows, |_| Label::default());
        self.table = state;

        let theme = &context.theme;
        let page = || {
            let shown = rows.iter().enumerate().skip(state.offset);
            (place.y + 1..place.bottom()).zip(shown).map(|(y, (index, row))| (y, row, index == state.selected))
        };
        let mut x = inner.x;
        for column in columns.iter().filter(|column| column.columns() > 0) {
            let width = column.columns();
            for (y, row, is_selected) in page().filter(|_| x + width <= inner.right()) {
                let style = match column {
                    ProcessColumn::State if row.moved.is_some() => theme.warn,
                    ProcessColumn::State => state_style(row.state, theme),
                    ProcessColumn::Ooms if row.oom_count > 0 => theme.bad,
                    _ => continue,
                };
                let style = if is_selected { theme.selected.patch(Style { bg: None, ..style }) } else { style };
                buffer.set_style(Rect { x, y, width, height: 1 }, style);
            }
            x += width + 1;
        }
        if x < inner.right() {
            let free = Rect { x, width: inner.right() - x, ..place };
            draw_free(buffer, free, context, page());
        }
        if let Some(imbalance) = imbalance {
            draw_imbalance(buffer, Rect { y: place.bottom(), height: 1, ..inner }, context, &imbalance, rows);
        }
    }
}

/// What the table left free: a bar of the device, and the command.
fn draw_free<'a>(
    buffer: &mut Buffer,
    area: Rect,
    context: &Context,
    page: impl Iterator<Item = (u16, &'a ProcessItem, bool)>,
) {
    let theme = &context.theme;
    let bar_columns = if area.width < 12 { 0 } else { (area.width * 9 / 20).clamp(8, 40) };
    let bar = Rect { width: bar_columns, height: 1, ..area };
    let gap = if bar_columns > 0 { 2 } else { 0 };
    let name = Rect { x: area.x + bar_columns + gap, width: area.width.saturating_sub(bar_columns + gap), ..area };
    if bar_columns > 0 && area.height > 0 {
        // The heading of the commands is above them.
        let heading: String = (area.x..area.right())
            .filter_map(|x| buffer.cell((x, area.y)))
            .map(|cell| cell.symbol())
            .collect::<String>()
            .trim()
            .to_owned();
        let style = buffer.cell((area.x, area.y)).map_or(theme.dim, |cell| cell.style());
        put(buffer, area.x, area.y, area.width, &" ".repeat(usize::from(area.width)), theme.dim, theme);
        draw_legend(buffer, bar, theme);
        put(buffer, name.x, area.y, name.width, &heading, style, theme);
    }
    for (y, row, is_selected) in page {
        if row.total_bytes > 0 || row.used_bytes > 0 || row.peak_allocated_bytes > 0 {
            draw_bar(buffer, Rect { y, ..bar }, row, theme);
        }
        let indent = (row.depth.saturating_mul(2)).min(name.width / 3);
        let style = if is_selected { theme.selected } else { theme.text };
        put(buffer, name.x + indent, y, name.width - indent, &row.command, style, theme);
    }
}

/// What the bar's bands are, as many as there is room for.
fn draw_legend(buffer: &mut Buffer, area: Rect, theme: &Theme) {
    let mut x = area.x;
    let mark = if theme.glyphs.unicode { "┃" } else { "|" };
    for (band, word) in [(Some(0), "alloc"), (None, "peak"), (Some(2), "resv"), (Some(3), "used")] {
        let columns = word.len() as u16 + 2;
        if x + columns > area.right() {
            return;
        }
        let (sign, style) = match band {
            None => (mark, theme.title),
            Some(band) if theme.is_mono() => (theme.glyphs.bands[band], theme.text),
            Some(band) => (theme.glyphs.swatch, Style::new().fg(theme.bands[band])),
        };
        put(buffer, x, area.y, 1, sign, style, theme);
        put(buffer, x + 1, area.y, columns - 1, word, theme.dim, theme);
        x += columns;
    }
}

fn facts(context: &Context, rows: &[ProcessItem]) -> Vec<Fact> {
    let theme = &context.theme;
    let processes = &context.snapshot.processes;
    let mut facts = Vec::new();
    match context.moment {
        ShownMoment::Now => {}
        ShownMoment::Then => facts.push(fact("then", theme.key)),
        ShownMoment::Peak => facts.push(fact("each at its peak", theme.key)),
    }
    let failed = processes.iter().filter(|process| state_style(process.state, theme) == theme.bad).count();
    let running = processes.iter().filter(|process| !process.state.is_over()).count();
    if failed > 0 {
        facts.push(fact(format!("{failed} failed"), theme.bad));
    }
    if running > 0 {
        facts.push(fact(format!("{running} running"), theme.good));
    }
    let all = context.targets().len();
    let count = if rows.len() == all { all.to_string() } else { format!("{} of {all}", rows.len()) };
    facts.push(fact(count, theme.dim));
    facts
}

/// Which rank has the highest peak, and who lags.
fn draw_imbalance(buffer: &mut Buffer, area: Rect, context: &Context, imbalance: &Imbalance, rows: &[ProcessItem]) {
    let theme = &context.theme;
    let (words, style) = imbalance_words(imbalance, rows, context);
    let x = area.x + 1;
    let used =
        put(buffer, x, area.y, area.width.saturating_sub(1), &format!("{} {words}", theme.glyphs.peak), style, theme);
    let Some((target, lag)) = imbalance.behind else { return };
    let name = rows.iter().find(|row| row.target == target).map(|row| who(row, rows)).unwrap_or_default();
    let words = format!("{}{name} is {} behind", theme.glyphs.separator, format::counted(lag, "step"));
    put(buffer, x + used, area.y, area.right().saturating_sub(x + used), &words, theme.dim, theme);
}

/// One fact of a process.
struct Detail {
    what: &'static str,
    words: String,
    style: Style,
}

impl Detail {
    /// The rows it takes in a pane of this width; at most three.
    fn rows(&self, width: u16) -> u16 {
        let room = usize::from(width.saturating_sub(WORDS + 5)).max(1);
        text::width(&self.words).div_ceil(room).clamp(1, 3) as u16
    }
}

fn details(context: &Context, item: &ProcessItem) -> Vec<Detail> {
    let theme = &context.theme;
    let targets = context.targets();
    let Some((process, device)) = targets
        .get(item.target)
        .and_then(|target| Some((context.snapshot.processes.get(target.process)?, target.device)))
    else {
        return Vec::new();
    };
    let header = &process.header;
    let mut details = Vec::new();
    let mut tell = |what, words: String, style| {
        details.push(Detail { what, words: text::clean(&words).into_owned(), style });
    };
    tell("state", state_words(process, item, context), state_style(process.state, theme));
    if let Some(words) = context.memory_location_words(process) {
        tell("memory", words, theme.warn);
    }
    for warning in process.failure.iter().chain(process.warnings.iter().rev().take(3)) {
        tell("warning", warning.clone(), theme.warn);
    }
    if process.skipped_lines > 0 {
        tell(
            "skipped",
            format!("{} of the trace could not be read", format::counted(process.skipped_lines, "line")),
            theme.warn,
        );
    }
    if let Some(device) = device.and_then(|device| process.devices.get(device)) {
        tell("device", device_words(&device.totals, context), theme.text);
    }
    tell("command", header.command.join(" "), theme.text);
    tell("directory", header.directory.clone(), theme.text);
    let parent = if header.parent_pid > 0 { format!(", parent {}", header.parent_pid) } else { String::new() };
    tell("host", format!("{}, pid {}{parent}", header.host, header.pid), theme.text);
    tell("trace", process.path.display().to_string(), theme.text);
    tell("started", started_words(process, context.now_unix_ns), theme.text);
    details
}

fn state_words(process: &ProcessSnapshot, item: &ProcessItem, context: &Context) -> String {
    let how = match process.state {
        ProcessState::Ended { code: Some(code), signal: None } => format!("ended with exit code {code}"),
        ProcessState::Killed => "killed: the process ended without saying how".to_owned(),
        state => state.short(),
    };
    let lasted = format::duration(process.until(context.now_unix_ns));
    let mut words = format!("{how} {} {lasted}", if process.state.is_over() { "after" } else { "for" });
    if process.steps_ended > 0 {
        words += &format!("{}{}", context.theme.glyphs.separator, format::counted(item.steps_ended, "step"));
    }
    if process.oom_count > 0 {
        words += &format!("{}{} out of memory", context.theme.glyphs.separator, format::grouped(process.oom_count));
    }
    words + &format!("{}{}", context.theme.glyphs.separator, format::counted(process.events_read, "event"))
}

fn device_words(totals: &memlab_trace::DeviceView, context: &Context) -> String {
    let size = |bytes| format::bytes(bytes, context.units);
    let name = if totals.name.is_empty() { "device" } else { &totals.name };
    let mut words = format!("cuda:{} {name}", totals.index);
    if totals.total_bytes > 0 {
        words += &format!(", {}", size(totals.total_bytes));
    }
    if totals.peak_allocated_bytes > 0 {
        let at = format::duration(totals.peak_time);
        words += &format!("{}peak {} at {at}", context.theme.glyphs.separator, size(totals.peak_allocated_bytes));
    }
    words + &format!("{}at most {} in use", context.theme.glyphs.separator, size(totals.peak_used_bytes))
}

fn started_words(process: &ProcessSnapshot, now_unix_ns: u64) -> String {
    let start = process.header.start_unix_ns;
    let ago = now_unix_ns.checked_sub(start).map(|ago| format!(", {} ago", format::duration(ago))).unwrap_or_default();
    format!("{}{ago}", format::date(start))
}

fn draw_details(buffer: &mut Buffer, area: Rect, title: &str, details: &[Detail], theme: &Theme) {
    let inner = frame(buffer, area, title, Vec::new(), theme);
    if inner.width < WORDS + 4 {
        return;
    }
    let room = inner.width - WORDS - 3;
    let mut y = inner.y;
    for detail in details {
        if y >= inner.bottom() {
            return;
        }
        put_right(buffer, inner.x + WORDS, y, WORDS - 1, detail.what, theme.dim, theme);
        // A long text continues in the next rows, the last of which is cut.
        let rows = detail.rows(area.width).min(inner.bottom() - y);
        let mut rest = detail.words.as_str();
        for row in 0..rows {
            let here = if row + 1 == rows { rest } else { leading(rest, usize::from(room)) };
            put(buffer, inner.x + WORDS + 2, y, room, here, detail.style, theme);
            rest = &rest[here.len()..];
            y += 1;
        }
    }
}

/// The beginning of a text that fits into so many columns.
fn leading(text: &str, columns: usize) -> &str {
    let fits = |end: &usize| text::width(&text[..*end]) <= columns;
    let ends = text.char_indices().map(|(index, character)| index + character.len_utf8());
    &text[..ends.take_while(fits).last().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_that_fits() {
        assert_eq!(leading("模型 model", 5), "模型 ");
        assert_eq!([leading("abc", 0), leading("abc", 2), leading("abc", 9)], ["", "ab", "abc"]);
    }
}
