//! The tables of a report, each capped to what a page can carry.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use memlab_trace::{CodeOrigin, DeviceView, LayerView, Line, LineView, Model, Scope};

use super::super::names::ReportNames;
use super::training;
use crate::page::elements::{name, plural, size};
use crate::page::table::{Column, Table, bytes, number, rest, text};
use memlab_base::holdings::{HeldLine, Holdings};
use memlab_base::ranges::{self, range_name};
use memlab_units::format;

/// The most rows of a table, of all devices together.
const ROWS: usize = 800;

/// The most rows of lines that grow, and of who took driver memory.
const MAX_SHORT_ROWS: usize = 100;

/// How many rows a table of one of `devices` may have.
pub(super) fn rows(devices: usize) -> usize {
    (ROWS / devices.max(1)).max(50)
}

/// A line: where it is, and in which function.
pub(super) fn place(names: &ReportNames<'_>, line: Option<&Arc<Line>>) -> String {
    let said = names.line(line);
    match said.split_once("  ") {
        Some((place, function)) => format!("<td class=\"name\"><b>{}</b> {}</td>", name(place), name(function)),
        None => text(&said),
    }
}

/// The lines that ever held something: the user's, and those of libraries for who asks, or at once where the user's say
/// nothing.
pub(super) fn lines(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> String {
    let users = lines_in(names, device, devices, Scope::Users);
    let has_libraries = |line: &LineView| {
        line.line.as_ref().is_some_and(|line| names.model.code_origin(line) == CodeOrigin::Library)
            && line.live_bytes_at_peak > 0
    };
    if users.is_empty() || !names.model.lines_in(device.index, Scope::Libraries).iter().any(has_libraries) {
        return users;
    }
    choice(names, device, &users, &lines_in(names, device, devices, Scope::Libraries))
}

/// The heading of shares of what lines hold together: of what PyTorch allocated, unless other arrays are among it.
fn share_title(allocated: u64, attributed: u64) -> &'static str {
    if allocated == attributed { "% of allocated" } else { "% of held" }
}

/// The lines that held something at a moment, in the form of [`lines`].
pub(super) fn lines_at(names: &ReportNames<'_>, device: &DeviceView, devices: usize, held: &Holdings) -> String {
    let is_library =
        |line: &HeldLine| line.line.as_ref().is_some_and(|line| names.model.code_origin(line) == CodeOrigin::Library);
    let in_scope = |scope: Scope| {
        let title = title_of(scope);
        let head = [
            ("at the moment", Column::Sorted),
            (share_title(held.allocated_bytes, held.attributed_bytes()), Column::Number),
            ("in backward", Column::Number),
            ("line", Column::Name),
        ];
        let (mut table, lines, cap) = (Table::new(title, &head), &held.lines[scope], rows(devices));
        let most = lines.first().map_or(0, |line| line.bytes);
        for line in lines.iter().take(cap) {
            table.row(&[
                bytes(line.bytes, Some(most)),
                number(line.bytes, &format::percent(line.bytes, held.attributed_bytes())),
                bytes(line.backward_bytes, None),
                place(names, line.line.as_ref()),
            ]);
        }
        table.finish(rest(&lines.iter().skip(cap).map(|line| line.bytes).collect::<Vec<_>>()))
    };
    let users = in_scope(Scope::Users);
    if users.is_empty() || !held.lines[Scope::Libraries].iter().any(is_library) {
        return users;
    }
    choice(names, device, &users, &in_scope(Scope::Libraries))
}

