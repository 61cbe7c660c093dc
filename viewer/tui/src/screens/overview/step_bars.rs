//! Peak by step: a column for each step, or for several together.

use memlab_trace::StepView;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use crate::context::{Context, HitTarget, ShownMoment};
use crate::widgets::gauge::{Gauge, mark};
use crate::widgets::pane::{Fact, fact, frame, put_right};
use memlab_follow::snapshot::DeviceSnapshot;
use memlab_units::format;

/// Width of the axis, equal to the chart's.
const AXIS: u16 = 10;
/// Maximum width of a step's column, including the gap after it.
const MAX_BAR_COLUMNS: u16 = 6;

/// Steps that share a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bar {
    /// Maximum of their peaks.
    peak: u64,
    /// Bytes allocated at the end of the last one.
    kept: u64,
    /// End of the step before the first, and end of the last step.
    since: u64,
    end: u64,
}

/// True if the device has steps to show.
pub fn has_steps(context: &Context) -> bool {
    context.device().is_some_and(|device| device.steps.len() > 1)
}

/// Draws the pane.
pub fn draw(buffer: &mut Buffer, area: Rect, context: &Context) {
    let (Some(process), Some(device)) = (context.process(), context.device()) else { return };
    let (from, to) = context.chart_span().unwrap_or((0, u64::MAX));
    let room = area.width.saturating_sub(2 + AXIS).min(area.width);
    let first = device.steps.partition_point(|step| step.end_time < from);
    // Includes the step in which the chart ends.
    let last = (device.steps.partition_point(|step| step.end_time <= to) + 1).clamp(first, device.steps.len());
    let exact = (last - first).div_ceil(usize::from(room.max(1))).max(1);
    // While steps arrive, columns must keep their steps: count from the first step, and double the steps per column.
    let shared = if process.state.is_over() { exact } else { exact.next_power_of_two() };
    let first = first / shared * shared;
    let steps = &device.steps[first..last];
    let since = first.checked_sub(1).map_or(0, |before| device.steps[before].end_time);
    let bars = bars(since, steps, shared);
    let inner = frame(buffer, area, "Peak by step", facts(context, device, steps, shared), &context.theme);
    if inner.height == 0 || inner.width < AXIS + 8 || bars.is_empty() {
        return;
    }
    let plot = Rect { x: inner.x + AXIS, width: inner.width - AXIS, ..inner };
    let bars = &bars[bars.len().saturating_sub(usize::from(plot.width))..];
    draw_bars(buffer, plot, context, device, bars);
}

fn bars(mut since: u64, steps: &[StepView], shared: usize) -> Vec<Bar> {
    let bar = |steps: &[StepView]| {
        let end = steps.last().map_or(since, |step| step.end_time);
        Bar {
            peak: steps.iter().map(|step| step.peak_allocated_bytes).max().unwrap_or(0),
            kept: steps.last().map_or(0, |step| step.allocated_bytes_at_end),
            since: std::mem::replace(&mut since, end),
            end,
        }
    };
    steps.chunks(shared.max(1)).map(bar).collect()
}

fn draw_bars(buffer: &mut Buffer, plot: Rect, context: &Context, device: &DeviceSnapshot, bars: &[Bar]) {
    let theme = &context.theme;
    let whole = bars.iter().map(|bar| bar.peak.max(bar.kept)).max().unwrap_or(0);
    put_right(buffer, plot.x - 1, plot.y, AXIS - 1, &format::tick(whole), theme.dim, theme);
    if plot.height > 1 {
        put_right(buffer, plot.x - 1, plot.bottom() - 1, AXIS - 1, "0 B", theme.dim, theme);
    }
    // Wide columns have a gap between them.
    let pitch = (plot.width / bars.len() as u16).clamp(1, MAX_BAR_COLUMNS);
    let width = if pitch > 2 { pitch - 1 } else { pitch };
    let column_of = |time: u64| {
        let index = bars.partition_point(|bar| bar.end < time);
        bars.get(index).filter(|bar| bar.since == 0 || bar.since < time).map(|_| index)
    };
    let shown = if context.moment == ShownMoment::Cursor { context.cursor_time().and_then(column_of) } else { None };
    for (index, bar) in bars.iter().enumerate() {
        let x = plot.x + index as u16 * pitch;
        let edges = [(bar.kept, 0), (bar.peak, 1)];
        let gauge = Gauge { edges: &edges, whole, rest: None };
        for x in x..x + width {
            gauge.draw_column(buffer, x, plot, theme);
        }
        context.hit_targets.put(Rect { x, width: pitch, ..plot }, HitTarget::Moment(bar.end));
        if shown == Some(index) {
            let line = if theme.glyphs.unicode { "│" } else { "|" };
            for y in plot.y..plot.bottom() {
                if let Some(cell) = buffer.cell_mut((x + width / 2, y)) {
                    mark(cell, line, theme.title);
                }
            }
        }
    }
    let mut sign = |time: u64, sign: &str, style| {
        let Some(index) = column_of(time) else { return };
        let x = plot.x + index as u16 * pitch + width / 2;
        if let Some(cell) = buffer.cell_mut((x, plot.y)) {
            mark(cell, sign, style);
        }
    };
    if device.totals.peak_allocated_bytes > 0 {
        sign(device.totals.peak_time, theme.glyphs.peak, theme.title);
    }
    let ooms = context.process().map_or(&[][..], |process| &process.ooms).iter();
    for oom in ooms.filter(|oom| oom.device == device.totals.index) {
        sign(oom.time, theme.glyphs.oom, theme.bad);
    }
}

fn facts(context: &Context, device: &DeviceSnapshot, steps: &[StepView], shared: usize) -> Vec<Fact> {
    let theme = &context.theme;
    let mut facts = Vec::new();
    if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
        let from = (first.index + 1).saturating_sub(first.steps);
        let together = if shared > 1 { format!(", {shared} per column") } else { String::new() };
        facts.push(fact(format!("steps {from} to {}{together}", last.index), theme.dim));
        if let Some(rate) = device.steps_per_second() {
            let rate = if rate >= 1.0 {
                format!("{} steps/s", format::rate(rate))
            } else {
                format!("{:.1} s/step", 1.0 / rate)
            };
            facts.push(fact(rate, theme.text));
        }
        facts.push(fact(
            format!(
                "last {}, kept {}",
                context.size(last.peak_allocated_bytes),
                context.size(last.allocated_bytes_at_end)
            ),
            theme.text,
        ));
    }
    if device.totals.peak_allocated_bytes > 0 {
        let steps = context.process().map_or(0, |process| process.steps_ended);
        let reached = format::step_during(device.totals.peak_step, steps);
        let peak = format!("{} {reached}", context.size(device.totals.peak_allocated_bytes));
        facts.push(vec![Span::styled(format!("{} ", theme.glyphs.peak), theme.accent), Span::styled(peak, theme.text)]);
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_steps_keep_their_highest_peak_and_what_the_last_one_kept() {
        let step = |index: u64, peak: u64| StepView {
            index,
            steps: 1,
            end_time: index * 10,
            peak_allocated_bytes: peak,
            allocated_bytes_at_end: index,
            ..StepView::default()
        };
        let steps = [step(0, 5), step(1, 9), step(2, 3)];
        let joined = [Bar { peak: 9, kept: 1, since: 4, end: 10 }, Bar { peak: 3, kept: 2, since: 10, end: 20 }];
        assert_eq!(bars(4, &steps, 2), joined);
        assert_eq!(bars(0, &steps, 1).len(), 3);
        assert!(bars(0, &[], 0).is_empty());
    }
}
