//! The report's chapter on GPU time.

use std::cmp::Reverse;

use memlab_trace::{DeviceView, GpuWorkView, Model, StepView, WorkTotals};

use super::names::ReportNames;
use super::sections::section;
use memlab_base::kernels::{KernelKind, KernelTime};
use memlab_base::layer_groups::grouped;
use memlab_base::table::Table;
use memlab_base::text::clean;
use memlab_units::format::{self, size};

/// Maximum number of lines, layers and kernels shown.
const MAX_ROWS: usize = 12;

/// GPU time; empty if not recorded.
pub(super) fn gpu_time(names: &ReportNames<'_>, device: &DeviceView, columns: usize) -> Vec<String> {
    let Some(work) = names.model.gpu_work(device.index) else { return Vec::new() };
    let mut lines = vec![format!(
        "GPU time: {} in {} kernels, copies and fills, of {}",
        format::time_spent(work.total.nanoseconds),
        format::grouped(work.total.calls),
        format::timed_part(names.model.steps_timed(), names.model.steps_ended())
    )];
    lines.extend(busy(names.model, &work).map(|words| format!("  {words}")));
    lines.extend(waits(names.model).map(|words| format!("  {words}")));
    lines.extend(slowed(names.model, &work).map(|words| format!("  {words}")));
    let kernels: Vec<KernelTime> = work.kernels.iter().map(KernelTime::new).collect();
    let (kernels, others): (Vec<_>, Vec<_>) = kernels.into_iter().partition(|kernel| kernel.kind == KernelKind::Kernel);
    for part in [
        by_line(names, &work, columns),
        by_layer(names, &work, columns),
        by_kernel(&kernels, &work, columns),
        copies(&others, &work, device.link_bytes_per_second, columns),
    ] {
        lines.extend(part.into_iter().map(|line| format!("  {line}")));
    }
    lines
}

/// Sentence on the shares of time in which the device was busy, waiting and idle.
pub(super) fn busy(model: &Model, work: &GpuWorkView) -> Option<String> {
    let share = |part| format::percent(part, work.busy.total());
    let is_complete = model.steps_timed() == model.steps_ended();
    (work.busy.total() > 0).then(|| {
        format!(
            "Of the {} {}, the GPU was busy {}, waited for the host {}, and was otherwise idle {}",
            format::time_spent(work.busy.total()),
            if is_complete { "between the first and the last GPU work" } else { "recorded" },
            share(work.busy.busy),
            share(work.busy.waiting),
            share(work.busy.idle)
        )
    })
}

/// Sentences on the time in which a step waits for its batch and launches nothing.
///
/// The first step is left out: it has no previous step, and its DataLoader starts.
pub(super) fn waits(model: &Model) -> Option<String> {
    /// Least share of a step, in percent, that is worth a change.
    const MIN_PERCENT: u64 = 10;
    let wait = model.step_wait(&StepView {
        index: model.steps_ended().checked_sub(1)?,
        steps: model.steps_ended() - 1,
        ..StepView::default()
    })?;
    let ends = model.steps();
    let whole = ends.last()?.end_time.saturating_sub(ends.first()?.end_time);
    let step = whole.checked_div(model.steps_ended().saturating_sub(ends.first()?.index + 1))?;
    let data = wait.data_ns_per_step();
    let mut words = format!(
        "A step takes {} and waits {} of it for the DataLoader ({})",
        format::time_spent(step),
        format::time_spent(data),
        format::percent(data, step)
    );
    if let Some(launch) = wait.launch_ns_per_step() {
        words += &format!("; its first launch comes {} after the previous step", format::time_spent(launch));
    }
    if data.saturating_mul(100) >= step.saturating_mul(MIN_PERCENT) {
        words += ". Load the batches in more processes (num_workers), or prepare the data before the training";
    }
    Some(words)
}