/// The lines of a run up to a moment, by what they hold then.
pub(super) fn lines_until(names: &ReportNames<'_>, device: &DeviceView) -> String {
    let tree = names.model.calls(device.index);
    let in_scope = |scope: Scope| {
        let mut lines = names.model.lines_in(device.index, scope);
        lines.sort_by_key(|line| Reverse(line.live_bytes));
        let with_calls: HashMap<Arc<Line>, u64> =
            tree.lines_inclusive(scope).into_iter().map(|line| (line.line, line.inclusive.live_bytes)).collect();
        let head = [
            (names.latest, Column::Sorted),
            (share_title(device.allocated_bytes, device.attributed_bytes()), Column::Number),
            ("in backward", Column::Number),
            ("with what it called", Column::Number),
            ("at the peak", Column::Number),
            ("most at once", Column::Number),
            ("blocks", Column::Number),
            ("line", Column::Name),
        ];
        let (mut table, cap) = (Table::new(title_of(scope), &head), rows(1));
        let most = lines.first().map_or(0, |line| line.live_bytes);
        for line in lines.iter().take(cap) {
            let inclusive =
                line.line.as_ref().and_then(|line| with_calls.get(line)).copied().unwrap_or(line.live_bytes);
            table.row(&[
                bytes(line.live_bytes, Some(most)),
                number(line.live_bytes, &format::percent(line.live_bytes, device.attributed_bytes())),
                bytes(line.backward_bytes, None),
                bytes(inclusive, None),
                bytes(line.live_bytes_at_peak, None),
                bytes(line.peak_live_bytes, None),
                number(line.allocations, &format::grouped(line.allocations)),
                place(names, line.line.as_ref()),
            ]);
        }
        (table.finish(rest(&lines.iter().skip(cap).map(|line| line.live_bytes).collect::<Vec<_>>())), lines)
    };
    let (users, _) = in_scope(Scope::Users);
    let (libraries, lines) = in_scope(Scope::Libraries);
    let is_library =
        |line: &LineView| line.line.as_ref().is_some_and(|line| names.model.code_origin(line) == CodeOrigin::Library);
    if users.is_empty() || !lines.iter().any(is_library) {
        return users;
    }
    choice(names, device, &users, &libraries)
}

/// What the table of lines is called.
fn title_of(scope: Scope) -> &'static str {
    if scope == Scope::Users { "lines" } else { "lines with libraries’" }
}

/// The user's lines, or those with libraries', as one ticks.
fn choice(names: &ReportNames<'_>, device: &DeviceView, users: &str, libraries: &str) -> String {
    let (index, is_on) = (device.index, names.model.scope() == Scope::Libraries);
    let why = names.model.dominant_library_call(device.index).filter(|_| is_on);
    let why = why.map(|line| format!(": {} only calls them", short(&names.line(Some(&line))))).unwrap_or_default();
    format!(
        "<div class=\"choice\"><input type=\"checkbox\" id=\"libraries-{index}\"{checked} />\
         <label for=\"libraries-{index}\">with the lines of libraries{why}</label>\n\
         <div class=\"users\">{users}</div>\n<div class=\"libraries\">{libraries}</div></div>\n",
        checked = if is_on { " checked" } else { "" },
    )
}

/// The place of a line without its function.
fn short(line: &str) -> String {
    name(line.split("  ").next().unwrap_or_default())
}

fn lines_in(names: &ReportNames<'_>, device: &DeviceView, devices: usize, scope: Scope) -> String {
    let lines = names.model.lines_in(device.index, scope);
    let tree = names.model.calls(device.index);
    let with_calls: HashMap<Arc<Line>, u64> =
        tree.lines_inclusive(scope).into_iter().map(|line| (line.line, line.inclusive.live_bytes_at_peak)).collect();
    let head = [
        ("at the peak", Column::Sorted),
        (share_title(device.peak_allocated_bytes, device.attributed_bytes_at_peak()), Column::Number),
        ("in backward", Column::Number),
        ("with what it called", Column::Number),
        ("most at once", Column::Number),
        (names.latest, Column::Number),
        ("blocks", Column::Number),
        ("line", Column::Name),
    ];
    let mut table = Table::new(title_of(scope), &head);
    let cap = rows(devices);
    let most = lines.first().map_or(0, |line| line.live_bytes_at_peak);
    for line in lines.iter().take(cap) {
        let at_peak = line.live_bytes_at_peak;
        let inclusive = line.line.as_ref().and_then(|line| with_calls.get(line)).copied().unwrap_or(at_peak);
        table.row(&[
            bytes(at_peak, Some(most)),
            number(at_peak, &format::percent(at_peak, device.attributed_bytes_at_peak())),
            bytes(line.backward_bytes_at_peak, None),
            bytes(inclusive, None),
            bytes(line.peak_live_bytes, None),
            bytes(line.live_bytes, None),
            number(line.allocations, &format::grouped(line.allocations)),
            place(names, line.line.as_ref()),
        ]);
    }
    let left_out: Vec<u64> = lines.iter().skip(cap).map(|line| line.live_bytes_at_peak).collect();
    table.finish(rest(&left_out))
}

