//! Tables of a report, each capped for the size of a page.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use maud::{Markup, html};
use memlab_trace::{CodeOrigin, DeviceView, LayerView, Line, LineView, Model, Scope, StepView};

use super::super::growth::{self, GrownLine, GrowthTable};
use super::super::names::ReportNames;
use super::super::sections::share_title;
use super::super::training::computed;
use crate::page::elements::{name, plural, size};
use crate::page::table::{Column, Kind, bytes, capped, count, decimal, number, percent, table, text};
use memlab_base::holdings::{HeldLine, Holdings};
use memlab_base::layer_groups::order_at_peak;
use memlab_base::ranges::{RangeNode, nodes, range_name};
use memlab_base::text::clean;
use memlab_units::format;

/// Maximum number of rows of a table, of all devices together.
const MAX_ROWS: usize = 800;

/// Maximum number of rows of growing lines, and of driver memory.
const MAX_SHORT_ROWS: usize = 100;

/// Maximum number of rows in a table of one of `devices`.
pub(super) fn rows(devices: usize) -> usize {
    (MAX_ROWS / devices.max(1)).max(50)
}

/// A line: its place and function.
pub(super) fn place(names: &ReportNames<'_>, line: Option<&Arc<Line>>) -> Markup {
    let label = names.line(line);
    let source = line.and_then(|line| names.model.sources().line(&line.file, line.line?));
    match label.split_once("  ") {
        Some((place, function)) => html! {
            td.name title=[line.map(|line| clean(&line.file))] {
                b { (name(place)) } " " (name(function))
                @if let Some(source) = source { code.source { (clean(source.trim())) } }
            }
        },
        None => text(&label),
    }
}

/// True for a library's line.
fn is_library(names: &ReportNames<'_>, line: Option<&Arc<Line>>) -> bool {
    line.is_some_and(|line| names.model.code_origin(line) == CodeOrigin::Library)
}

/// Lines that ever held memory: the user's, and on request those of libraries.
///
/// Libraries' lines are shown at once if the user's lines only call them.
pub(super) fn lines(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> Markup {
    let has_libraries = |line: &LineView| is_library(names, line.line.as_ref()) && line.live_bytes_at_peak > 0;
    choice(
        names,
        device,
        |scope| lines_in(names, device, devices, scope),
        || names.model.lines_in(device.index, Scope::Libraries).iter().any(has_libraries),
    )
}

/// Lines that held memory at a moment, in the form of [`lines`].
pub(super) fn lines_at(names: &ReportNames<'_>, device: &DeviceView, devices: usize, held: &Holdings) -> Markup {
    let whole = held.attributed_bytes();
    let in_scope = |scope: Scope| {
        let most = held.lines[scope].first().map(|line| line.bytes);
        let columns: [Column<'_, HeldLine>; 4] = [
            ("at the moment", Kind::Sorted, &|line| bytes(line.bytes, most)),
            (share_title(held.allocated_bytes, whole), Kind::Percent, &|line| percent(line.bytes, whole)),
            ("in backward", Kind::Number, &|line| bytes(line.backward_bytes, None)),
            ("line", Kind::Name, &|line| place(names, line.line.as_ref())),
        ];
        capped(title_of(scope), &held.lines[scope], rows(devices), |line| line.bytes, &columns)
    };
    let has_libraries = || held.lines[Scope::Libraries].iter().any(|line| is_library(names, line.line.as_ref()));
    choice(names, device, in_scope, has_libraries)
}

/// Lines of a run up to a moment, by their memory at that time.
pub(super) fn lines_until(names: &ReportNames<'_>, device: &DeviceView) -> Markup {
    let tree = names.model.calls(device.index);
    let whole = device.attributed_bytes();
    let in_scope = |scope: Scope| {
        let mut lines = names.model.lines_in(device.index, scope);
        lines.sort_by_key(|line| Reverse(line.live_bytes));
        let with_calls: HashMap<Arc<Line>, u64> =
            tree.lines_inclusive(scope).into_iter().map(|line| (line.line, line.inclusive.live_bytes)).collect();
        let inclusive = |line: &LineView| line.line.as_ref().and_then(|line| with_calls.get(line)).copied();
        let most = lines.first().map(|line| line.live_bytes);
        let columns: [Column<'_, LineView>; 8] = [
            (names.latest, Kind::Sorted, &|line| bytes(line.live_bytes, most)),
            (share_title(device.allocated_bytes, whole), Kind::Percent, &|line| percent(line.live_bytes, whole)),
            ("in backward", Kind::Number, &|line| bytes(line.backward_bytes, None)),
            ("with callees", Kind::Number, &|line| bytes(inclusive(line).unwrap_or(line.live_bytes), None)),
            ("at the peak", Kind::Number, &|line| bytes(line.live_bytes_at_peak, None)),
            ("own peak", Kind::Number, &|line| bytes(line.peak_live_bytes, None)),
            ("blocks", Kind::Number, &|line| count(line.allocations)),
            ("line", Kind::Name, &|line| place(names, line.line.as_ref())),
        ];
        capped(title_of(scope), &lines, rows(1), |line| line.live_bytes, &columns)
    };
    let lines = || names.model.lines_in(device.index, Scope::Libraries);
    choice(names, device, in_scope, || lines().iter().any(|line| is_library(names, line.line.as_ref())))
}

/// Label of the table of lines.
fn title_of(scope: Scope) -> &'static str {
    if scope == Scope::Users { "lines" } else { "lines with libraries" }
}

