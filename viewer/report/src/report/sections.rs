//! Sections of the report on one device.

use memlab_trace::{Category, DeviceView, LineView, OomView, Scope};

use super::bar;
use super::growth;
use super::names::ReportNames;
use memlab_base::category::category_names;
use memlab_base::findings::{self, Finding, GrowingLine, PoolsOfLine, Words, advice::advice};
use memlab_base::layer_groups::{grouped, order_at_peak};
use memlab_base::ranges::{self, RangeNode};
use memlab_base::table::Table;
use memlab_base::text::{NO_LAYER, clean, wrapped};
use memlab_units::format::{self, size};

/// Maximum number of lines and of layers shown.
const MAX_ROWS: usize = 12;

/// Maximum number of growing lines shown.
const MAX_GROWING_LINES: usize = 5;

/// Maximum number of out-of-memory events shown in full.
const OOMS: usize = 3;

/// The peak and its time.
pub(super) fn peak(device: &DeviceView, steps_ended: u64) -> Vec<String> {
    if device.allocations == 0 {
        let mut lines = vec!["Peak: nothing was allocated".to_owned()];
        if device.used_bytes_at_peak > 0 {
            let (used, when) = (size(device.used_bytes_at_peak), format::duration(device.peak_time));
            lines = vec![format!("Peak: {used} in use at {when}")];
        }
        lines.push("  PyTorch allocated nothing on this device.".to_owned());
        lines.extend(limit(device));
        return lines;
    }
    let mut lines = vec![format!(
        "Peak: {} allocated at {}{}",
        size(device.peak_allocated_bytes),
        format::duration(device.peak_time),
        if steps_ended == 0 {
            String::new()
        } else {
            format!(", {}", format::step_during(device.peak_step, steps_ended))
        }
    )];
    let (reserved, used) = (device.reserved_bytes_at_peak, device.used_bytes_at_peak);
    lines.push(format!("  {} reserved and {} in use at that moment", size(reserved), size(used)));
    if device.host_bytes_at_peak > 0 {
        lines.push(format!("  and {} in host memory, which kernels access slowly", size(device.host_bytes_at_peak)));
    }
    let (reserved, used) = (device.peak_reserved_bytes, device.peak_used_bytes);
    lines.push(format!("  at most {} reserved and {} in use over the run", size(reserved), size(used)));
    lines.push(format!(
        "  {} allocated and {} reserved at the end",
        size(device.allocated_bytes),
        size(device.reserved_bytes)
    ));
    if device.peak_host_bytes > 0 && device.host_bytes_at_peak == 0 {
        lines.push(format!("  at most {} in host memory over the run", size(device.peak_host_bytes)));
    }
    lines.extend(limit(device));
    if device.async_allocations > 0 {
        lines.push(
            "  Each block came from the driver: sizes are as requested, and reserved equals allocated".to_owned(),
        );
    }
    lines
}

/// Limit of the run.
fn limit(device: &DeviceView) -> Option<String> {
    let limit = size(device.limit_bytes?);
    let beyond = if device.spills { "memory beyond it goes to the host" } else { "allocations beyond it fail" };
    Some(format!("  a limit of {limit} was set: {beyond}"))
}

/// Memory of the device at the peak.
pub(super) fn memory(names: &ReportNames<'_>, device: &DeviceView, columns: usize) -> Vec<String> {
    let mut lines = vec!["Memory at the peak".to_owned()];
    let held = names.model.categories(device.index).map(|view| (view.category, view.bytes_at_peak));
    let shares = bar::Shares { held: &held, host_bytes: device.host_bytes_at_peak };
    lines.extend(bar::lines(device, &shares, columns));
    if !device.used_is_known {
        lines.push(
            "  The driver did not report the device's use: the context and other processes are missing.".to_owned(),
        );
    } else if !device.process_is_known {
        lines.push("  The driver does not separate processes here: others count as context.".to_owned());
    }
    lines
}

/// Heading of the shares in the lines' sum: `of allocated`, unless other arrays are included.
pub(super) fn share_title(allocated: u64, attributed: u64) -> &'static str {
    if allocated == attributed { "of allocated" } else { "of held" }
}

/// Largest lines at the peak.
pub(super) fn lines(names: &ReportNames<'_>, device: &DeviceView, columns: usize) -> Vec<String> {
    let lines = names.model.lines(device.index);
    let held: Vec<&LineView> = lines.iter().filter(|line| line.live_bytes_at_peak > 0).collect();
    let mut table = Table::new(&[
        "at the peak",
        share_title(device.peak_allocated_bytes, device.attributed_bytes_at_peak()),
        "in backward",
        "own peak",
        "at the end",
        "line",
    ])
    .sparing(&[4, 3, 2]);
    for line in held.iter().take(MAX_ROWS) {
        table.row(vec![
            size(line.live_bytes_at_peak),
            format::percent(line.live_bytes_at_peak, device.attributed_bytes_at_peak()),
            size(line.backward_bytes_at_peak),
            size(line.peak_live_bytes),
            size(line.live_bytes),
            names.line(line.line.as_ref()),
        ]);
    }
    lines_section(names, device, &table, rest(held.iter().map(|line| line.live_bytes_at_peak)), columns)
}

