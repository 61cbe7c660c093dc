//! All at a glance: memory over time, by step, on each device, by category, what is worth looking at, the top lines and layers,
//! and what the program prints.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::pane::put;
use super::{categories, chart, layers, lines, output, ranks, step_bars};
use crate::app::App;
use crate::findings::Kind;
use crate::text;

/// Where the panes are; a pane without room has no height.
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

/// What there is to show beside what there always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// How many findings there are.
    findings: u16,
    /// What the program prints.
    output: bool,
    /// Steps.
    steps: bool,
    /// Rows of the categories.
    categories: u16,
    /// Rows of the devices, if there are several: of all that is to be said, and of as little as can be.
    ranks: (u16, u16),
}

/// Shares the rows: the chart grows most, then the tables. The categories and the devices have no use for more than they
/// want.
pub fn panes(area: Rect, wants: Wants) -> Panes {
    let finding_rows = wants.findings.min(match area.height {
        ..12 => 0,
        12..30 => 1,
        _ => 3,
    });
    let output_rows = match area.height {
        _ if !wants.output => 0,
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
    let (all, least) = wants.ranks;
    let rank_rows = if all <= most { all } else { least.min(most) };
    let rest = rest - rank_rows;
    // On terminals of 30 rows and more.
    let step_rows = match rest {
        _ if !wants.steps || area.height < 27 => 0,
        ..24 => 0,
        24..32 => 4,
        32..44 => 5,
        _ => 7,
    };
    let rest = rest - step_rows;
    let category_rows = match rest {
        ..14 => 0,
        // Beside the devices their bar is enough.
        14..20 if rank_rows > 0 => wants.categories.min(3),
        14..27 => wants.categories.min(5),
        27..40 => wants.categories.min(6),
        _ => wants.categories.min(9),
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

/// Draws all panes.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &mut App) {
    let wants = Wants {
        findings: app.process().map_or(0, |process| process.findings.len().min(9) as u16),
        output: app.output().is_some(),
        steps: step_bars::has_steps(app),
        categories: categories::wanted_rows(app, area.width),
        ranks: ranks::wanted_rows(app, area.width),
    };
    let panes = panes(area, wants);
    chart::draw(buffer, panes.chart, app);
    if panes.findings.height > 0 {
        draw_findings(buffer, panes.findings, app);
    }
    if panes.steps.height > 0 {
        step_bars::draw(buffer, panes.steps, app);
    }
    if panes.ranks.height > 0 {
        ranks::draw(buffer, panes.ranks, app);
    }
    if panes.categories.height > 0 {
        categories::draw(buffer, panes.categories, app);
    }
    if panes.lines.height > 0 {
        lines::draw_top(buffer, panes.lines, app);
        layers::draw_top(buffer, panes.layers, app);
    }
    if panes.output.height > 0 {
        output::draw_latest(buffer, panes.output, app);
    }
}

/// What is worth looking at, one in a row: what was found, and as far as there is room what to do next.
fn draw_findings(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let findings = app.process().map_or(&[][..], |process| &process.findings);
    for (y, finding) in (area.y..area.bottom()).zip(findings) {
        let (sign, style) = match finding.kind {
            Kind::OutOfMemory => (theme.glyphs.oom, theme.bad),
            _ => ("!", theme.warn),
        };
        let arrow = if theme.glyphs.unicode { "→" } else { "->" };
        let words = format!(" {sign} {} {arrow} {} ", finding.what.text(), finding.next);
        let words = text::clean(&words).into_owned();
        put(
            buffer,
            area.x,
            y,
            area.width,
            &text::fit(&words, usize::from(area.width), theme.glyphs.ellipsis),
            style,
            theme,
        );
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
                    let wants = Wants {
                        findings: if bits & 1 != 0 { height % 5 } else { 0 },
                        output: bits & 2 != 0,
                        steps: bits & 4 != 0,
                        categories: 5,
                        ranks: if bits & 8 != 0 { (3 + height / 3, 3 + height / 6) } else { (0, 0) },
                    };
                    let area = Rect::new(0, 2, width, height);
                    let panes = panes(area, wants);
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
                    // AND the chart always has room for itself
                    assert!(chart.height >= height.min(5), "{area:?} {panes:?}");
                }
            }
        }
    }
}
