//! Draws the ranks side by side and over time, and details of one of them.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::columns::{RankColumn, columns_for};
use super::details::{details, draw_details};
use super::heat::{HeatScale, Mark, draw_cells, draw_legend, draw_marks};
use super::imbalance::Imbalance;
use super::item::RankItem;
use super::job_time::{JobTime, began, spread};
use super::state::RanksScreen;
use super::style::{imbalance_words, state_style};
use crate::context::{Context, ShownMoment};
use crate::widgets::columns::Column;
use crate::widgets::pane::{Fact, fact, frame, put, put_right};
use crate::widgets::table::{self, Label, TableStyle};
use memlab_follow::snapshot::{DeviceSnapshot, ProcessSnapshot, ProcessState};
use memlab_units::format;

/// Minimum width of a heat map.
const MIN_MAP_COLUMNS: u16 = 12;

impl RanksScreen {
    /// Draws the table with the heat map, and details of the row under the cursor.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let rows = self.items(context);
        self.settle(context, &rows);
        self.update_findings(context);
        let selected = rows.get(self.table.selected);
        let details = selected.map(|item| details(context, item, self.findings())).unwrap_or_default();
        let table_rows = (rows.len() as u16).saturating_add(4 + 3);
        let wanted = details.iter().fold(2_u16, |sum, detail| sum.saturating_add(detail.rows(area.width)));
        let detail_rows = match area.height {
            ..10 => 0,
            height => wanted.min(height - table_rows.min(height * 11 / 20)),
        };
        let table = Rect { height: area.height - detail_rows, ..area };
        self.draw_table(buffer, table, context, &rows);
        if let (Some(item), 3..) = (rows.get(self.table.selected), detail_rows) {
            let place = Rect { y: table.bottom(), height: detail_rows, ..area };
            draw_details(buffer, place, &item.name, &details, &context.theme);
        }
    }

    fn draw_table(&mut self, buffer: &mut Buffer, area: Rect, context: &Context, rows: &[RankItem]) {
        let theme = &context.theme;
        let title = if rows.iter().any(|row| row.rank.is_some()) { "Ranks" } else { "Processes" };
        let columns = columns_for(rows, area.width);
        let mut facts = facts(context, rows);
        if !columns.contains(&self.table.sort) {
            facts.insert(0, fact(format!("by {}", self.table.sort.title()), theme.accent));
        }
        let inner = frame(buffer, area, title, facts, theme);
        let imbalance = Imbalance::of(rows).filter(|_| inner.height > 4);
        let fact_rows = u16::from(imbalance.is_some());
        let figures: u16 =
            columns.iter().map(|column| column.columns()).filter(|width| *width > 0).map(|width| width + 1).sum();
        let free = Rect { x: inner.x + figures, width: inner.width.saturating_sub(figures), ..inner };
        let heat = heat_area(free, rows);
        let time = JobTime::of(context, heat.width).filter(|_| heat.width >= MIN_MAP_COLUMNS);
        let spread_rows = match (inner.height, rows.len(), &time) {
            (.., None) | (_, ..2, _) => 0,
            (14.., ..) => 3,
            (9.., ..) => 1,
            _ => 0,
        };
        let place =
            Rect { y: inner.y + spread_rows, height: inner.height.saturating_sub(fact_rows + spread_rows), ..inner };
        let mut state = self.table;
        let style = TableStyle { context, columns: &columns, pane: None, has_focus: true };
        table::draw(buffer, place, &style, &mut state, rows, |_| Label::default());
        self.table = state;
        let shown = rows.iter().enumerate().skip(state.offset);
        let page: Vec<(u16, &RankItem, bool)> = (place.y + 1..place.bottom())
            .zip(shown)
            .map(|(y, (index, row))| (y, row, index == state.selected))
            .collect();
        self.seen = page.iter().map(|(_, row, _)| row.target).collect();
        draw_states(buffer, inner, context, &columns, &page);
        draw_commands(buffer, Rect { y: place.y, ..free }, heat, context, &page);
        if let Some(time) = time {
            let heat = HeatMap { area: heat, time, scale: self.scale, highest: highest(rows), context };
            heat.draw_spread(buffer, Rect { height: spread_rows, ..inner }, rows);
            draw_legend(
                buffer,
                Rect { y: place.y, height: 1, ..heat.area },
                self.scale,
                heat.highest,
                &heat.time,
                context.units,
                theme,
            );
            for (y, row, is_selected) in &page {
                heat.draw_row(buffer, *y, row, *is_selected);
            }
        }
        if let Some(imbalance) = imbalance {
            draw_imbalance(buffer, Rect { y: place.bottom(), height: 1, ..inner }, context, &imbalance, rows);
        }
    }
}

