//! The report of one moment: the holders of memory at that time.

use std::cmp::Reverse;
use std::io::{self, Write};
use std::path::Path;

use memlab_trace::{DeviceView, ResolvedSnapshot};

use super::bar;
use super::names::ReportNames;
use super::sections;
use super::text::{Part, device_title, process, write_parts};
use memlab_base::holdings::Holdings;
use memlab_base::layer_groups::grouped;
use memlab_base::moment::{LoadedMoment, NamedMoment};
use memlab_base::ranges::range_name;
use memlab_base::table::Table;
use memlab_base::text::{Style, clean};
use memlab_units::format::{self, size};

/// Maximum number of lines and of layers shown.
const MAX_ROWS: usize = 20;

/// Writes the holdings at a moment. No character in it controls the terminal, except the colours.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_text_at(out: &mut impl Write, path: &Path, loaded: &LoadedMoment, style: Style) -> io::Result<()> {
    let ResolvedSnapshot { model: moment, final_model: whole, .. } = &loaded.snapshot;
    let names = ReportNames::new(whole);
    let mut parts = vec![process(whole).into()];
    // The name of a step's end contains the step already.
    let reached = match (loaded.moment, whole.steps_ended()) {
        (NamedMoment::Step(_), _) | (_, 0) => String::new(),
        (_, steps) => format!(", {}", format::step_during(moment.steps_ended(), steps)),
    };
    parts.push(vec![
        format!("At {}: {}{reached}", loaded.moment, format::duration(moment.time())),
        format!("  of {}", clean(&path.display().to_string())),
    ]);
    for device in moment.devices() {
        // The name and size of a device may become known only later.
        let known = whole.device(device.index).unwrap_or_default();
        let held = Holdings::at_moment(&loaded.snapshot, device.index);
        parts.push(vec![device_title(&known, style.columns)]);
        parts.push(memory(loaded, &known, &held, style.columns));
        parts.push(lines(&names, &known, &held, style.columns));
        parts.push(layers(&names, &held, style.columns));
        parts.push(ranges(&held, style.columns));
        let map = moment.segments(device.index);
        if map.free_bytes > 0 {
            parts.push(vec![format!(
                "Fragmentation: {} of {} reserved was cached, not allocated ({}); the largest free block was {}",
                size(map.free_bytes),
                size(map.reserved_bytes),
                format::percent(map.free_bytes, map.reserved_bytes),
                size(map.largest_free_bytes)
            )]);
        }
    }
    if moment.devices().is_empty() {
        parts.push(vec!["No GPU memory was allocated by then.".to_owned()]);
    }
    write_parts(out, parts.into_iter().map(Part::from).collect(), style)
}

fn memory(loaded: &LoadedMoment, device: &DeviceView, held: &Holdings, columns: usize) -> Vec<String> {
    let host_bytes = loaded.snapshot.host_bytes(device.index);
    let mut lines = vec![format!(
        "{} allocated, {} reserved and {} in use",
        size(held.allocated_bytes),
        size(held.reserved_bytes),
        size(held.used_bytes)
    )];
    lines.extend(bar::lines(device, &bar::Shares { held: &held.categories, host_bytes }, columns));
    lines
}

fn lines(names: &ReportNames<'_>, device: &DeviceView, held: &Holdings, columns: usize) -> Vec<String> {
    let mut table = Table::new(&[
        "held",
        sections::share_title(held.allocated_bytes, held.attributed_bytes()),
        "in backward",
        "line",
    ])
    .sparing(&[2]);
    for line in held.lines[names.model.scope()].iter().take(MAX_ROWS) {
        table.row(vec![
            size(line.bytes),
            format::percent(line.bytes, held.attributed_bytes()),
            size(line.backward_bytes),
            names.line(line.line.as_ref()),
        ]);
    }
    sections::lines_section(names, device, &table, None, columns)
}

fn ranges(held: &Holdings, columns: usize) -> Vec<String> {
    let mut table =
        Table::of_layers(&["held", sections::share_title(held.allocated_bytes, held.attributed_bytes()), "range"]);
    for range in held.ranges.iter().take(MAX_ROWS) {
        table.row(vec![
            size(range.bytes),
            format::percent(range.bytes, held.attributed_bytes()),
            range_name(&range.path),
        ]);
    }
    sections::section("Named ranges (inner ranges not included)", &table, None, columns)
}

fn layers(names: &ReportNames<'_>, held: &Holdings, columns: usize) -> Vec<String> {
    if held.layers.iter().all(|layer| layer.layer.name.is_none()) {
        return Vec::new();
    }
    let mut table =
        Table::of_layers(&["held", sections::share_title(held.allocated_bytes, held.attributed_bytes()), "layer"]);
    let mut groups = grouped(held.layers.clone());
    groups.sort_by_key(|group| Reverse(group.sum.bytes));
    for group in groups.iter().take(MAX_ROWS) {
        let bytes = group.sum.bytes;
        let name = names.layer(&group.sum.layer.clone().into()) + &group.words(size);
        table.row(vec![size(bytes), format::percent(bytes, held.attributed_bytes()), name]);
    }
    sections::section("Largest layers (inner layers not included)", &table, None, columns)
}