/// The user's lines, with a checkbox to include libraries' lines.
///
/// Shows only the user's lines if they are empty or libraries have none.
fn choice(
    names: &ReportNames<'_>,
    device: &DeviceView,
    lines: impl Fn(Scope) -> Markup,
    has_libraries: impl Fn() -> bool,
) -> Markup {
    let users = lines(Scope::Users);
    if users.0.is_empty() || !has_libraries() {
        return users;
    }
    let is_on = names.model.scope() == Scope::Libraries;
    let why = names.model.dominant_library_call(device.index).filter(|_| is_on);
    // Place of the line, without its function.
    let why = why.map(|line| name(names.line(Some(&line)).split("  ").next().unwrap_or_default()));
    let id = format!("libraries-{}", device.index);
    html! {
        div.choice {
            input type="checkbox" id=(id) checked[is_on];
            label for=(id) { "with the lines of libraries" @if let Some(why) = why { ": " (why) " only calls them" } }
            div.users { (users) }
            div.libraries { (lines(Scope::Libraries)) }
        }
    }
}

fn lines_in(names: &ReportNames<'_>, device: &DeviceView, devices: usize, scope: Scope) -> Markup {
    let lines = names.model.lines_in(device.index, scope);
    let tree = names.model.calls(device.index);
    let with_calls: HashMap<Arc<Line>, u64> =
        tree.lines_inclusive(scope).into_iter().map(|line| (line.line, line.inclusive.live_bytes_at_peak)).collect();
    let inclusive = |line: &LineView| line.line.as_ref().and_then(|line| with_calls.get(line)).copied();
    let (most, whole) = (lines.first().map(|line| line.live_bytes_at_peak), device.attributed_bytes_at_peak());
    let share = share_title(device.peak_allocated_bytes, whole);
    let columns: [Column<'_, LineView>; 8] = [
        ("at the peak", Kind::Sorted, &|line| bytes(line.live_bytes_at_peak, most)),
        (share, Kind::Percent, &|line| percent(line.live_bytes_at_peak, whole)),
        ("in backward", Kind::Number, &|line| bytes(line.backward_bytes_at_peak, None)),
        ("with callees", Kind::Number, &|line| bytes(inclusive(line).unwrap_or(line.live_bytes_at_peak), None)),
        ("own peak", Kind::Number, &|line| bytes(line.peak_live_bytes, None)),
        (names.latest, Kind::Number, &|line| bytes(line.live_bytes, None)),
        ("blocks", Kind::Number, &|line| count(line.allocations)),
        ("line", Kind::Name, &|line| place(names, line.line.as_ref())),
    ];
    let columns = without_empty_end(&columns, names, device);
    capped(title_of(scope), &lines, rows(devices), |line| line.live_bytes_at_peak, &columns)
}

/// The columns without that of the end, if nothing was allocated then.
fn without_empty_end<'c, R>(
    columns: &[Column<'c, R>],
    names: &ReportNames<'_>,
    device: &DeviceView,
) -> Vec<Column<'c, R>> {
    let is_empty_end = |title: &str| title == names.latest && device.allocated_bytes == 0;
    columns.iter().filter(|(title, ..)| !is_empty_end(title)).copied().collect()
}

