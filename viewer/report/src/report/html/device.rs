//! The section of one device, in the order of a reader's questions.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use memlab_predict::plan::PeakStep;
use memlab_trace::{CallTree, DeviceView, Scope};

use super::super::names::ReportNames;
use super::{gpu_time, layers, memory, ooms, peak_step, tables, timeline};
use crate::export::flamegraph::{self, Measure};
use crate::page::elements::{self, Tile, name, short_name, size};
use memlab_units::format;

/// Maximum number of calls in both flamegraphs of all devices together.
const CALLS: usize = 2400;

/// Section of a device; `devices`: number of devices on the page, `peak_step`: its step with the peak, if known.
pub(super) fn section(
    names: &ReportNames<'_>,
    device: &DeviceView,
    devices: usize,
    peak_step: Option<&PeakStep>,
) -> Markup {
    let parts = [
        ("Largest lines", tables::lines(names, device, devices)),
        ("Calls at the peak", calls(names, device, devices)),
        ("Layers", layers::tree(names, device, devices)),
        ("Named ranges", tables::ranges(names, device, devices)),
        ("GPU time", gpu_time::chapter(names, device, devices)),
        ("Growth between steps", tables::growth(names, device)),
        ("Steps", tables::steps(names, device, devices)),
        ("Driver memory outside PyTorch’s allocator", tables::driver(names, device.index)),
    ];
    let content = html! {
        (tiles(names, device))
        (ooms::section(names, device))
        h3 { "Memory over time" }
        (timeline::figure(names.model, device, None))
        @if let Some(step) = peak_step { (peak_step::figure(names, step)) }
        (memory::figure(names, device))
        (index(device, &parts))
        (titled(device, &parts))
    };
    around(device, &content)
}

/// Frames a device's section around its content.
pub(super) fn around(device: &DeviceView, content: &Markup) -> Markup {
    html! {
        section.device #{ "device-" (device.index) } {
            h2 {
                "Device " (device.index) ": " (name(if device.name.is_empty() { "unknown" } else { &device.name }))
                @if device.total_bytes > 0 { ", " (size(device.total_bytes)) }
            }
            (content)
        }
    }
}

/// Links to the non-empty parts of a device's section.
fn index(device: &DeviceView, parts: &[(&str, Markup)]) -> Markup {
    html! {
        nav aria-label={ "parts of device " (device.index) } {
            ul {
                @for (title, _) in parts.iter().filter(|(_, part)| !part.0.is_empty()) {
                    li { a href={ "#" (anchor(device, title)) } { (title) } }
                }
            }
        }
    }
}

fn anchor(device: &DeviceView, title: &str) -> String {
    let word = |character: char| if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' };
    format!("device-{}-{}", device.index, title.chars().map(word).collect::<String>())
}

/// Non-empty parts, each under its title.
pub(super) fn titled(device: &DeviceView, parts: &[(&str, Markup)]) -> Markup {
    html! {
        @for (title, part) in parts.iter().filter(|(_, part)| !part.0.is_empty()) {
            h3 #(anchor(device, title)) { (title) }
            (part)
        }
    }
}

/// The limit of a device, if it has one.
pub(super) fn limit_tile(device: &DeviceView) -> Option<Tile> {
    let beyond = if device.spills { "memory beyond it goes to the host" } else { "allocations beyond it fail" };
    device.limit_bytes.map(|limit| ("limit", limit, beyond.to_owned()))
}

/// Time of the peak.
pub(super) fn peak_moment(names: &ReportNames<'_>, device: &DeviceView) -> String {
    let mut when = format!("at {}", format::duration(device.peak_time));
    let steps = names.model.steps_ended();
    if steps > 0 {
        let _ = write!(when, ", {}", format::step_during(device.peak_step, steps));
    }
    when
}

/// The main figures.
fn tiles(names: &ReportNames<'_>, device: &DeviceView) -> Markup {
    let mut tiles = Vec::new();
    let of_total = |bytes| match device.total_bytes {
        0 => String::new(),
        total => format!("{} of the device", format::percent(bytes, total)),
    };
    if device.allocations > 0 {
        tiles.push(("peak allocated", device.peak_allocated_bytes, peak_moment(names, device)));
        tiles.push((
            "reserved at the peak",
            device.reserved_bytes_at_peak,
            format!("at most {}", size(device.peak_reserved_bytes)),
        ));
    }
    tiles.push(("in use at the peak", device.used_bytes_at_peak, of_total(device.used_bytes_at_peak)));
    tiles.push(("in use at most", device.peak_used_bytes, of_total(device.peak_used_bytes)));
    if device.allocations > 0 {
        tiles.push((
            "allocated at the end",
            device.allocated_bytes,
            format!("{} reserved", size(device.reserved_bytes)),
        ));
    }
    if device.peak_host_bytes > 0 {
        let at_peak = format!("{} at the peak", size(device.host_bytes_at_peak));
        tiles.push(("in host memory at most", device.peak_host_bytes, at_peak));
    }
    tiles.extend(limit_tile(device));
    elements::tiles(&tiles)
}

/// Flamegraphs of the calls at the peak.
fn calls(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> Markup {
    let all = names.model.calls(device.index);
    flamegraphs(names, device, devices, &all, (Measure::AtPeak, "still held at the peak"))
}

/// Flamegraphs: the user's lines first, and libraries' calls on request; empty without memory.
///
/// `held`: the measure, and its name.
pub(super) fn flamegraphs(
    names: &ReportNames<'_>,
    device: &DeviceView,
    devices: usize,
    all: &CallTree,
    (measure, held): (Measure, &str),
) -> Markup {
    if measure.of(&all.total()) == 0 {
        return Markup::default();
    }
    let users = all.in_scope(names.model.scope());
    let yours = if names.model.scope() == Scope::Users { "your lines" } else { "your lines and libraries’" };
    let most = (CALLS / 2 / devices.max(1)).max(50);
    let draw = |tree, what: &str| {
        let title = format!("{}, {what}", short_name(device));
        PreEscaped(flamegraph::drawing(tree, names.model.sources(), measure, &title, most))
    };
    html! {
        p.note {
            "Callers above, callees below. Width: bytes allocated there and " (held)
            ". Memory allocated by backward is counted at its forward."
        }
        div.scroll tabindex="0" { (draw(&users, yours)) }
        details.more {
            summary { "with the calls inside libraries" }
            div.scroll { (draw(all, "all calls")) }
        }
    }
}
