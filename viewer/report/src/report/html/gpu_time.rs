//! What ran on a device, and for how long.

use memlab_trace::{DeviceView, GpuWorkView, WorkTotals};

use super::super::gpu_time::{busy, slowed};
use super::super::names::ReportNames;
use super::tables::{place, rows};
use crate::page::elements::{name, plural};
use crate::page::table::{Column, Table, bytes, number, text, time};
use memlab_base::kernels::{KernelKind, KernelTime};
use memlab_base::text::{fit_end, markup};
use memlab_units::format;

/// The longest whole name of a kernel that is told.
const WHOLE_NAME: usize = 1000;

/// The chapter; nothing if that was not recorded.
pub(super) fn chapter(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> String {
    let Some(work) = names.model.gpu_work(device.index) else { return String::new() };
    let cap = rows(devices);
    let kernels: Vec<KernelTime> = work.kernels.iter().map(KernelTime::new).collect();
    let (kernels, copies): (Vec<_>, Vec<_>) = kernels.into_iter().partition(|kernel| kernel.kind == KernelKind::Kernel);
    let mut html = format!(
        "<p>{} in {} kernels, copies and fills, over {}.</p>\n",
        format::time_spent(work.total.nanoseconds),
        format::grouped(work.total.calls),
        format::timed_part(names.model.steps_timed(), names.model.steps_ended())
    );
    html.extend(busy(&work).map(|words| format!("<p>The GPU {words}.</p>\n")));
    html.extend(slowed(names.model, &work).map(|words| format!("<p>{}</p>\n", markup(words))));
    for (title, table) in [
        ("By layer, each without those inside it", by_layer(names, &work, cap)),
        ("By line", by_line(names, &work, cap)),
        ("By kernel", by_kernel(&kernels, work.total, cap)),
        ("Copies and fills", by_copy(&copies, work.total, device.link_bytes_per_second)),
    ] {
        if !table.is_empty() {
            html += &format!("<h4>{title}</h4>\n{table}");
        }
    }
    html
}

/// How long, and the share of the device's time.
fn times(totals: WorkTotals, most: u64, whole: WorkTotals) -> [String; 2] {
    let share = format::percent(totals.nanoseconds, whole.nanoseconds);
    [time(totals.nanoseconds, Some(most)), number(totals.nanoseconds, &share)]
}

fn calls(totals: WorkTotals) -> String {
    number(totals.calls, &format::grouped(totals.calls))
}

fn by_layer(names: &ReportNames<'_>, work: &GpuWorkView, cap: usize) -> String {
    if work.layers.iter().all(|layer| layer.name.is_none()) {
        return String::new();
    }
    let mut table = Table::new(
        "GPU time by layer",
        &[
            ("GPU time", Column::Sorted),
            ("% of GPU time", Column::Number),
            ("in forward", Column::Number),
            ("in backward", Column::Number),
            ("calls", Column::Number),
            ("layer (without those inside it)", Column::Name),
        ],
    );
    let most = work.layers.first().map_or(0, |layer| layer.totals.nanoseconds);
    for layer in work.layers.iter().take(cap) {
        let mut cells = times(layer.totals, most, work.total).to_vec();
        cells.extend([
            time(layer.forward_nanoseconds, None),
            time(layer.backward_nanoseconds, None),
            calls(layer.totals),
            text(&names.layer(&layer.to_layer())),
        ]);
        table.row(&cells);
    }
    table.finish(rest(work.layers.iter().skip(cap).map(|layer| layer.totals)))
}

fn by_line(names: &ReportNames<'_>, work: &GpuWorkView, cap: usize) -> String {
    let mut table = Table::new(
        "GPU time by line",
        &[
            ("GPU time", Column::Sorted),
            ("% of GPU time", Column::Number),
            ("in backward", Column::Number),
            ("calls", Column::Number),
            ("line", Column::Name),
        ],
    );
    let most = work.lines.first().map_or(0, |line| line.totals.nanoseconds);
    for line in work.lines.iter().take(cap) {
        let mut cells = times(line.totals, most, work.total).to_vec();
        cells.extend([time(line.backward_nanoseconds, None), calls(line.totals), place(names, line.line.as_ref())]);
        table.row(&cells);
    }
    table.finish(rest(work.lines.iter().skip(cap).map(|line| line.totals)))
}

fn by_kernel(kernels: &[KernelTime], whole: WorkTotals, cap: usize) -> String {
    let mut table = Table::new(
        "GPU time by kernel",
        &[
            ("GPU time", Column::Sorted),
            ("% of GPU time", Column::Number),
            ("calls", Column::Number),
            ("each", Column::Number),
            ("kernel", Column::Name),
        ],
    );
    let most = kernels.first().map_or(0, |kernel| kernel.totals.nanoseconds);
    for kernel in kernels.iter().take(cap) {
        let mut cells = times(kernel.totals, most, whole).to_vec();
        let each = kernel.totals.nanoseconds / kernel.totals.calls.max(1);
        let whole_name = markup(&fit_end(&kernel.whole_name, WHOLE_NAME, "…")).into_owned();
        cells.extend([
            calls(kernel.totals),
            time(each, None),
            format!("<td class=\"name\" title=\"{whole_name}\">{}</td>", name(&kernel.name)),
        ]);
        table.row(&cells);
    }
    table.finish(rest(kernels.iter().skip(cap).map(|kernel| kernel.totals)))
}

fn by_copy(copies: &[KernelTime], whole: WorkTotals, link: Option<u64>) -> String {
    let mut table = Table::new(
        "copies and fills",
        &[
            ("GPU time", Column::Sorted),
            ("% of GPU time", Column::Number),
            ("calls", Column::Number),
            ("bytes", Column::Number),
            ("GB/s", Column::Number),
            ("of the link", Column::Number),
            ("from and to", Column::Name),
        ],
    );
    let most = copies.first().map_or(0, |copy| copy.totals.nanoseconds);
    for copy in copies {
        let mut cells = times(copy.totals, most, whole).to_vec();
        let rate = copy.gigabytes_per_second();
        let of_link = copy.share_of_link(link);
        cells.extend([
            calls(copy.totals),
            bytes(copy.totals.bytes, None),
            format!("<td class=\"num\" data-v=\"{rate}\">{rate:.1}</td>"),
            format!(
                "<td class=\"num\" data-v=\"{}\">{}</td>",
                of_link.unwrap_or(0.0),
                of_link.map_or_else(String::new, format::share)
            ),
            text(&copy.name),
        ]);
        table.row(&cells);
    }
    table.finish(None)
}

fn rest(left_out: impl Iterator<Item = WorkTotals>) -> Option<String> {
    let (count, time) =
        left_out.fold((0_u64, 0_u64), |(count, time), totals| (count + 1, time.saturating_add(totals.nanoseconds)));
    (count > 0).then(|| format!("and {} with {}: see --json", plural(count, "more row"), format::time_spent(time)))
}