/// The layers one by one, each with its maximum of each kind.
pub(super) fn layers(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> Markup {
    let mut layers: Vec<LayerView> = names.model.layers(device.index);
    layers.sort_by(order_at_peak);
    let most = layers.first().map(|layer| layer.live_bytes_at_peak);
    let columns: [Column<'_, LayerView>; 9] = [
        ("at the peak", Kind::Sorted, &|layer| bytes(layer.live_bytes_at_peak, most)),
        (names.latest, Kind::Number, &|layer| bytes(layer.live_bytes, None)),
        ("peak parameters", Kind::Number, &|layer| bytes(layer.parameter_bytes, None)),
        ("peak gradients", Kind::Number, &|layer| bytes(layer.gradient_bytes, None)),
        ("peak optimizer", Kind::Number, &|layer| bytes(layer.optimizer_state_bytes, None)),
        ("peak activations", Kind::Number, &|layer| bytes(layer.activation_bytes, None)),
        ("allocated in forward", Kind::Number, &|layer| bytes(layer.forward_bytes, None)),
        ("in backward", Kind::Number, &|layer| bytes(layer.backward_bytes, None)),
        ("layer (inner layers not included)", Kind::Name, &|layer| text(&names.layer(layer))),
    ];
    let columns = without_empty_end(&columns, names, device);
    capped("layers", &layers, rows(devices), |layer| layer.live_bytes_at_peak, &columns)
}

/// Ranges that the program names: memory of each alone, and with the ranges inside it.
pub(super) fn ranges(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> Markup {
    let mut ranges = nodes(&names.model.ranges(device.index));
    ranges.sort_by_key(|node| Reverse((node.own.live_bytes_at_peak, node.own.allocated_bytes)));
    let (most, whole) = (ranges.first().map(|node| node.own.live_bytes_at_peak), device.attributed_bytes_at_peak());
    let share = share_title(device.peak_allocated_bytes, whole);
    let columns: [Column<'_, RangeNode>; 7] = [
        ("at the peak", Kind::Sorted, &|node| bytes(node.own.live_bytes_at_peak, most)),
        (share, Kind::Percent, &|node| percent(node.own.live_bytes_at_peak, whole)),
        ("with inner", Kind::Number, &|node| bytes(node.inclusive.live_bytes_at_peak, None)),
        (names.latest, Kind::Number, &|node| bytes(node.own.live_bytes, None)),
        ("allocated over the run", Kind::Number, &|node| bytes(node.own.allocated_bytes, None)),
        ("blocks", Kind::Number, &|node| count(node.own.allocations)),
        ("range (inner ranges not included)", Kind::Name, &|node| text(&node.name())),
    ];
    let columns = without_empty_end(&columns, names, device);
    capped("ranges", &ranges, rows(devices), |node| node.own.live_bytes_at_peak, &columns)
}

/// The ranges at a moment.
pub(super) fn ranges_at(devices: usize, held: &Holdings) -> Markup {
    let (most, whole) = (held.ranges.first().map(|range| range.bytes), held.attributed_bytes());
    capped(
        "ranges",
        &held.ranges,
        rows(devices),
        |range| range.bytes,
        &[
            ("at the moment", Kind::Sorted, &|range| bytes(range.bytes, most)),
            (share_title(held.allocated_bytes, whole), Kind::Percent, &|range| percent(range.bytes, whole)),
            ("range (inner ranges not included)", Kind::Name, &|range| text(&range_name(&range.path))),
        ],
    )
}

/// Lines whose memory grew.
pub(super) fn growth(names: &ReportNames<'_>, device: &DeviceView) -> Markup {
    html! {
        @for grown in growth::tables(names.model, device.index) {
            p { "Between " (grown.moments) ": " (grown.total()) "." }
            @if !grown.lines.is_empty() {
                (growth_table(names, &grown))
            }
        }
    }
}

fn growth_table(names: &ReportNames<'_>, grown: &GrowthTable) -> Markup {
    let most = grown.lines.first().map(GrownLine::growth);
    let columns: [Column<'_, _>; 5] = [
        ("growth", Kind::Sorted, &|line: &GrownLine| bytes(line.growth(), most)),
        (grown.rate_title, Kind::Number, &|line| bytes(line.rate, None)),
        ("before", Kind::Number, &|line| bytes(line.from_bytes, None)),
        ("after", Kind::Number, &|line| bytes(line.to_bytes, None)),
        ("line", Kind::Name, &|line| place(names, line.line.as_ref())),
    ];
    capped("growth", &grown.lines, MAX_SHORT_ROWS, GrownLine::growth, &columns)
}

/// A step, with the one before it.
type Step<'s> = (&'s StepView, Option<&'s StepView>);

/// Optimizer steps; if they do not fit, the first and the last.
pub(super) fn steps(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> Markup {
    let steps = names.model.device_steps(device.index);
    let half = rows(devices) / 2;
    let left_out = steps.len().saturating_sub(2 * half);
    let most = steps.iter().map(|step| step.peak_allocated_bytes).max();
    let before = std::iter::once(None).chain(steps.iter().map(Some));
    let mut shown: Vec<Step<'_>> = steps.iter().zip(before).collect();
    if left_out > 0 {
        shown.drain(half..half + left_out);
    }
    let columns: [Column<'_, Step<'_>>; 6] = [
        ("step", Kind::Number, &|(step, _)| match step.steps {
            0 | 1 => count(step.index),
            joined => number(step.index, &format!("{} ({joined} joined)", format::grouped(step.index))),
        }),
        ("ended after", Kind::Number, &|(step, _)| number(step.end_time, &format::duration(step.end_time))),
        ("took", Kind::Number, &|(step, last)| match last {
            Some(last) => {
                let took = step.end_time.saturating_sub(last.end_time);
                number(took, &format::duration(took))
            }
            None => number(0, ""),
        }),
        ("peak allocated", Kind::Number, &|(step, _)| bytes(step.peak_allocated_bytes, most)),
        ("allocated at its end", Kind::Number, &|(step, _)| bytes(step.allocated_bytes_at_end, None)),
        ("change", Kind::Number, &|(step, last)| {
            let before = last.map_or(0, |last| last.allocated_bytes_at_end);
            let sign = match step.allocated_bytes_at_end.cmp(&before) {
                std::cmp::Ordering::Greater => "+",
                std::cmp::Ordering::Less => "−",
                std::cmp::Ordering::Equal => "",
            };
            let change = i128::from(step.allocated_bytes_at_end) - i128::from(before);
            decimal(change, &format!("{sign}{}", size(step.allocated_bytes_at_end.abs_diff(before))))
        }),
    ];
    let training = |step: &StepView| names.model.training(step);
    let of_training: [Column<'_, Step<'_>>; 4] = [
        ("loss", Kind::Number, &|(step, _)| float(training(step).and_then(|logged| logged.loss), format::loss)),
        ("samples a second", Kind::Number, &|(step, _)| {
            float(training(step).and_then(|logged| logged.samples_per_second()), format::rate)
        }),
        ("offloaded", Kind::Number, &|(step, _)| {
            training(step).map_or_else(|| number(0, ""), |logged| bytes(logged.offloaded_bytes, None))
        }),
        ("computed", Kind::Note, &|(step, _)| text(&training(step).as_ref().map(computed).unwrap_or_default())),
    ];
    let of_training = if names.model.has_trainings() { &of_training[..] } else { &[] };
    html! {
        (table("steps", &shown, &[&columns, of_training].concat()))
        @if left_out > 0 {
            p.note {
                (plural(left_out as u64, "row")) " between the first and the last " (half) " left out: see --json"
            }
        }
    }
}

/// A figure that a training run reports for a step, if any.
fn float(value: Option<f64>, shown: impl Fn(f64) -> String) -> Markup {
    decimal(value.filter(|value| value.is_finite()).unwrap_or(0.0), &value.map(shown).unwrap_or_default())
}

/// Driver memory outside PyTorch's allocator, at the end.
pub(super) fn driver(names: &ReportNames<'_>, device: i32) -> Markup {
    driver_at(names.model, device, names.latest)
}

/// Driver memory in the model's current state.
pub(super) fn driver_at(model: &Model, device: i32, when: &str) -> Markup {
    let held = model.driver_memory(device);
    let most = held.iter().map(|held| held.live_bytes).max();
    capped(
        "driver memory",
        &held,
        MAX_SHORT_ROWS,
        |view| view.live_bytes,
        &[
            (when, Kind::Sorted, &|view| bytes(view.live_bytes, most)),
            ("pieces", Kind::Number, &|view| count(view.live_allocations)),
            ("kind", Kind::Note, &|view| text(view.kind.as_str())),
            ("function", Kind::Name, &|view| text(&view.call)),
            ("library", Kind::Note, &|view| text(&view.library)),
        ],
    )
}
