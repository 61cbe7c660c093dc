//! GPU time on a device.

use maud::{Markup, html};
use memlab_trace::{DeviceView, GpuWorkView, WorkTotals};

use super::super::gpu_time::{busy, slowed, waits};
use super::super::names::ReportNames;
use super::tables::{place, rows};
use crate::page::elements::{cut, name};
use crate::page::table::{Column, Kind, bytes, count, decimal, percent, rest, table, text, time};
use memlab_base::kernels::{KernelKind, KernelTime};
use memlab_units::format;

/// Longest full name of a kernel shown.
const WHOLE_NAME: usize = 1000;

/// The chapter; empty if not recorded.
pub(super) fn chapter(names: &ReportNames<'_>, device: &DeviceView, devices: usize) -> Markup {
    let Some(work) = names.model.gpu_work(device.index) else { return Markup::default() };
    let (cap, whole) = (rows(devices), work.total);
    let kernels: Vec<KernelTime> = work.kernels.iter().map(KernelTime::new).collect();
    let (kernels, copies): (Vec<_>, Vec<_>) = kernels.into_iter().partition(|kernel| kernel.kind == KernelKind::Kernel);
    let tables = [
        ("By layer (inner layers not included)", by_layer(names, &work, cap)),
        ("By line", by_line(names, &work, cap)),
        ("By kernel", by_kernel(&kernels, whole, cap)),
        ("Copies and fills", by_copy(&copies, whole, device.link_bytes_per_second)),
    ];
    html! {
        p {
            (format::time_spent(whole.nanoseconds)) " in " (format::grouped(whole.calls))
            " kernels, copies and fills, over "
            (format::timed_part(names.model.steps_timed(), names.model.steps_ended())) "."
        }
        @if let Some(words) = busy(names.model, &work) { p { (words) "." } }
        @if let Some(words) = waits(names.model) { p { (words) "." } }
        @if let Some(words) = slowed(names.model, &work) { p { (words) } }
        @for (title, table) in tables.iter().filter(|(_, table)| !table.0.is_empty()) { h4 { (title) } (table) }
    }
}

/// The first `cap` rows: time, share of the device's time, and these columns.
fn timed<R>(
    label: &str,
    (rows, cap): (&[R], usize),
    whole: WorkTotals,
    totals: impl Fn(&R) -> WorkTotals,
    columns: &[Column<'_, R>],
) -> Markup {
    let spent = |row: &R| totals(row).nanoseconds;
    let most = rows.first().map(spent);
    let first: [Column<'_, R>; 2] = [
        ("GPU time", Kind::Sorted, &|row| time(spent(row), most)),
        ("of GPU time", Kind::Percent, &|row| percent(spent(row), whole.nanoseconds)),
    ];
    let (shown, left_out) = rows.split_at(cap.min(rows.len()));
    html! {
        (table(label, shown, &[&first, columns].concat()))
        (rest(left_out.len(), &format::time_spent(left_out.iter().map(spent).fold(0, u64::saturating_add))))
    }
}

fn by_layer(names: &ReportNames<'_>, work: &GpuWorkView, cap: usize) -> Markup {
    if work.layers.iter().all(|layer| layer.name.is_none()) {
        return Markup::default();
    }
    timed(
        "GPU time by layer",
        (&work.layers, cap),
        work.total,
        |layer| layer.totals,
        &[
            ("in forward", Kind::Number, &|layer| time(layer.forward_nanoseconds, None)),
            ("in backward", Kind::Number, &|layer| time(layer.backward_nanoseconds, None)),
            ("launches", Kind::Number, &|layer| count(layer.totals.calls)),
            ("layer (inner layers not included)", Kind::Name, &|layer| text(&names.layer(&layer.to_layer()))),
        ],
    )
}

fn by_line(names: &ReportNames<'_>, work: &GpuWorkView, cap: usize) -> Markup {
    timed(
        "GPU time by line",
        (&work.lines, cap),
        work.total,
        |line| line.totals,
        &[
            ("in backward", Kind::Number, &|line| time(line.backward_nanoseconds, None)),
            ("launches", Kind::Number, &|line| count(line.totals.calls)),
            ("line", Kind::Name, &|line| place(names, line.line.as_ref())),
        ],
    )
}

fn by_kernel(kernels: &[KernelTime], whole: WorkTotals, cap: usize) -> Markup {
    timed(
        "GPU time by kernel",
        (kernels, cap),
        whole,
        |kernel| kernel.totals,
        &[
            ("launches", Kind::Number, &|kernel| count(kernel.totals.calls)),
            ("each", Kind::Number, &|kernel| time(kernel.totals.nanoseconds / kernel.totals.calls.max(1), None)),
            ("kernel", Kind::Name, &|kernel| {
                html! { td.name title=(cut(&kernel.whole_name, WHOLE_NAME)) { (name(&kernel.name)) } }
            }),
        ],
    )
}

fn by_copy(copies: &[KernelTime], whole: WorkTotals, link: Option<u64>) -> Markup {
    timed(
        "copies and fills",
        (copies, copies.len()),
        whole,
        |copy| copy.totals,
        &[
            ("calls", Kind::Number, &|copy| count(copy.totals.calls)),
            ("bytes", Kind::Number, &|copy| bytes(copy.totals.bytes, None)),
            ("GB/s", Kind::Number, &|copy| {
                let rate = copy.gigabytes_per_second();
                decimal(rate, &format!("{rate:.1}"))
            }),
            ("of the link", Kind::Number, &|copy| {
                let share = copy.share_of_link(link);
                decimal(share.unwrap_or(0.0), &share.map_or_else(String::new, format::share))
            }),
            ("from and to", Kind::Name, &|copy| text(&copy.name)),
        ],
    )
}