/// Area of the heat map: all that the columns leave free, or a part of it if the commands differ.
fn heat_area(free: Rect, rows: &[RankItem]) -> Rect {
    let are_alike = rows.windows(2).all(|pair| pair[0].command == pair[1].command);
    let width = if are_alike && rows.len() > 1 { free.width } else { free.width * 6 / 10 };
    Rect { width: if width < MIN_MAP_COLUMNS { 0 } else { width }, height: 1, ..free }
}

/// The highest peak of all rows.
fn highest(rows: &[RankItem]) -> u64 {
    let peak = |row: &RankItem| row.peak_allocated_bytes;
    rows.iter().map(peak).max().unwrap_or(0)
}

/// Colours the states.
fn draw_states(
    buffer: &mut Buffer,
    area: Rect,
    context: &Context,
    columns: &[RankColumn],
    page: &[(u16, &RankItem, bool)],
) {
    let theme = &context.theme;
    let mut x = area.x;
    for column in columns.iter().filter(|column| column.columns() > 0) {
        let width = column.columns();
        for (y, row, is_selected) in page.iter().filter(|_| x + width <= area.right()) {
            let style = match column {
                RankColumn::State if row.moved.is_some() => theme.warn,
                RankColumn::State => state_style(row.state, theme),
                RankColumn::Ooms if row.oom_count > 0 => theme.bad,
                _ => continue,
            };
            let style = if *is_selected { theme.selected.patch(Style { bg: None, ..style }) } else { style };
            buffer.set_style(Rect { x, y: *y, width, height: 1 }, style);
        }
        x += width + 1;
    }
}

/// Draws the commands beside the heat map, with their heading.
fn draw_commands(buffer: &mut Buffer, free: Rect, heat: Rect, context: &Context, page: &[(u16, &RankItem, bool)]) {
    let theme = &context.theme;
    let gap = if heat.width > 0 { heat.width + 2 } else { 0 };
    // The table has drawn this heading at the place of the heat map.
    let heading: String = (free.x..free.right())
        .filter_map(|x| buffer.cell((x, free.y)))
        .map(|cell| cell.symbol())
        .collect::<String>()
        .trim()
        .to_owned();
    let style = buffer.cell((free.x, free.y)).map_or(theme.dim, |cell| cell.style());
    put(buffer, free.x, free.y, free.width, &" ".repeat(usize::from(free.width)), theme.dim, theme);
    let name = Rect { x: free.x + gap, width: free.width.saturating_sub(gap), ..free };
    if name.width == 0 {
        return;
    }
    put(buffer, name.x, free.y, name.width, &heading, style, theme);
    for (y, row, is_selected) in page {
        let indent = (row.depth.saturating_mul(2)).min(name.width / 3);
        let style = if *is_selected { theme.selected } else { theme.text };
        put(buffer, name.x + indent, *y, name.width - indent, &row.command, style, theme);
    }
}

/// Data shared by the rows of the heat map.
struct HeatMap<'c> {
    area: Rect,
    time: JobTime,
    scale: HeatScale,
    highest: u64,
    context: &'c Context,
}

