//! Draws the overview: memory over time, by step, by device and by category, the verdict, the top lines and layers,
//! and the output of the program.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::state::OverviewScreen;
use super::{categories, chart, ranks, step_bars};
use crate::context::{Context, HitTarget};
use crate::screen::OverviewTable;
use crate::screens::layers::LayersScreen;
use crate::screens::lines::LinesScreen;
use crate::screens::output::OutputScreen;
use crate::widgets::pane::{put, wrapped};
use memlab_base::findings::Kind;
use memlab_base::text;

/// Areas of the panes; a pane without room has no height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panes {
    chart: Rect,
    findings: Rect,
    steps: Rect,
    ranks: Rect,
    categories: Rect,
    lines: Rect,
    layers: Rect,
    output: Rect,
}

/// Other screens with a pane here.
pub struct OverviewParts<'s> {
    /// Lines.
    pub lines: &'s mut LinesScreen,
    /// Layers.
    pub layers: &'s mut LayersScreen,
    /// Output of the program.
    pub output: &'s OutputScreen,
}

/// Content of the optional panes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaneContents {
    /// Rows of the verdict and of the cure.
    findings: u16,
    /// True if the program's output is shown.
    output: bool,
    /// True if steps are shown.
    steps: bool,
    /// Rows of the categories.
    categories: u16,
    /// Rows of the devices, if there are several: in full, and at least.
    ranks: (u16, u16),
}

/// Divides the rows: the chart grows most, then the tables. The categories and the devices get no more than they can
/// fill.
pub fn panes(area: Rect, contents: PaneContents) -> Panes {
    let finding_rows = contents.findings.min(match area.height {
        ..12 => 0,
        12..24 => 1,
        24..30 => 2,
        _ => MAX_FINDING_ROWS as u16,
    });
    let output_rows = match area.height {
        _ if !contents.output => 0,
        ..26 => 0,
        26..36 => 5,
        36..50 => 7,
        _ => 10,
    };
    let rest = area.height - finding_rows - output_rows;
    let most = match rest {
        ..18 => 0,
        18..28 => 5,
        28..40 => 7,
        _ => 14,
    };
    let (all, least) = contents.ranks;
    let rank_rows = if all <= most { all } else { least.min(most) };
    let rest = rest - rank_rows;
    // On terminals of 30 rows and more.
    let step_rows = match rest {
        _ if !contents.steps || area.height < 27 => 0,
        ..24 => 0,
        24..32 => 4,
        32..44 => 5,
        _ => 7,
    };
    let rest = rest - step_rows;
    let category_rows = match rest {
        ..14 => 0,
        // With the devices on screen, the bar suffices.
        14..20 if rank_rows > 0 => contents.categories.min(3),
        14..27 => contents.categories.min(5),
        27..40 => contents.categories.min(6),
        _ => contents.categories.min(9),
    };
    let rest = rest - category_rows;
    let table_rows = if rest < 12 { 0 } else { (rest * 45 / 100).max(6) };
    let mut y = area.y;
    let mut take = |height: u16| {
        let pane = Rect { y, height, ..area };
        y += height;
        pane
    };
    let chart = take(rest - table_rows);
    let findings = take(finding_rows);
    let steps = take(step_rows);
    let ranks = take(rank_rows);
    let categories = take(category_rows);
    let tables = take(table_rows);
    let output = take(output_rows);
    let left = tables.width.div_ceil(2);
    let lines = Rect { width: left, ..tables };
    let layers = Rect { x: tables.x + left, width: tables.width - left, ..tables };
    Panes { chart, findings, steps, ranks, categories, lines, layers, output }
}

