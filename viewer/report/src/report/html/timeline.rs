//! Memory over time: a picture with axes, and figures for the pointer.

use std::fmt::Write as _;

use maud::{Markup, html};
use memlab_trace::{DeviceView, Model, Range, StepView, Timeline};

use crate::page::chart::{Chart, HEIGHT, LEFT, RIGHT, WIDTH, decimal_step, entry, px, steps, ticks};
use crate::page::elements::size;
use memlab_base::text::clean;
use memlab_units::format;

/// Upper edge, below the marks, and lower edge, above the strip of steps.
const TOP: f64 = 44.0;
const AXIS: f64 = HEIGHT - 62.0;

/// Number of time intervals of the run.
const COLUMNS: usize = 900;

/// Maximum number of marked out-of-memory errors and of marked steps.
const OOMS: usize = 8;
const STEPS: usize = 180;

/// Memory in one interval of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Column {
    allocated: (u64, u64),
    reserved: u64,
    used: u64,
}

/// The run in columns of `width` nanoseconds each.
struct Columns {
    width: u64,
    until: u64,
    columns: Vec<Column>,
}

impl Columns {
    fn new(timeline: &Timeline, until: u64) -> Self {
        let last = timeline.points.last().map_or(0, |point| point.time);
        let until = until.max(last).max(1);
        let width = until.div_ceil(COLUMNS as u64).max(1);
        let index = |time: u64| ((time / width) as usize).min(COLUMNS - 1);
        let still = |value: u64| Range { min: value, max: value, last: value };
        let mut columns: Vec<Option<Column>> = vec![None; COLUMNS];
        let mut held = (0, 0, 0);
        let mut next = 0;
        let put = |columns: &mut Vec<Option<Column>>, at: usize, allocated: Range, reserved: u64, used: u64| {
            let column =
                columns[at].get_or_insert(Column { allocated: (allocated.min, allocated.max), reserved, used });
            column.allocated = (column.allocated.0.min(allocated.min), column.allocated.1.max(allocated.max));
            column.reserved = column.reserved.max(reserved);
            column.used = column.used.max(used);
        };
        for (number, point) in timeline.points.iter().enumerate() {
            let after = timeline.points.get(number + 1).map_or(u64::MAX, |next| next.time);
            let end = point.time.saturating_add(timeline.width.max(1)).min(after);
            let (from, to) = (index(point.time), index(end.saturating_sub(1).max(point.time)));
            // Nothing changed between two points.
            for at in next..from {
                put(&mut columns, at, still(held.0), held.1, held.2);
            }
            for at in from..=to {
                put(&mut columns, at, point.allocated, point.reserved.max, point.used.max);
            }
            held = (point.allocated.last, point.reserved.last, point.used.last);
            next = to + 1;
        }
        for at in next..COLUMNS {
            put(&mut columns, at, still(held.0), held.1, held.2);
        }
        Self { width, until, columns: columns.into_iter().map(Option::unwrap_or_default).collect() }
    }
}

/// A marked moment.
pub(super) struct Mark {
    /// Nanoseconds since the trace's start.
    pub(super) time: u64,
    /// Label.
    pub(super) text: String,
}