/// The layers one by one, each with the most it held of each kind.
pub(super) fn layers(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> String {
    let mut layers: Vec<LayerView> = names.model.layers(device.index);
    layers.sort_by(|a, b| (b.live_bytes_at_peak, &a.name).cmp(&(a.live_bytes_at_peak, &b.name)));
    let mut table = Table::new(
        "layers",
        &[
            ("at the peak", Column::Sorted),
            (names.latest, Column::Number),
            ("most parameters", Column::Number),
            ("most gradients", Column::Number),
            ("most optimizer", Column::Number),
            ("most activations", Column::Number),
            ("allocated in forward", Column::Number),
            ("in backward", Column::Number),
            ("layer (without those inside it)", Column::Name),
        ],
    );
    let cap = rows(devices);
    let most = layers.first().map_or(0, |layer| layer.live_bytes_at_peak);
    for layer in layers.iter().take(cap) {
        table.row(&[
            bytes(layer.live_bytes_at_peak, Some(most)),
            bytes(layer.live_bytes, None),
            bytes(layer.parameter_bytes, None),
            bytes(layer.gradient_bytes, None),
            bytes(layer.optimizer_state_bytes, None),
            bytes(layer.activation_bytes, None),
            bytes(layer.forward_bytes, None),
            bytes(layer.backward_bytes, None),
            text(&names.layer(layer)),
        ]);
    }
    let left_out: Vec<u64> = layers.iter().skip(cap).map(|layer| layer.live_bytes_at_peak).collect();
    table.finish(rest(&left_out))
}

/// The ranges that the program names: what was allocated in each itself, and with those inside it.
pub(super) fn ranges(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> String {
    let mut ranges = ranges::nodes(&names.model.ranges(device.index));
    ranges.sort_by_key(|node| Reverse((node.own.live_bytes_at_peak, node.own.allocated_bytes)));
    let mut table = Table::new(
        "ranges",
        &[
            ("at the peak", Column::Sorted),
            (share_title(device.peak_allocated_bytes, device.attributed_bytes_at_peak()), Column::Number),
            ("with those inside it", Column::Number),
            (names.latest, Column::Number),
            ("allocated over the run", Column::Number),
            ("blocks", Column::Number),
            ("range (without those inside it)", Column::Name),
        ],
    );
    let cap = rows(devices);
    let most = ranges.first().map_or(0, |node| node.own.live_bytes_at_peak);
    for node in ranges.iter().take(cap) {
        let at_peak = node.own.live_bytes_at_peak;
        table.row(&[
            bytes(at_peak, Some(most)),
            number(at_peak, &format::percent(at_peak, device.attributed_bytes_at_peak())),
            bytes(node.inclusive.live_bytes_at_peak, None),
            bytes(node.own.live_bytes, None),
            bytes(node.own.allocated_bytes, None),
            number(node.own.allocations, &format::grouped(node.own.allocations)),
            text(&node.name()),
        ]);
    }
    table.finish(rest(&ranges.iter().skip(cap).map(|node| node.own.live_bytes_at_peak).collect::<Vec<_>>()))
}

/// The same at a moment.
pub(super) fn ranges_at(devices: usize, held: &Holdings) -> String {
    let head = [
        ("at the moment", Column::Sorted),
        (share_title(held.allocated_bytes, held.attributed_bytes()), Column::Number),
        ("range (without those inside it)", Column::Name),
    ];
    let (mut table, cap) = (Table::new("ranges", &head), rows(devices));
    let most = held.ranges.first().map_or(0, |range| range.bytes);
    for range in held.ranges.iter().take(cap) {
        table.row(&[
            bytes(range.bytes, Some(most)),
            number(range.bytes, &format::percent(range.bytes, held.attributed_bytes())),
            text(&range_name(&range.path)),
        ]);
    }
    table.finish(rest(&held.ranges.iter().skip(cap).map(|range| range.bytes).collect::<Vec<_>>()))
}

/// The lines that hold more at the end of the last step than after warm-up.
pub(super) fn growth(names: &ReportNames<'_>, device: &DeviceView) -> String {
    let ended: u64 = names.model.device_steps(device.index).iter().fold(0, |sum, step| sum.saturating_add(step.steps));
    if ended < 2 {
        return String::new();
    }
    let growth = names.model.growth(device.index);
    let Some(first) = growth.first() else {
        return format!("<p>No line held more after step {} than after warm-up.</p>\n", ended - 1);
    };
    let more: Vec<u64> = growth.iter().map(|line| line.to_bytes - line.from_bytes).collect();
    let total = more.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let head = format!(
        "<p>Between the ends of steps {} and {}: {} on {}.</p>\n",
        first.from_step.saturating_sub(1),
        first.to_step.saturating_sub(1),
        size(total),
        plural(growth.len() as u64, "line")
    );
    let mut table = Table::new(
        "growth",
        &[
            ("more", Column::Sorted),
            ("a step", Column::Number),
            ("before", Column::Number),
            ("at the last", Column::Number),
            ("line", Column::Name),
        ],
    );
    for (line, grown) in std::iter::zip(&growth, &more).take(MAX_SHORT_ROWS) {
        table.row(&[
            bytes(*grown, Some(more[0])),
            bytes(line.bytes_per_step.max(0.0) as u64, None),
            bytes(line.from_bytes, None),
            bytes(line.to_bytes, None),
            place(names, line.line.as_ref()),
        ]);
    }
    head + &table.finish(rest(more.get(MAX_SHORT_ROWS..).unwrap_or_default()))
}

/// The optimizer steps: of more than fit, the first and the last.
pub(super) fn steps(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> String {
    let steps = names.model.device_steps(device.index);
    let mut head = vec![
        ("step", Column::Number),
        ("ended after", Column::Number),
        ("took", Column::Number),
        ("peak allocated", Column::Number),
        ("allocated at its end", Column::Number),
        ("change", Column::Number),
    ];
    if names.model.has_trainings() {
        head.extend(training::HEAD);
    }
    let mut table = Table::new("steps", &head);
    let half = rows(devices) / 2;
    let left_out = steps.len().saturating_sub(2 * half);
    let most = steps.iter().map(|step| step.peak_allocated_bytes).max().unwrap_or(0);
    let mut before: Option<&memlab_trace::StepView> = None;
    for (index, step) in steps.iter().enumerate() {
        let last = before.replace(step);
        if left_out > 0 && (half..half + left_out).contains(&index) {
            continue;
        }
        let took = step.end_time.saturating_sub(last.map_or(0, |last| last.end_time));
        let number_text = match step.steps {
            0 | 1 => format::grouped(step.index),
            joined => format!("{} ({joined} joined)", format::grouped(step.index)),
        };
        let change =
            i128::from(step.allocated_bytes_at_end) - last.map_or(0, |last| i128::from(last.allocated_bytes_at_end));
        let sign = if change > 0 {
            "+"
        } else if change < 0 {
            "−"
        } else {
            ""
        };
        let change_text = format!("{sign}{}", size(change.unsigned_abs().min(u128::from(u64::MAX)) as u64));
        let mut cells = vec![
            number(step.index, &number_text),
            number(step.end_time, &format::duration(step.end_time)),
            if last.is_some() { number(took, &format::duration(took)) } else { number(0, "") },
            bytes(step.peak_allocated_bytes, Some(most)),
            bytes(step.allocated_bytes_at_end, None),
            format!("<td class=\"num\" data-v=\"{change}\">{change_text}</td>"),
        ];
        if names.model.has_trainings() {
            cells.extend(training::cells(names.model.training(step)));
        }
        table.row(&cells);
    }
    let rest = (left_out > 0).then(|| {
        format!("{} between the first and the last {half} left out: see --json", plural(left_out as u64, "row"))
    });
    table.finish(rest)
}

/// Driver memory that is not PyTorch's, at the end.
pub(super) fn driver(names: &ReportNames<'_>, device: i32) -> String {
    driver_at(names.model, device, names.latest)
}

/// The same when the model was as it is.
pub(super) fn driver_at(model: &Model, device: i32, when: &str) -> String {
    let held = model.driver_memory(device);
    let mut table = Table::new(
        "driver memory",
        &[
            (when, Column::Sorted),
            ("pieces", Column::Number),
            ("kind", Column::Name),
            ("function", Column::Name),
            ("library", Column::Name),
        ],
    );
    let most = held.iter().map(|held| held.live_bytes).max();
    for view in held.iter().take(MAX_SHORT_ROWS) {
        table.row(&[
            bytes(view.live_bytes, most),
            number(view.live_allocations, &format::grouped(view.live_allocations)),
            text(view.kind.as_str()),
            text(&view.call),
            text(&view.library),
        ]);
    }
    let left_out: Vec<u64> = held.iter().skip(MAX_SHORT_ROWS).map(|held| held.live_bytes).collect();
    table.finish(rest(&left_out))
}