/// A table of lines under its title.
pub(super) fn lines_section(
    names: &ReportNames<'_>,
    device: &DeviceView,
    table: &Table,
    rest: Option<String>,
    columns: usize,
) -> Vec<String> {
    let [title, why] = lines_title(names, device);
    let mut lines = section(&title, table, rest, columns);
    if !lines.is_empty() && !why.is_empty() {
        lines.insert(1, why);
    }
    lines
}

/// Heading of the lines with their scope, and a second line with the reason, where it is not obvious.
fn lines_title(names: &ReportNames<'_>, device: &DeviceView) -> [String; 2] {
    let what = "Largest lines";
    if names.model.scope() == Scope::Users {
        return [what.to_owned(), String::new()];
    }
    let why = match names.model.dominant_library_call(device.index) {
        Some(line) => {
            let place = names.line(Some(&line));
            let place = place.split("  ").next().unwrap_or_default();
            format!("  {place} only calls them (--libraries=never: your lines only)")
        }
        None => String::new(),
    };
    [format!("{what}, with libraries"), why]
}

/// Largest layers at the peak. Layers that differ only in their number are one row.
pub(super) fn layers(names: &ReportNames<'_>, device: &DeviceView, columns: usize) -> Vec<String> {
    let mut layers = names.model.layers(device.index);
    layers.retain(|layer| layer.live_bytes_at_peak > 0);
    if layers.iter().all(|layer| layer.name.is_none()) {
        return Vec::new();
    }
    let mut groups = grouped(layers);
    groups.sort_by(|a, b| order_at_peak(&a.sum, &b.sum));
    let mut table = Table::of_layers(&[
        "at the peak",
        share_title(device.peak_allocated_bytes, device.attributed_bytes_at_peak()),
        "parameters",
        "gradients",
        "optimizer",
        "activations",
        "others",
        "layer",
    ])
    .sparing(&[6, 4, 3, 2, 5]);
    for group in groups.iter().take(MAX_ROWS) {
        let layer = &group.sum;
        // All figures are at the peak, so that a row adds up.
        let at_peak = |category: Category| layer.categories_at_peak[category as usize];
        let shown =
            [Category::Parameter, Category::Gradient, Category::OptimizerState, Category::Activation].map(at_peak);
        let others =
            layer.live_bytes_at_peak.saturating_sub(shown.iter().fold(0, |sum, part| sum.saturating_add(*part)));
        let mut row = vec![
            size(layer.live_bytes_at_peak),
            format::percent(layer.live_bytes_at_peak, device.attributed_bytes_at_peak()),
        ];
        row.extend(shown.into_iter().chain([others]).map(size));
        row.push(format!("{}{}", names.layer(layer), group.words(size)));
        table.row(row);
    }
    let title = "Largest layers (inner layers not included)";
    section(title, &table, rest(groups.iter().map(|group| group.sum.live_bytes_at_peak)), columns)
}

/// Ranges that the program names, with their memory.
pub(super) fn ranges(names: &ReportNames<'_>, device: &DeviceView, columns: usize) -> Vec<String> {
    let mut ranges = ranges::nodes(&names.model.ranges(device.index));
    ranges.sort_by(|a, b| {
        let most = |node: &RangeNode| (node.own.live_bytes_at_peak, node.own.allocated_bytes);
        most(b).cmp(&most(a)).then_with(|| a.path().cmp(b.path()))
    });
    ranges.retain(|node| node.inclusive.allocated_bytes > 0);
    let mut table = Table::of_layers(&[
        "at the peak",
        share_title(device.peak_allocated_bytes, device.attributed_bytes_at_peak()),
        "with inner",
        "at the end",
        "allocated",
        "blocks",
        "range",
    ])
    .sparing(&[5, 3, 4]);
    for node in ranges.iter().take(MAX_ROWS) {
        table.row(vec![
            size(node.own.live_bytes_at_peak),
            format::percent(node.own.live_bytes_at_peak, device.attributed_bytes_at_peak()),
            size(node.inclusive.live_bytes_at_peak),
            size(node.own.live_bytes),
            size(node.own.allocated_bytes),
            format::grouped(node.own.allocations),
            node.name(),
        ]);
    }
    let title = "Named ranges (inner ranges not included)";
    section(title, &table, rest(ranges.iter().map(|node| node.own.live_bytes_at_peak)), columns)
}

