//! Draws the lines: the table, the callers of a line, and the call tree.

use memlab_trace::Scope;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::columns::LineColumn;
use super::item::LineItem;
use super::state::LinesScreen;
use crate::context::{Context, HitTarget, ShownMoment};
use crate::screen::{OverviewTable, TablePane};
use crate::widgets::facts::gpu_time_words;
use crate::widgets::pane::{fact, frame, put};
use crate::widgets::table::{self, Label, TableStyle};
use memlab_base::text::{COMPILED, NO_LINE, place};
use memlab_units::format;

impl LinesScreen {
    /// Draws the pane of the overview.
    pub fn draw_pane(&mut self, buffer: &mut Buffer, area: Rect, context: &Context, has_focus: bool) {
        let columns = match (context.moment, area.width) {
            (ShownMoment::Peak, 56..) => &[LineColumn::AtPeak, LineColumn::Now][..],
            (_, 56..) => &[LineColumn::Now, LineColumn::AtPeak],
            (ShownMoment::Peak, _) => &[LineColumn::AtPeak],
            _ => &[LineColumn::Now],
        };
        context.hit_targets.put(area, HitTarget::Pane(TablePane::Overview(OverviewTable::Lines)));
        self.draw_table(buffer, area, context, columns, (Some(TablePane::Overview(OverviewTable::Lines)), has_focus));
    }

    /// Draws the whole screen: the table, and details of the row under the cursor.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context) {
        let has_time = self.has_gpu_time(context);
        let columns = table::columns_with_gpu_time(area.width, has_time);
        let detail_rows = if area.height >= 12 { 4 + u16::from(has_time) } else { 0 };
        let place = Rect { height: area.height - detail_rows, ..area };
        let items = self.draw_table(buffer, place, context, &columns, (None, true));
        if let (1.., Some(item)) = (detail_rows, items.get(self.table.selected)) {
            draw_detail(buffer, Rect { y: place.bottom(), height: detail_rows, ..area }, context, item);
        }
    }

    fn draw_table(
        &mut self,
        buffer: &mut Buffer,
        area: Rect,
        context: &Context,
        columns: &[LineColumn],
        (pane, has_focus): (Option<TablePane>, bool),
    ) -> Vec<LineItem> {
        let rows = self.items(context);
        self.follow_wanted(&rows, context);
        let mut state = self.table;
        let theme = &context.theme;
        let all = context.device().map_or(0, |device| device.lines.len());
        let top = rows.iter().filter(|row| row.depth == 0).count();
        let is_tree = self.is_tree && pane.is_none();
        let count = if top == all || is_tree { all.to_string() } else { format!("{top} of {all}") };
        let counted = if context.inclusive && !is_tree && pane.is_none() { "with callees" } else { "" };
        let title = if is_tree { "Call tree" } else { "Lines" };
        let told =
            context.process().filter(|process| process.scope == Scope::Libraries).map_or("", |_| "with library lines");
        let facts = [fact(told, theme.warn), fact(counted, theme.warn), fact(count, theme.dim)]
            .into_iter()
            .filter(|fact| fact[0].width() > 0);
        let inner = frame(buffer, area, title, facts.collect(), theme);
        let has_source = area.width >= SOURCE_FROM_COLUMNS;
        let style = TableStyle { context, columns, pane, has_focus };
        table::draw(buffer, inner, &style, &mut state, &rows, |row| label(row, context, has_source));
        self.table = state;
        rows
    }
}

/// Width from which the table has the source text of each line.
const SOURCE_FROM_COLUMNS: u16 = 160;

fn label(row: &LineItem, context: &Context, has_source: bool) -> Label {
    let (name, aside) = match row.line() {
        Some(line) => {
            let compiled = if row.figures.own.is_compiled { COMPILED } else { "" };
            let source = context.recorded_text(line).filter(|_| has_source);
            let source = source.map(|text| format!("  {}", text.trim())).unwrap_or_default();
            (context.place(line), format!("{}{compiled}{source}", line.function))
        }
        None => (NO_LINE.to_owned(), String::new()),
    };
    let tint = context.theme.bands[0];
    Label { depth: row.depth, is_open: row.is_open, name, aside, tint, ..Label::default() }
}

fn draw_detail(buffer: &mut Buffer, area: Rect, context: &Context, row: &LineItem) {
    let theme = &context.theme;
    let title = row.line().map_or(NO_LINE, |line| &line.function);
    let inner = frame(buffer, area, title, Vec::new(), theme);
    let path = row.line().map_or_else(
        || "no Python frame: a library's thread, or before Python was detected".to_owned(),
        |line| place(line, ""),
    );
    let used = put(buffer, inner.x + 1, inner.y, inner.width.saturating_sub(2), &path, theme.text, theme);
    if let Some(text) = row.line().and_then(|line| context.recorded_text(line)) {
        let room = inner.width.saturating_sub(used + 4);
        put(buffer, inner.x + used + 3, inner.y, room, text.trim(), theme.accent, theme);
    }
    let figures = figures_in_words(context, row);
    put(buffer, inner.x + 1, inner.y + 1, inner.width.saturating_sub(2), &figures, theme.dim, theme);
    if let (Some(time), 3..) = (&row.time, inner.height) {
        let words = format!("GPU: {}", gpu_time_words(time));
        put(buffer, inner.x + 1, inner.y + 2, inner.width.saturating_sub(2), &words, theme.dim, theme);
    }
}

/// Memory of a line alone, and with its calls.
fn figures_in_words(context: &Context, row: &LineItem) -> String {
    let own = &row.figures.own;
    let then = context.live_moment();
    let from_backward =
        |bytes: u64| if bytes == 0 { String::new() } else { format!(" ({} from backward)", context.size(bytes)) };
    // An end without memory is left out.
    let live = |bytes: u64, blocks: u64| match (bytes, then) {
        (0, "at end") => None,
        (0, _) => Some(format!("{then} nothing")),
        _ => Some(format!("{then} {} in {}", context.size(bytes), format::counted(blocks, "block"))),
    };
    // The displayed moment comes first: a narrow screen cuts the rest.
    let in_order = |live: Option<String>, at_peak: String| match (live, context.moment) {
        (None, _) => at_peak,
        (Some(live), ShownMoment::Peak) => format!("{at_peak}, {live}"),
        (Some(live), ShownMoment::Now | ShownMoment::Cursor) => format!("{live}, {at_peak}"),
    };
    let itself = match own.allocations {
        0 => "no allocations of its own".to_owned(),
        allocations => format!(
            "{}; {}, {} each",
            in_order(
                live(own.live_bytes, own.live_blocks).map(|words| words + &from_backward(own.backward_bytes)),
                format!(
                    "at peak {}{}",
                    context.size(own.live_bytes_at_peak),
                    from_backward(own.backward_bytes_at_peak)
                ),
            ),
            format::counted(allocations, "allocation"),
            context.size(own.allocated_bytes / allocations),
        ),
    };
    match &row.figures.inclusive {
        Some(held) => {
            let at_peak = format!("at peak {}", context.size(held.live_bytes_at_peak));
            format!("{itself}; with callees: {}", in_order(live(held.live_bytes, held.live_blocks), at_peak))
        }
        None => itself,
    }
}