/// Chart of a device, with a mark at the page's moment.
pub(super) fn figure(model: &Model, device: &DeviceView, moment: Option<&Mark>) -> Markup {
    let timeline = model.timeline(device.index);
    if timeline.points.is_empty() {
        return Markup::default();
    }
    let columns = Columns::new(&timeline, model.time());
    let most = device.peak_used_bytes.max(device.peak_reserved_bytes).max(device.peak_allocated_bytes).max(1);
    // The size of the device is drawn if the run came near it.
    let shows_total = device.total_bytes > 0 && most > device.total_bytes / 2;
    let top = if shows_total { most.max(device.total_bytes) } else { most } as f64 * 1.04;
    let chart = Chart { until: columns.until as f64, most: top, top: TOP, axis: AXIS };
    let label = format!("memory over {}, peak {}", format::duration(columns.until), size(device.peak_allocated_bytes));
    let total = size(device.total_bytes);
    html! {
        figure {
            div.scroll {
                svg.timeline xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {HEIGHT}"))
                    tabindex="0" role="img" aria-label=(label) data-left=(LEFT) data-right=(RIGHT) data-width=(columns.width)
                    data-columns=(figures(&columns)) {
                    (chart.grid())
                    (chart.zoomed(&html! {
                        @for (band, bytes) in BANDS { path.{ "band" (band) } d=(area(&chart, &columns, bytes)) {} }
                        (steps_ended(model.device_steps(device.index), &chart))
                    }))
                    @if shows_total { (chart.total(device.total_bytes, &format!("device total {total}"))) }
                    @if let Some(limit) = device.limit_bytes.filter(|limit| *limit < most) {
                        @let y = chart.y(limit);
                        g.limit {
                            path d=(format!("M{LEFT} {y:.1}H{RIGHT}")) {}
                            text.end x=(RIGHT - 6.0) y=(px(y - 5.0)) {
                                "the limit of " (size(limit))
                                @if device.spills { ", memory beyond it is on the host" }
                            }
                        }
                    }
                    (time_axis(&chart, columns.until))
                    (step_numbers(&chart, model.device_steps(device.index)))
                    (marks(&chart, model, device, moment))
                    path.cursor d=(format!("M0 {TOP}V{AXIS}")) {}
                }
            }
            output.readout { "\u{a0}" }
            figcaption {
                p.note { "Drag to zoom, double-click to go back." }
                ul.legend {
                    (entry("band0", "allocated throughout"))
                    (entry("band1", "allocated for a while"))
                    (entry("band2", "reserved"))
                    (entry("band3", "in use on the device"))
                    li { "▼ the peak" }
                    @if moment.is_some() { li { "◆ the moment of this page" } }
                    @if model.oom_count() > 0 { li.bad { "✖ out of memory" } }
                }
            }
        }
    }
}

/// Minimum and maximum allocated, reserved and used bytes of every column for the script, in numbers and commas only.
fn figures(columns: &Columns) -> String {
    let mut text = String::with_capacity(columns.columns.len() * 40);
    for Column { allocated, reserved, used } in &columns.columns {
        let _ = write!(text, "{},{},{reserved},{used};", allocated.0, allocated.1);
    }
    text.truncate(text.trim_end_matches(';').len());
    text
}

/// A band: its number in the theme, and its upper end.
type Band = (usize, fn(&Column) -> u64);

/// From the back to the front.
const BANDS: [Band; 4] = [
    (3, |column| column.used),
    (2, |column| column.reserved),
    (1, |column| column.allocated.1),
    (0, |column| column.allocated.0),
];

/// Area below a step line.
fn area(chart: &Chart, columns: &Columns, bytes: fn(&Column) -> u64) -> String {
    let mut path = format!("M{LEFT} {:.1}", chart.y(0));
    let x = |index: usize| chart.x((index as u64).saturating_mul(columns.width) as f64);
    let heights = columns.columns.iter().enumerate().map(|(index, column)| (x(index), chart.y(bytes(column))));
    steps(&mut path, f64::NAN, heights);
    path + &format!("V{:.1}Z", chart.y(0))
}

fn time_axis(chart: &Chart, until: u64) -> Markup {
    let step = time_step(until);
    html! {
        (chart.axis())
        @for time in ticks(step).take_while(|time| *time <= until) {
            @let x = chart.x(time as f64);
            (chart.tick(x, if x > WIDTH - 40.0 { "end" } else { "middle" }, &format::moment(time, step)))
        }
    }
}

/// A round interval that fits into `until` at most ten times.
fn time_step(until: u64) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let decimal = (0..9).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
    let clock = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
    let mut steps = decimal.chain(clock.map(|seconds| seconds * SECOND));
    let days = || {
        let mut step = 86_400 * SECOND;
        while until / step > 10 {
            step = step.saturating_mul(2);
        }
        step
    };
    steps.find(|step| until / step <= 10).unwrap_or_else(days)
}

/// Upper edge of the strip of steps.
const STRIP: f64 = AXIS + 30.0;

/// Number of steps for each mark in the strip: only as many marks as can be distinguished.
fn steps_per_mark(steps: &[StepView]) -> usize {
    steps.len().div_ceil(STEPS).max(1)
}

/// Ends of steps: a strip below the axis.
fn steps_ended(steps: &[StepView], chart: &Chart) -> Markup {
    let x = |step: &StepView| chart.x(step.end_time as f64);
    let marks = steps.iter().step_by(steps_per_mark(steps));
    let path: String = marks.map(|step| format!("M{:.1} {STRIP}v6", x(step))).collect();
    html! { @if !path.is_empty() { path.step d=(path) {} } }
}