fn rest(held: impl ExactSizeIterator<Item = u64>) -> Option<String> {
    let count = held.len().checked_sub(MAX_ROWS).filter(|count| *count > 0)?;
    Some(format!(
        "  and {} more with {}",
        format::grouped(count as u64),
        size(held.skip(MAX_ROWS).fold(0, u64::saturating_add))
    ))
}

pub(super) fn section(title: &str, table: &Table, rest: Option<String>, columns: usize) -> Vec<String> {
    if table.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![title.to_owned()];
    lines.extend(table.lines(columns));
    lines.extend(rest);
    lines
}

/// Lines whose memory grew.
pub(super) fn growth(names: &ReportNames<'_>, device: &DeviceView, columns: usize) -> Vec<String> {
    let mut parts = Vec::new();
    for grown in growth::tables(names.model, device.index) {
        let title = format!("Growth between {}: {}", grown.moments, grown.total());
        let mut table = Table::new(&["growth", grown.rate_title, "before", "after", "line"]);
        for line in grown.lines.iter().take(MAX_GROWING_LINES) {
            table.row(vec![
                size(line.growth()),
                size(line.rate),
                size(line.from_bytes),
                size(line.to_bytes),
                names.line(line.line.as_ref()),
            ]);
        }
        parts.extend(if table.is_empty() { vec![title] } else { section(&title, &table, None, columns) });
    }
    parts
}

/// Unallocated reserved memory, and the size of the holes.
pub(super) fn fragmentation(names: &ReportNames<'_>, device: &DeviceView) -> Vec<String> {
    let map = names.model.segments(device.index);
    if map.segments.is_empty() && device.reserved_bytes_at_peak == 0 {
        return Vec::new();
    }
    let idle = device.reserved_bytes_at_peak.saturating_sub(device.peak_allocated_bytes);
    let mut lines = vec![format!(
        "Fragmentation: at the peak, {} of {} reserved was cached, not allocated ({})",
        size(idle),
        size(device.reserved_bytes_at_peak),
        format::percent(idle, device.reserved_bytes_at_peak)
    )];
    // Once nothing is allocated, the holes are just the segments.
    if device.allocated_bytes > 0 && map.free_bytes > 0 {
        lines.push(format!(
            "  {} {} of {} ({}) cached in {}; largest free block {}",
            names.latest,
            size(map.free_bytes),
            size(map.reserved_bytes),
            format::percent(map.free_bytes, map.reserved_bytes),
            format::counted(map.segments.len() as u64, "segment"),
            size(map.largest_free_bytes)
        ));
    }
    if device.private_reserved_bytes_at_peak > 0 {
        let in_pools = device.private_reserved_bytes_at_peak.saturating_sub(device.private_allocated_bytes_at_peak);
        lines.push(format!(
            "  in private pools of CUDA graphs: {} of {} at the peak, {} {}",
            size(in_pools),
            size(device.private_reserved_bytes_at_peak),
            size(map.private_free_bytes),
            names.latest
        ));
    }
    lines
}

/// Memory in private pools of CUDA graphs, and the lines that captured the graphs.
pub(super) fn graph_pools(names: &ReportNames<'_>, device: &DeviceView, columns: usize) -> Vec<String> {
    let groups = findings::graph_pools_by_line(names.model, device.index);
    let sum = |of: fn(&PoolsOfLine) -> u64| groups.iter().map(of).fold(0_u64, u64::saturating_add);
    let mut table = Table::new(&["reserved", "unused", "pools", "graphs", "segments", "captured by"]);
    for group in &groups {
        table.row(vec![
            size(group.reserved_bytes),
            size(group.free_bytes),
            format::grouped(group.pools),
            format::grouped(group.graphs),
            format::grouped(group.segments),
            names.line(group.line.as_ref()),
        ]);
    }
    let title = format!(
        "Private pools of CUDA graphs {}: {} reserved, {} of it unused",
        names.latest,
        size(sum(|group| group.reserved_bytes)),
        size(sum(|group| group.free_bytes))
    );
    section(&title, &table, None, columns)
}

/// Driver memory outside PyTorch's allocator.
pub(super) fn driver(names: &ReportNames<'_>, device: i32, title: &str, columns: usize) -> Vec<String> {
    let mut table = Table::new(&["at the end", "kind", "allocated by"]);
    for held in names.model.driver_memory(device).iter().take(MAX_GROWING_LINES) {
        let times = match held.live_allocations {
            1 => "once".to_owned(),
            times => format!("{} times", format::grouped(times)),
        };
        let who = format!("{}  {}, {times}", held.library, held.call);
        table.row(vec![size(held.live_bytes), held.kind.as_str().to_owned(), clean(&who).into_owned()]);
    }
    section(title, &table, None, columns)
}