impl HeatMap<'_> {
    fn of(&self, row: &RankItem) -> Option<(&ProcessSnapshot, &DeviceSnapshot)> {
        let process = self.context.snapshot.processes.get(row.of.process)?;
        Some((process, process.devices.get(row.of.device?)?))
    }

    fn whole(&self, total_bytes: u64) -> u64 {
        match self.scale {
            HeatScale::Device if total_bytes > 0 => total_bytes,
            _ => self.highest,
        }
    }

    fn draw_row(&self, buffer: &mut Buffer, y: u16, row: &RankItem, is_selected: bool) {
        let Some((process, device)) = self.of(row) else { return };
        let theme = &self.context.theme;
        let area = Rect { y, ..self.area };
        draw_cells(buffer, area, &self.time.peaks(self.context, process, device), self.whole(row.total_bytes), theme);
        if is_selected {
            let ground = Style { fg: None, add_modifier: Modifier::empty(), ..theme.selected };
            buffer.set_style(area, ground);
        }
        draw_marks(buffer, area, &self.marks(process, device), theme);
    }

    /// Marks at the end of a rank, its first out-of-memory error, and the displayed moment.
    fn marks(&self, process: &ProcessSnapshot, device: &DeviceSnapshot) -> Vec<Mark> {
        let (context, theme) = (self.context, &self.context.theme);
        let column = |time: u64| self.time.column(began(context, process).saturating_add(time));
        let mut marks = Vec::new();
        if process.state.is_over() {
            let last = column(process.time);
            let column = if last + 1 < self.time.columns { last + 1 } else { last };
            let sign = if theme.glyphs.unicode { "┤" } else { "]" };
            marks.push(Mark { column, style: state_style(process.state, theme), sign: Some(sign) });
        }
        for oom in process.ooms.iter().filter(|oom| oom.device == device.totals.index) {
            marks.push(Mark { column: column(oom.time), style: theme.bad, sign: Some(theme.glyphs.oom) });
        }
        if let Some(column) = self.moment(process, device) {
            let style = theme.selected.patch(theme.accent);
            let sign = if theme.is_mono() { Some(if theme.glyphs.unicode { "┃" } else { "!" }) } else { None };
            marks.push(Mark { column, style, sign });
        }
        marks
    }

    /// Column of the displayed moment, which differs between rows at the peak.
    fn moment(&self, process: &ProcessSnapshot, device: &DeviceSnapshot) -> Option<u16> {
        let at = match self.context.moment {
            ShownMoment::Now => return None,
            ShownMoment::Cursor => self.context.cursor()?.unix_ns,
            ShownMoment::Peak => began(self.context, process).saturating_add(device.totals.peak_time),
        };
        Some(self.time.column(at))
    }

    /// Draws the maximum, the median and the minimum of all rows; in a low area only the median.
    fn draw_spread(&self, buffer: &mut Buffer, area: Rect, rows: &[RankItem]) {
        if area.height == 0 {
            return;
        }
        let theme = &self.context.theme;
        let rows_of_peaks: Vec<Vec<Option<u64>>> = rows
            .iter()
            .filter_map(|row| self.of(row))
            .map(|(process, device)| self.time.peaks(self.context, process, device))
            .collect();
        let whole = self.whole(rows.iter().map(|row| row.total_bytes).max().unwrap_or(0));
        let [least, median, most] = spread(&rows_of_peaks, self.time.columns);
        let mut peaks: Vec<u64> = rows.iter().map(|row| row.peak_allocated_bytes).collect();
        peaks.sort_unstable();
        let (last, middle) = (peaks.len().saturating_sub(1), peaks.len().saturating_sub(1) / 2);
        let peak = |at: usize| peaks.get(at).copied().unwrap_or(0);
        let all = [("most", peak(last), most), ("median", peak(middle), median), ("least", peak(0), least)];
        let shown = if area.height < 3 { &all[1..2] } else { &all[..] };
        for (y, (name, peak, peaks)) in (area.y..area.bottom()).zip(shown) {
            let words = format!("{name} peak {}", self.context.size(*peak));
            let room = self.area.x.saturating_sub(area.x + 1);
            put_right(buffer, area.x + room, y, room, &words, theme.dim, theme);
            draw_cells(buffer, Rect { y, ..self.area }, peaks, whole, theme);
        }
    }
}

fn facts(context: &Context, rows: &[RankItem]) -> Vec<Fact> {
    let theme = &context.theme;
    let processes = &context.snapshot.processes;
    let mut facts = Vec::new();
    match context.moment {
        ShownMoment::Now => {}
        ShownMoment::Cursor => facts.push(fact("then", theme.key)),
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
    let all = context.target_count();
    let unread = processes.iter().filter(|process| matches!(process.state, ProcessState::Opening { .. })).count();
    if unread > 0 {
        facts.push(fact(format!("reading {unread} of {}", processes.len()), theme.warn));
    }
    let ooms = processes.iter().filter(|process| process.oom_count > 0).count();
    if ooms > 0 {
        facts.push(fact(format!("{ooms} out of memory"), theme.bad));
    }
    let count = if rows.len() == all { all.to_string() } else { format!("{} of {all}", rows.len()) };
    facts.push(fact(count, theme.dim));
    facts
}

/// Draws the rank with the highest peak, and the rank that lags.
fn draw_imbalance(buffer: &mut Buffer, area: Rect, context: &Context, imbalance: &Imbalance, rows: &[RankItem]) {
    let theme = &context.theme;
    let (words, style) = imbalance_words(imbalance, rows, context);
    let x = area.x + 1;
    let used =
        put(buffer, x, area.y, area.width.saturating_sub(1), &format!("{} {words}", theme.glyphs.peak), style, theme);
    let Some((target, lag)) = imbalance.behind else { return };
    let name = rows.iter().find(|row| row.target == target).map_or("", |row| &row.name);
    let words = format!("{}{name} is {} behind", theme.glyphs.separator, format::counted(lag, "step"));
    put(buffer, x + used, area.y, area.right().saturating_sub(x + used), &words, theme.dim, theme);
}
