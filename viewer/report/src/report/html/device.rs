//! All about one device, in the order in which one asks.

use std::fmt::Write as _;

use memlab_trace::{CallTree, DeviceView, Scope};

use super::super::names::ReportNames;
use super::{gpu_time, layers, memory, ooms, tables, timeline};
use crate::export::flamegraph::{self, Measure};
use crate::page::elements::{name, short_name, size};
use memlab_base::text::markup;
use memlab_units::format;

/// The most calls drawn in both flamegraphs of all devices together.
const CALLS: usize = 2400;

/// The section of a device; `devices`: how many share the page.
pub(super) fn section(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> String {
    let index = device.index;
    let mut section = head(device);
    section += &tiles(names, device);
    section += &ooms::section(names, device);
    section += &timeline::figure(names.model, device, None);
    section += &memory::figure(names, device);
    let parts = [
        ("Lines that held most", tables::lines(names, device, devices)),
        ("Calls at the peak", calls(names, device, devices)),
        ("Layers", layers::tree(names, device, devices)),
        ("Ranges that the program names", tables::ranges(names, device, devices)),
        ("GPU time", gpu_time::chapter(names, device, devices)),
        ("Growth between steps", tables::growth(names, device)),
        ("Steps", tables::steps(names, device, devices)),
        ("Driver memory taken by others than PyTorch’s allocator", tables::driver(names, index)),
    ];
    put(&mut section, parts);
    section += "</section>\n";
    section
}

/// The beginning of a device's section.
pub(super) fn head(device: &DeviceView) -> String {
    format!(
        "<section class=\"device\" id=\"device-{index}\">\n<h2>Device {index}: {}{}</h2>\n",
        name(if device.name.is_empty() { "unknown" } else { &device.name }),
        if device.total_bytes > 0 { format!(", {}", size(device.total_bytes)) } else { String::new() },
        index = device.index,
    )
}

/// Writes the parts that there are, each under its title.
pub(super) fn put<const N: usize>(section: &mut String, parts: [(&str, String); N]) {
    for (title, part) in parts.into_iter().filter(|(_, part)| !part.is_empty()) {
        let _ = write!(section, "<h3>{title}</h3>\n{part}");
    }
}

/// A figure that matters, what it is, and what there is to add.
pub(super) type Tile = (&'static str, u64, String);

/// Figures side by side.
pub(super) fn tiled(tiles: &[Tile]) -> String {
    let tile = |(what, bytes, more): &Tile| {
        format!("<div class=\"tile\"><dt>{what}</dt><dd>{}<small>{}</small></dd></div>\n", size(*bytes), markup(more))
    };
    format!("<dl class=\"tiles\">\n{}</dl>\n", tiles.iter().map(tile).collect::<String>())
}

/// The figures that matter most.
fn tiles(names: &ReportNames<'_>, device: &DeviceView) -> String {
    let mut tiles = Vec::new();
    let of_total = |bytes| match device.total_bytes {
        0 => String::new(),
        total => format!("{} of the device", format::percent(bytes, total)),
    };
    if device.allocations > 0 {
        let mut when = format!("after {}", format::duration(device.peak_time));
        if names.model.steps_ended() > 0 {
            let _ = write!(when, ", {}", format::step_reached(device.peak_step));
        }
        tiles.push(("peak allocated", device.peak_allocated_bytes, when));
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
    if let Some(limit) = device.limit_bytes {
        let beyond = if device.spills { "beyond it memory is put on the host" } else { "beyond it allocations fail" };
        tiles.push(("limit", limit, beyond.to_owned()));
    }
    tiled(&tiles)
}

/// Who called whom at the peak.
fn calls(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> String {
    let all = names.model.calls(device.index);
    if all.total().live_bytes_at_peak == 0 {
        return String::new();
    }
    flamegraphs(names, device, devices, &all, (Measure::AtPeak, "is still held at the peak"))
}

/// Who called whom: the user's lines first, the libraries' calls for those who ask. `held`: what is measured, and in
/// words.
pub(super) fn flamegraphs(
    names: &ReportNames<'_>,
    device: &DeviceView,
    devices: usize,
    all: &CallTree,
    (measure, held): (Measure, &str),
) -> String {
    let users = all.in_scope(names.model.scope());
    let most = (CALLS / 2 / devices.max(1)).max(50);
    let draw = |tree, what: &str| {
        let title = format!("{}, {what}", short_name(device));
        flamegraph::drawing(tree, measure, &title, most)
    };
    format!(
        "<p class=\"note\">Callers above, what they called below; as wide as what was allocated there and {held}. \
         What backward allocated is counted where its forward was.</p>\n\
         <div class=\"scroll\">{}</div>\n<details class=\"more\"><summary>with the calls inside libraries</summary>\
         <div class=\"scroll\">{}</div></details>\n",
        draw(&users, if names.model.scope() == Scope::Users { "your lines" } else { "your lines and libraries’" }),
        draw(all, "all calls"),
    )
}