/// Advice on the overhead of recording, if the run would be faster without it.
pub(super) fn slowed(model: &Model, work: &GpuWorkView) -> Option<&'static str> {
    /// Shorter runs are not worth a change.
    const MIN_STEPS: u64 = 100;
    let is_slowed = work.busy.waiting > work.busy.total() / 10;
    let is_complete = model.steps_timed() == model.steps_ended();
    (is_slowed && is_complete && model.steps_ended() >= MIN_STEPS)
        .then_some("Recording every launch slows such steps: --time-every 8 records one step in eight.")
}

fn times(totals: WorkTotals, work: &GpuWorkView) -> Vec<String> {
    vec![format::time_spent(totals.nanoseconds), format::percent(totals.nanoseconds, work.total.nanoseconds)]
}

fn by_line(names: &ReportNames<'_>, work: &GpuWorkView, columns: usize) -> Vec<String> {
    let mut table = Table::new(&["GPU time", "of all", "in backward", "launches", "line"]).sparing(&[3, 2]);
    for line in work.lines.iter().take(MAX_ROWS) {
        let mut row = times(line.totals, work);
        row.extend([format::time_spent(line.backward_nanoseconds), format::grouped(line.totals.calls)]);
        row.push(names.line(line.line.as_ref()));
        table.row(row);
    }
    let rest = rest(work.lines.iter().map(|line| line.totals.nanoseconds));
    section("Lines by GPU time", &table, rest, columns.saturating_sub(2))
}

fn by_layer(names: &ReportNames<'_>, work: &GpuWorkView, columns: usize) -> Vec<String> {
    if work.layers.iter().all(|layer| layer.name.is_none()) {
        return Vec::new();
    }
    let mut table = Table::of_layers(&["GPU time", "of all", "in backward", "launches", "layer"]).sparing(&[3, 2]);
    let mut groups = grouped(work.layers.clone());
    groups.sort_by_key(|group| Reverse(group.sum.totals.nanoseconds));
    for group in groups.iter().take(MAX_ROWS) {
        let layer = &group.sum;
        let mut row = times(layer.totals, work);
        row.extend([format::time_spent(layer.backward_nanoseconds), format::grouped(layer.totals.calls)]);
        row.push(names.layer(&layer.to_layer()) + &group.words(format::time_spent));
        table.row(row);
    }
    let rest = rest(groups.iter().map(|group| group.sum.totals.nanoseconds));
    section("Layers by GPU time (inner layers not included)", &table, rest, columns.saturating_sub(2))
}

fn by_kernel(kernels: &[KernelTime], work: &GpuWorkView, columns: usize) -> Vec<String> {
    let mut table = Table::new(&["GPU time", "of all", "launches", "each", "kernel"]);
    for KernelTime { name, totals, .. } in kernels.iter().take(MAX_ROWS) {
        let mut row = times(*totals, work);
        row.extend([format::grouped(totals.calls), format::time_spent(totals.nanoseconds / totals.calls.max(1))]);
        row.push(clean(name).into_owned());
        table.row(row);
    }
    let rest = rest(kernels.iter().map(|kernel| kernel.totals.nanoseconds));
    section("Kernels by GPU time", &table, rest, columns.saturating_sub(2))
}

fn copies(copies: &[KernelTime], work: &GpuWorkView, link: Option<u64>, columns: usize) -> Vec<String> {
    let mut table = Table::new(&["GPU time", "of all", "calls", "bytes", "GB/s", "of the link", "copies and fills"]);
    for copy in copies {
        let mut row = times(copy.totals, work);
        row.extend([format::grouped(copy.totals.calls), size(copy.totals.bytes)]);
        row.push(format!("{:.1}", copy.gigabytes_per_second()));
        row.push(copy.share_of_link(link).map(format::share).unwrap_or_default());
        row.push(clean(&copy.name).into_owned());
        table.row(row);
    }
    section("Copies and fills", &table, None, columns.saturating_sub(2))
}

fn rest(times: impl ExactSizeIterator<Item = u64>) -> Option<String> {
    let count = times.len().checked_sub(MAX_ROWS).filter(|count| *count > 0)?;
    let time = format::time_spent(times.skip(MAX_ROWS).fold(0, u64::saturating_add));
    Some(format!("  and {} more with {time}", format::grouped(count as u64)))
}