/// Out-of-memory events of a device.
pub(super) fn ooms(names: &ReportNames<'_>, device: &DeviceView, columns: usize) -> Vec<String> {
    let ooms: Vec<OomView> = names.model.ooms().into_iter().filter(|oom| oom.device == device.index).collect();
    let grows = findings::grows(names.model, device);
    let mut lines = Vec::new();
    for oom in ooms.iter().take(OOMS) {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(one_oom(names, oom, grows.as_ref(), columns));
    }
    if ooms.len() > OOMS {
        let more = format::grouped((ooms.len() - OOMS) as u64);
        lines.extend([String::new(), format!("{more} more out-of-memory events: see --json")]);
    }
    lines
}

fn one_oom(names: &ReportNames<'_>, oom: &OomView, grows: Option<&GrowingLine>, columns: usize) -> Vec<String> {
    let layer = oom.layer.as_deref().filter(|layer| !layer.is_empty());
    let mut lines = vec![
        format!("OUT OF MEMORY after {}: {} requested", format::duration(oom.time), size(oom.requested_bytes)),
        format!("  by {}", names.line(oom.line.as_ref())),
    ];
    if let Some(layer) = layer {
        lines.push(format!("  in layer {}", clean(layer)));
    }
    let free_on_device = oom.total_bytes.saturating_sub(oom.used_bytes);
    lines.push(format!(
        "  {} allocated and {} reserved by PyTorch",
        size(oom.allocated_bytes),
        size(oom.reserved_bytes)
    ));
    lines.push(format!(
        "  {} free in its segments, the largest free block {}",
        size(oom.free_bytes),
        size(oom.largest_free_block_bytes)
    ));
    if oom.private_free_bytes > 0 {
        lines.push(format!("  {} free in private pools of CUDA graphs", size(oom.private_free_bytes)));
    }
    if !oom.used_is_known {
        let torch = oom.reserved_bytes.max(oom.allocated_bytes);
        lines.push(format!("  {} of other driver memory of this process", size(oom.used_bytes.saturating_sub(torch))));
        lines.push("  the device's use was not sampled yet: the context and free memory are unknown".to_owned());
    } else if oom.total_bytes > 0 {
        lines.push(format!("  {} free on the device of {}", size(free_on_device), size(oom.total_bytes)));
    }
    if let Some(limit) = oom.limit_bytes {
        lines.push(format!("  a limit of {} was set for the process", size(limit)));
    }
    if oom.host_bytes > 0 {
        lines.push(format!("  {} of its memory was on the host", size(oom.host_bytes)));
    }
    let mut table = Table::new(&["held", "", "by"]);
    let mut held = |kind: &str, name: String, bytes: u64| {
        table.row(vec![size(bytes), kind.to_owned(), name]);
    };
    let mut categories = oom.categories.clone();
    categories.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    for (category, bytes) in categories.iter().take(5) {
        held("category", category_names(*category).0.to_owned(), *bytes);
    }
    for (line, bytes) in oom.lines.iter().take(5) {
        held("line", names.line(line.as_ref()), *bytes);
    }
    for (layer, bytes) in oom.layers.iter().take(5) {
        let name = match layer.as_deref() {
            None => NO_LAYER.to_owned(),
            Some("") => "(outermost module)".to_owned(),
            Some(name) => clean(name).into_owned(),
        };
        held("layer", name, *bytes);
    }
    lines.extend(section("  Largest holders", &table, None, columns));
    let advice = advice(names.model, oom, grows);
    if !advice.is_empty() {
        lines.push("  What to do next".to_owned());
    }
    lines.extend(advice.iter().flat_map(|text| wrapped("  -", text, columns)));
    lines
}

/// The findings, each with its next step, and the headline on the memory at the peak.
pub(super) fn findings(names: &ReportNames<'_>, columns: usize) -> Vec<String> {
    let Some(headline) = findings::headline(names.model) else { return Vec::new() };
    let found: Vec<Finding> = findings::of(names.model);
    let mut lines = vec![if found.is_empty() { "Summary" } else { "Findings" }.to_owned()];
    lines.extend(findings::verdict(names.model, &found).into_iter().flat_map(|words| verdict(&words, columns)));
    lines.extend(found.iter().flat_map(|finding| self::finding(finding, columns)));
    lines.extend(wrapped(" ", &clean(&headline.text()), columns));
    lines
}

pub(super) fn verdict(words: &Words, columns: usize) -> Vec<String> {
    wrapped("=>", &clean(&words.text()), columns)
}

/// A finding, and the next action.
pub(super) fn finding(finding: &Finding, columns: usize) -> Vec<String> {
    let mut lines = wrapped("  !", &clean(&finding.what.text()), columns);
    lines.extend(wrapped("    →", &clean(&finding.next), columns));
    lines
}