/// Numbers below the strip of steps.
fn step_numbers(chart: &Chart, steps: &[StepView]) -> Markup {
    let Some(last) = steps.last() else { return Markup::default() };
    let x = |step: &StepView| chart.x(step.end_time as f64);
    let every = steps_per_mark(steps);
    // Numbers multiples of a round stride.
    let stride = decimal_step(last.index.saturating_add(1), 9);
    let mut free_from = LEFT - 20.0;
    let mut numbered: Vec<&StepView> = steps.iter().filter(|step| step.index.is_multiple_of(stride)).collect();
    numbered.retain(|step| {
        let has_room = x(step) >= free_from && x(step) < WIDTH - 30.0;
        if has_room {
            free_from = x(step) + 50.0;
        }
        has_room
    });
    html! {
        text.end x=(LEFT - 8.0) y=(STRIP + 8.0) { "steps" }
        @for step in numbered {
            g.tick data-x=(px(x(step))) {
                text.middle x=(px(x(step))) y=(STRIP + 20.0) { (format::count(step.index)) }
            }
        }
        @if every > 1 {
            text.end x=(RIGHT) y=(TOP - 28.0) {
                "a mark for every " (every) " of " (format::grouped(last.index.saturating_add(1))) " steps"
            }
        }
    }
}

/// The peak and the out-of-memory errors, each with a label in a separate row.
fn marks(chart: &Chart, model: &Model, device: &DeviceView, moment: Option<&Mark>) -> Markup {
    // From the top: the peak, the moment of the page, out-of-memory errors.
    let (at_peak, at_moment, at_oom) =
        if moment.is_some() { (TOP - 32.0, TOP - 18.0, TOP - 4.0) } else { (TOP - 24.0, 0.0, TOP - 8.0) };
    let (peak, what) = match device.allocations {
        0 => (device.used_bytes_at_peak, "in use"),
        _ => (device.peak_allocated_bytes, "allocated"),
    };
    let mark = |class: &str, time: u64, y: f64, sign: char, label: &str| {
        chart.mark(class, chart.x(time as f64), [y + 3.0, y], Some(sign), &clean(label))
    };
    let ooms = model.ooms().into_iter().filter(|oom| oom.device == device.index).take(OOMS);
    let at = format!("{} {what} after {}", size(peak), format::duration(device.peak_time));
    html! {
        @for (index, oom) in ooms.enumerate() {
            @let label = format!("out of memory: {} requested", size(oom.requested_bytes));
            (mark("oom", oom.time, at_oom, '✖', if index == 0 { &label } else { "" }))
        }
        (mark("peak", device.peak_time, at_peak, '▼', &at))
        @if let Some(Mark { time, text }) = moment { (mark("here", *time, at_moment, '◆', text)) }
    }
}

#[cfg(test)]
mod tests {
    use memlab_trace::TimelinePoint;

    use super::*;

    fn range(min: u64, max: u64, last: u64) -> Range {
        Range { min, max, last }
    }

    #[test]
    fn columns_hold_what_happened_in_them_and_what_stayed() {
        // GIVEN two points, of a nanosecond each, far apart
        let point =
            |time, allocated| TimelinePoint { time, allocated, reserved: range(8, 9, 9), used: range(0, 20, 10) };
        let points = vec![point(COLUMNS as u64, range(0, 7, 5)), point(3 * COLUMNS as u64, range(2, 5, 2))];
        let columns = Columns::new(&Timeline { width: 1, points, ..Timeline::default() }, 10 * COLUMNS as u64);
        // THEN every column has the range within it, and the last value in between
        assert_eq!(columns.width, 10);
        let at = |index: usize| columns.columns[index].allocated;
        assert_eq!(
            [at(89), at(90), at(91), at(269), at(270), at(271), at(899)],
            [(0, 0), (0, 7), (5, 5), (5, 5), (2, 5), (2, 2), (2, 2)]
        );
        assert_eq!((columns.columns[91].reserved, columns.columns[90].used, columns.columns[91].used), (9, 20, 10));
    }

    #[test]
    fn columns_bear_any_time() {
        let point = |time| TimelinePoint { time, allocated: range(0, u64::MAX, 1), ..TimelinePoint::default() };
        let points = vec![point(5), point(3), point(u64::MAX)];
        let columns = Columns::new(&Timeline { width: 1 << 52, points, ..Timeline::default() }, u64::MAX);
        assert_eq!(columns.columns.len(), COLUMNS);
    }

    #[test]
    fn an_axis_has_a_handful_of_ticks() {
        for until in [1, 999, 1_500_000_000, 19_100_000_000, 3_599_000_000_000, 86_400_000_000_000, u64::MAX] {
            let ticks = until / time_step(until);
            assert!((1..=10).contains(&ticks), "{until}: {ticks}");
        }
    }
}
