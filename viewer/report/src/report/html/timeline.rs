//! Memory over time, as a picture with axes, and the figures that it reads out under the pointer.

use std::fmt::Write as _;

use memlab_trace::{DeviceView, Model, Range, StepView, Timeline};

use crate::page::axes::{bytes_step, decimal_step};
use crate::page::elements::size;
use memlab_base::text::markup;
use memlab_units::format;

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 62.0;

/// Into how many stretches of time the run is cut.
const COLUMNS: usize = 900;

/// The most out-of-memory errors and the most steps marked.
const OOMS: usize = 8;
const STEPS: usize = 180;

/// What happened in one stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Column {
    allocated: (u64, u64),
    reserved: u64,
    used: u64,
}

/// The run cut into columns, `width` nanoseconds each.
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
            // Between two points nothing changed.
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

/// Where things are in the picture.
struct Scale {
    until: u64,
    top: f64,
}

impl Scale {
    fn x(&self, time: u64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (time as f64 / self.until as f64).min(1.0)
    }

    fn y(&self, bytes: u64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (bytes as f64 / self.top).min(1.0))
    }
}

/// A moment to be marked.
pub(super) struct Mark {
    /// When, in nanoseconds since the trace's start.
    pub(super) time: u64,
    /// What to say of it.
    pub(super) text: String,
}

/// The chart of a device; with a mark at the moment that the page is of.
pub(super) fn figure(model: &Model, device: &DeviceView, moment: Option<&Mark>) -> String {
    let timeline = model.timeline(device.index);
    if timeline.points.is_empty() {
        return String::new();
    }
    let columns = Columns::new(&timeline, model.time());
    let most = device.peak_used_bytes.max(device.peak_reserved_bytes).max(device.peak_allocated_bytes).max(1);
    // The device's size is drawn where the run came near it.
    let shows_total = device.total_bytes > 0 && most > device.total_bytes / 2;
    let top = if shows_total { most.max(device.total_bytes) } else { most } as f64 * 1.04;
    let scale = Scale { until: columns.until, top };

    let said = format!("memory over {}, peak {}", format::duration(columns.until), size(device.peak_allocated_bytes));
    let mut svg = format!(
        "<svg class=\"timeline\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" tabindex=\"0\" role=\"img\" \
         aria-label=\"{}\" data-left=\"{LEFT}\" data-right=\"{}\" data-width=\"{}\" data-columns=\"{}\">\n",
        markup(&said),
        WIDTH - RIGHT,
        columns.width,
        figures(&columns)
    );
    grid(&mut svg, &scale, top);
    for (band, low, high) in bands(&columns) {
        let _ = writeln!(svg, "<path class=\"band{band}\" d=\"{}\"/>", area(&scale, &columns, &low, &high));
    }
    if shows_total {
        let y = scale.y(device.total_bytes);
        let _ = writeln!(
            svg,
            "<path class=\"total\" d=\"M{LEFT} {y:.1}H{}\"/><text x=\"{}\" y=\"{:.1}\">the device’s {}</text>",
            WIDTH - RIGHT,
            LEFT + 6.0,
            y - 5.0,
            size(device.total_bytes)
        );
    }
    if let Some(limit) = device.limit_bytes.filter(|limit| *limit < most) {
        let y = scale.y(limit);
        let beyond = if device.spills { ", beyond it memory lies on the host" } else { "" };
        let _ = writeln!(
            svg,
            "<g class=\"limit\"><path d=\"M{LEFT} {y:.1}H{}\"/><text class=\"end\" x=\"{}\" y=\"{:.1}\">the limit of {}{beyond}</text></g>",
            WIDTH - RIGHT,
            WIDTH - RIGHT - 6.0,
            y - 5.0,
            size(limit)
        );
    }
    time_axis(&mut svg, &scale);
    steps(&mut svg, &scale, model.device_steps(device.index));
    marks(&mut svg, &scale, model, device, moment);
    let _ = write!(svg, "<path class=\"cursor\" d=\"M0 {TOP}V{}\"/>\n</svg>\n", HEIGHT - BOTTOM);

    let legend = ["allocated throughout", "allocated for a while", "reserved", "in use on the device"];
    let entry = |(band, what): (usize, &&str)| format!("<li><span class=\"swatch band{band}\"></span>{what}</li>");
    format!(
        "<h3>Memory over time</h3>\n<figure>\n<div class=\"scroll\">{svg}</div><output class=\"readout\">&nbsp;</output>\n<figcaption><ul \
         class=\"legend\">{}<li>▼ the peak</li>{}{}</ul></figcaption>\n</figure>\n",
        legend.iter().enumerate().map(entry).collect::<String>(),
        if moment.is_some() { "<li>◆ the moment of this page</li>" } else { "" },
        if model.oom_count() > 0 { "<li class=\"bad\">✖ out of memory</li>" } else { "" }
    )
}

/// For the script: allocated at least and at most, reserved and used of every column, in numbers and commas only.
fn figures(columns: &Columns) -> String {
    let mut text = String::with_capacity(columns.columns.len() * 40);
    for Column { allocated, reserved, used } in &columns.columns {
        let _ = write!(text, "{},{},{reserved},{used};", allocated.0, allocated.1);
    }
    text.truncate(text.trim_end_matches(';').len());
    text
}

/// The bands from the back to the front: their number in the theme, where they begin and where they end.
fn bands(columns: &Columns) -> [(usize, Vec<u64>, Vec<u64>); 4] {
    let all = |of: fn(&Column) -> u64| columns.columns.iter().map(of).collect::<Vec<u64>>();
    let nothing = vec![0; columns.columns.len()];
    [
        (3, nothing.clone(), all(|column| column.used)),
        (2, nothing.clone(), all(|column| column.reserved)),
        (1, nothing.clone(), all(|column| column.allocated.1)),
        (0, nothing, all(|column| column.allocated.0)),
    ]
}