impl OverviewScreen {
    /// Draws all panes.
    pub fn draw(&mut self, buffer: &mut Buffer, area: Rect, context: &Context, parts: OverviewParts<'_>) {
        let found = finding_rows(context, area.width);
        let contents = PaneContents {
            findings: found.len() as u16,
            output: parts.output.has_program(),
            steps: step_bars::has_steps(context),
            categories: categories::wanted_rows(context, area.width),
            ranks: ranks::wanted_rows(context, area.width),
        };
        let panes = panes(area, contents);
        chart::draw(buffer, panes.chart, context, self.shows_categories);
        if panes.findings.height > 0 {
            draw_findings(buffer, panes.findings, context, &found);
        }
        if panes.steps.height > 0 {
            step_bars::draw(buffer, panes.steps, context);
        }
        if panes.ranks.height > 0 {
            ranks::draw(buffer, panes.ranks, context);
        }
        if panes.categories.height > 0 {
            categories::draw(buffer, panes.categories, context);
        }
        if panes.lines.height > 0 {
            parts.lines.draw_pane(buffer, panes.lines, context, self.focus == OverviewTable::Lines);
            parts.layers.draw_pane(buffer, panes.layers, context, self.focus == OverviewTable::Layers);
        }
        if panes.output.height > 0 {
            parts.output.draw_latest(buffer, panes.output, context);
        }
    }
}

/// Rows of the verdict and of the cure.
const MAX_FINDING_ROWS: usize = 4;

/// The verdict, and the cure of the most urgent finding, in rows for these columns. The key `!` shows all findings.
fn finding_rows(context: &Context, columns: u16) -> Vec<(String, Style)> {
    let theme = &context.theme;
    let Some(process) = context.process() else { return Vec::new() };
    let Some(verdict) = &process.verdict else { return Vec::new() };
    let columns = usize::from(columns).saturating_sub(2);
    let words = verdict.text();
    let Some(finding) = process.findings.first() else {
        return wrapped(&words, columns).into_iter().map(|line| (format!(" {line}"), theme.good)).collect();
    };
    let (sign, style) = match finding.kind {
        Kind::OutOfMemory => (theme.glyphs.oom, theme.bad),
        _ => ("!", theme.warn),
    };
    let arrow = if theme.glyphs.unicode { "→" } else { "->" };
    let cure = format!("{} (! shows all)", finding.next);
    let marked = |mark: &str, words: &str, style: Style| {
        let lines = text::wrapped(&format!(" {mark}"), &text::clean(words), columns);
        lines.into_iter().map(|line| (line, style)).collect::<Vec<_>>()
    };
    let mut rows = marked(sign, &words, style);
    rows.extend(marked(arrow, &cure, theme.text));
    rows.truncate(MAX_FINDING_ROWS);
    rows
}

fn draw_findings(buffer: &mut Buffer, area: Rect, context: &Context, rows: &[(String, Style)]) {
    let theme = &context.theme;
    context.hit_targets.put(area, HitTarget::Findings);
    for (y, (line, style)) in (area.y..area.bottom()).zip(rows) {
        let line = text::fit(line, usize::from(area.width), theme.glyphs.ellipsis);
        put(buffer, area.x, y, area.width, &line, *style, theme);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panes_fill_the_area_without_overlap() {
        for width in [30, 80, 121, 300] {
            for height in 5..120 {
                for bits in 0..16_u16 {
                    let contents = PaneContents {
                        findings: if bits & 1 != 0 { height % 5 } else { 0 },
                        output: bits & 2 != 0,
                        steps: bits & 4 != 0,
                        categories: 5,
                        ranks: if bits & 8 != 0 { (3 + height / 3, 3 + height / 6) } else { (0, 0) },
                    };
                    let area = Rect::new(0, 2, width, height);
                    let panes = panes(area, contents);
                    let Panes { chart, findings, steps, ranks, categories, lines, layers, output } = panes;
                    let all = [chart, findings, steps, ranks, categories, lines, layers, output];
                    let covered: u32 = all.iter().map(|pane| pane.area()).sum();
                    assert_eq!(covered, area.area(), "{area:?} {panes:?}");
                    for (index, pane) in all.iter().enumerate() {
                        assert_eq!(pane.intersection(area), *pane, "inside {area:?}");
                        assert!(
                            all[..index]
                                .iter()
                                .all(|other| !other.intersects(*pane) || other.area() == 0 || pane.area() == 0)
                        );
                    }
                    // AND the chart always has enough room
                    assert!(chart.height >= height.min(5), "{area:?} {panes:?}");
                }
            }
        }
    }
}