/// The area between two lines of steps.
fn area(scale: &Scale, columns: &Columns, low: &[u64], high: &[u64]) -> String {
    let at = |index: usize| scale.x((index as u64).saturating_mul(columns.width));
    let mut path = format!("M{LEFT} {:.1}", scale.y(low[0]));
    let mut before = f64::NAN;
    for (index, bytes) in high.iter().enumerate() {
        let y = scale.y(*bytes);
        // Points in the same column need no corner.
        if (y - before).abs() < 0.05 {
            continue;
        }
        let _ = write!(path, "H{:.1}V{y:.1}", at(index));
        before = y;
    }
    let _ = write!(path, "H{:.1}V{:.1}Z", WIDTH - RIGHT, scale.y(0));
    path
}

fn grid(svg: &mut String, scale: &Scale, top: f64) {
    let step = bytes_step(top);
    let mut bytes = 0_u64;
    while (bytes as f64) < top {
        let y = scale.y(bytes);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{}\"/><text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            format::tick(bytes)
        );
        let Some(next) = bytes.checked_add(step) else { break };
        bytes = next;
    }
}

fn time_axis(svg: &mut String, scale: &Scale) {
    let axis = HEIGHT - BOTTOM;
    let step = time_step(scale.until);
    let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {axis}H{}\"/>", WIDTH - RIGHT);
    let mut time = 0_u64;
    while time <= scale.until {
        let x = scale.x(time);
        let anchor = if x > WIDTH - 40.0 { "end" } else { "middle" };
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{x:.1} {axis}v5\"/><text class=\"{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            axis + 19.0,
            format::moment(time, step)
        );
        let Some(next) = time.checked_add(step) else { break };
        time = next;
    }
}

/// A round stretch of time that fits into `until` at most ten times.
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

/// Where steps ended: a strip below the axis.
fn steps(svg: &mut String, scale: &Scale, steps: &[StepView]) {
    let Some(last) = steps.last() else { return };
    let y = HEIGHT - BOTTOM + 30.0;
    // Only as many as can be distinguished.
    let every = steps.len().div_ceil(STEPS).max(1);
    let mut path = String::new();
    for step in steps.iter().step_by(every) {
        let _ = write!(path, "M{:.1} {y}v6", scale.x(step.end_time));
    }
    let _ = writeln!(
        svg,
        "<path class=\"step\" d=\"{path}\"/><text class=\"end\" x=\"{}\" y=\"{}\">steps</text>",
        LEFT - 8.0,
        y + 8.0
    );
    // A number for every so many of them, round ones.
    let stride = decimal_step(last.index.saturating_add(1), 9);
    let mut free_from = LEFT - 20.0;
    for step in steps.iter().filter(|step| step.index.is_multiple_of(stride)) {
        let x = scale.x(step.end_time);
        if x >= free_from && x < WIDTH - 30.0 {
            let _ = writeln!(
                svg,
                "<text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{}</text>",
                y + 20.0,
                format::count(step.index)
            );
            free_from = x + 50.0;
        }
    }
    if every > 1 {
        let _ = writeln!(
            svg,
            "<text class=\"end\" x=\"{}\" y=\"{}\">a mark for every {every} of {} steps</text>",
            WIDTH - RIGHT,
            TOP - 28.0,
            format::grouped(last.index.saturating_add(1))
        );
    }
}

/// The peak and the out-of-memory errors, each with a label in a separate row.
fn marks(svg: &mut String, scale: &Scale, model: &Model, device: &DeviceView, moment: Option<&Mark>) {
    // From above: the peak, the moment of the page, out-of-memory errors.
    let (at_peak, at_moment, at_oom) =
        if moment.is_some() { (TOP - 32.0, TOP - 18.0, TOP - 4.0) } else { (TOP - 24.0, 0.0, TOP - 8.0) };
    let (peak, what) = match device.allocations {
        0 => (device.used_bytes_at_peak, "in use"),
        _ => (device.peak_allocated_bytes, "allocated"),
    };
    let mut mark = |class: &str, time: u64, y: f64, sign: char, text: &str| {
        let x = scale.x(time);
        let right = x > WIDTH / 2.0;
        let (anchor, at) = if right { ("end", x - 9.0) } else { ("start", x + 9.0) };
        let _ = writeln!(
            svg,
            "<g class=\"{class}\"><path d=\"M{x:.1} {:.1}V{:.1}\"/><text class=\"middle\" x=\"{x:.1}\" y=\"{y:.1}\">{sign}</text>\
             <text class=\"{anchor}\" x=\"{at:.1}\" y=\"{y:.1}\">{}</text></g>",
            y + 3.0,
            HEIGHT - BOTTOM,
            markup(text)
        );
    };
    let ooms: Vec<_> = model.ooms().into_iter().filter(|oom| oom.device == device.index).collect();
    for (index, oom) in ooms.iter().take(OOMS).enumerate() {
        let text =
            if index == 0 { format!("out of memory: {} asked for", size(oom.requested_bytes)) } else { String::new() };
        mark("oom", oom.time, at_oom, '✖', &text);
    }
    mark(
        "peak",
        device.peak_time,
        at_peak,
        '▼',
        &format!("{} {what} after {}", size(peak), format::duration(device.peak_time)),
    );
    if let Some(Mark { time, text }) = moment {
        mark("here", *time, at_moment, '◆', text);
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
        // THEN every column has the range within it, and what was last in between
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
