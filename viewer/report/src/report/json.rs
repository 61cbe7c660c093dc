//! The report as JSON: a contract with scripts. Keys are added, never renamed or removed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use memlab_predict::advice::Advice;
use memlab_trace::{Category, GpuWorkView, KernelView, LayerWorkView, Line, LineWorkView, Model, Scope, WorkTotals};
use serde::Serialize;

use crate::advice::AdvisedTrace;
use crate::holders::HolderRow;
use memlab_base::findings::{self, Finding};
use memlab_base::holdings::LayerName;
use memlab_base::json;
use memlab_base::json::parts::{CodeLine, DriverCall, Layer, LineResolver, Process, Range, Row, StepRow, Trace, steps};
use memlab_base::kernels::Kernel;

#[derive(Serialize)]
struct Report {
    trace: Trace,
    process: Process,
    findings: Vec<FindingRow>,
    advice: Vec<Advice>,
    devices: Vec<Device>,
    lines: Vec<Row<CodeLine, LineFigures>>,
    /// The same memory by the innermost lines of the user's code or of a library.
    library_lines: Vec<Row<CodeLine, LineFigures>>,
    /// The list that the text shows: `lines` or `library_lines`.
    lines_shown: &'static str,
    layers: Vec<Row<Layer, LayerFigures>>,
    ranges: Vec<Row<Range, RangeFigures>>,
    categories: Vec<CategoryRow>,
    steps: Vec<StepRow>,
    growth: Vec<GrowthRow>,
    ooms: Vec<OomRow>,
    private_pools: Vec<PrivatePoolRow>,
    driver: Vec<Row<DriverCall, DriverFigures>>,
    /// GPU work by kernel; empty if not recorded.
    kernels: Vec<KernelRow>,
    copies: Vec<CopyRow>,
    gpu_steps: Vec<GpuStepRow>,
    warnings: Vec<String>,
}

/// A finding; the most urgent comes first.
#[derive(Serialize)]
struct FindingRow {
    /// `out_of_memory`, `leak`, `spilling`, `other_processes`, `fragmentation`, `graph_pools` or `jax_pool`.
    kind: &'static str,
    device: i32,
    bytes: u64,
    /// Description, followed by the next action.
    what: String,
    next: String,
    /// The objects that keep the memory alive; empty if no search found them.
    holders: Vec<HolderRow>,
}

fn findings(model: &Model) -> Vec<FindingRow> {
    let row = |finding: Finding| FindingRow {
        kind: finding.kind.as_str(),
        device: finding.device,
        bytes: finding.bytes,
        what: finding.what.text(),
        next: finding.next,
        holders: finding.holders.into_iter().map(HolderRow::from).collect(),
    };
    findings::of(model).into_iter().map(row).collect()
}

#[derive(Serialize)]
struct Device {
    index: i32,
    name: String,
    total_bytes: u64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    peak_used_bytes: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    used_bytes: u64,
    /// Part of its device memory that is in host memory.
    host_bytes: u64,
    host_bytes_at_peak: u64,
    peak_host_bytes: u64,
    /// Speed of its link to the host, in one direction; null: not known.
    link_bytes_per_second: Option<u64>,
    /// Limit of the process; null: none.
    limit_bytes: Option<u64>,
    /// Action beyond the limit: `oom` or `spill`.
    on_limit: Option<&'static str>,
    /// Other processes on the device, and the maximum of each.
    other_processes: Vec<OtherRow>,
    used_is_known: bool,
    process_is_known: bool,
    peak_time_ns: u64,
    peak_steps_ended: u64,
    reserved_bytes_at_peak: u64,
    used_bytes_at_peak: u64,
    /// Parts of `reserved_bytes_at_peak` and `peak_allocated_bytes` in private pools of CUDA graphs.
    private_reserved_bytes_at_peak: u64,
    private_allocated_bytes_at_peak: u64,
    allocations: u64,
    async_allocations: u64,
    segments: u64,
    free_bytes_in_segments: u64,
    /// Part of the free bytes in private pools of CUDA graphs.
    free_bytes_in_private_pools: u64,
    largest_free_block_bytes: u64,
    fragmentation_percent: f64,
    /// Bytes allocated outside any layer, also a row of `layers`.
    outside_layers_bytes_at_peak: u64,
    outside_layers_bytes_at_end: u64,
    /// Total time of kernels, copies and fills; null: not recorded.
    gpu_time_ns: Option<u64>,
    outside_layers_gpu_time_ns: Option<u64>,
    /// Time from the first piece of work to the last, in three parts: busy, waiting for the next launch, otherwise
    /// idle.
    gpu_busy_ns: Option<u64>,
    gpu_waits_for_host_ns: Option<u64>,
    gpu_idle_ns: Option<u64>,
    /// Number of ended optimizer steps that these times cover.
    gpu_timed_steps: Option<u64>,
}

/// GPU work launched in an optimizer step, or in several.
#[derive(Serialize)]
struct GpuStepRow {
    device: i32,
    first_step: u64,
    steps: u64,
    calls: u64,
    gpu_time_ns: u64,
    copied_to_device_bytes: u64,
    copied_to_host_bytes: u64,
}

/// A kernel, or all fills.
#[derive(Serialize)]
struct KernelRow {
    device: i32,
    /// `kernel` or `fill`.
    kind: &'static str,
    name: String,
    calls: u64,
    gpu_time_ns: u64,
}

/// All copies of a kind.
#[derive(Serialize)]
struct CopyRow {
    device: i32,
    /// `device`, `peer`, `pageable`, `pinned` or `managed`.
    from: String,
    to: String,
    calls: u64,
    gpu_time_ns: u64,
    bytes: u64,
}

/// Another process, as reported by the driver.
#[derive(Serialize)]
struct OtherRow {
    pid: u32,
    bytes: u64,
}

fn others(processes: &[(u32, u64)]) -> Vec<OtherRow> {
    processes.iter().map(|(pid, bytes)| OtherRow { pid: *pid, bytes: *bytes }).collect()
}

#[derive(Serialize)]
struct LineFigures {
    /// Origin of the code: `user`, `library`, `torch`, `standard_library`, `generated`; null: no Python frame.
    whose: Option<&'static str>,
    /// True if torch.compile's code runs in its place.
    compiled: bool,
    allocations: u64,
    allocated_bytes: u64,
    live_bytes_at_peak: u64,
    peak_live_bytes: u64,
    live_bytes_at_end: u64,
    backward_bytes_at_peak: u64,
    backward_bytes_at_end: u64,
    /// With the other lines, it sums to the device's time; null: not recorded.
    gpu_time_ns: Option<u64>,
    backward_gpu_time_ns: Option<u64>,
}

#[derive(Serialize)]
struct LayerFigures {
    live_bytes_at_peak: u64,
    live_bytes_at_end: u64,
    forward_bytes: u64,
    backward_bytes: u64,
    parameter_bytes: u64,
    gradient_bytes: u64,
    optimizer_state_bytes: u64,
    buffer_bytes: u64,
    activation_bytes: u64,
    /// With the other rows, it sums to the device's time; null: not recorded.
    gpu_time_ns: Option<u64>,
    backward_gpu_time_ns: Option<u64>,
}

#[derive(Serialize)]
struct RangeFigures {
    live_bytes_at_peak: u64,
    live_bytes_at_end: u64,
    live_blocks_at_end: u64,
    allocations: u64,
    allocated_bytes: u64,
}

#[derive(Serialize)]
struct CategoryRow {
    device: i32,
    name: &'static str,
    bytes_at_peak: u64,
    bytes_at_end: u64,
}

#[derive(Serialize)]
struct GrowthRow {
    device: i32,
    #[serde(flatten)]
    line: CodeLine,
    from_steps_ended: u64,
    to_steps_ended: u64,
    from_bytes: u64,
    to_bytes: u64,
    bytes_per_step: f64,
    /// True if it grew repeatedly, rather than once or by chance.
    is_steady: bool,
}

#[derive(Serialize)]
struct OomRow {
    device: i32,
    requested_bytes: u64,
    #[serde(flatten)]
    line: CodeLine,
    /// The innermost line of the user's code or of a library.
    library_line: CodeLine,
    layer: Option<Arc<str>>,
    allocated_bytes: u64,
    reserved_bytes: u64,
    largest_free_block_bytes: u64,
    free_bytes_in_segments: u64,
    free_bytes_in_private_pools: u64,
    used_bytes: u64,
    used_is_known: bool,
    total_bytes: u64,
    limit_bytes: Option<u64>,
    host_bytes: u64,
    other_processes: Vec<OtherRow>,
    time_ns: u64,
    steps_ended: u64,
    stack: Vec<CodeLine>,
    held_by_lines: Vec<HeldByLine>,
    /// The same memory by the innermost lines of the user's code or of a library.
    held_by_library_lines: Vec<HeldByLine>,
    held_by_layers: Vec<HeldBy>,
    held_by_categories: Vec<HeldBy>,
}

#[derive(Serialize)]
struct HeldByLine {
    #[serde(flatten)]
    line: CodeLine,
    bytes: u64,
}

#[derive(Serialize)]
struct HeldBy {
    name: Option<Arc<str>>,
    bytes: u64,
}

/// A private pool of CUDA graphs, at the end.
#[derive(Serialize)]
struct PrivatePoolRow {
    device: i32,
    /// PyTorch's id; null: its capture has not ended, or failed.
    id: Option<(u64, u64)>,
    /// Live graphs.
    graphs: u64,
    /// Graphs captured with it.
    graphs_captured: u64,
    segments: u64,
    reserved_bytes: u64,
    /// Bytes without tensors.
    free_bytes: u64,
    captured_by: Vec<CodeLine>,
}

/// Figures of driver memory held at the end.
#[derive(Serialize)]
struct DriverFigures {
    live_bytes_at_end: u64,
    live_allocations_at_end: u64,
}

/// Writes the report of a trace as JSON. Control characters in its texts are escaped.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_json(out: &mut impl Write, path: &Path, run: &AdvisedTrace) -> io::Result<()> {
    json::write_pretty(out, &report(path, run))
}

fn report(path: &Path, run: &AdvisedTrace) -> Report {
    let loaded = &run.trace;
    let model = &loaded.model;
    let resolver = LineResolver::of_run(model);
    let indexes: Vec<i32> = model.devices().iter().map(|device| device.index).collect();
    let works: Works = indexes.iter().filter_map(|device| Some((*device, model.gpu_work(*device)?))).collect();
    Report {
        trace: Trace::of(path, model, &loaded.skipped, loaded.truncated),
        process: Process::of(model),
        findings: findings(model),
        advice: run.advice.as_ref().map(|advices| advices.advice.clone()).unwrap_or_default(),
        devices: devices(model, &works),
        kernels: indexes.iter().flat_map(|device| kernels(*device, works.get(device))).collect(),
        copies: indexes.iter().flat_map(|device| copies(*device, works.get(device))).collect(),
        gpu_steps: indexes.iter().flat_map(|device| gpu_steps(*device, model)).collect(),
        lines: indexes.iter().flat_map(|device| lines(model, *device, Scope::Users, &resolver)).collect(),
        library_lines: indexes.iter().flat_map(|device| lines(model, *device, Scope::Libraries, &resolver)).collect(),
        lines_shown: model.scope().as_str(),
        layers: indexes.iter().flat_map(|device| layers(model, *device, works.get(device))).collect(),
        ranges: indexes.iter().flat_map(|device| ranges(model, *device)).collect(),
        categories: indexes.iter().flat_map(|device| categories(model, *device)).collect(),
        steps: steps(model),
        growth: indexes.iter().flat_map(|device| growth(model, *device, &resolver)).collect(),
        ooms: ooms(model, &resolver),
        private_pools: indexes.iter().flat_map(|device| private_pools(model, *device, &resolver)).collect(),
        driver: indexes.iter().copied().chain([memlab_trace::HOST]).flat_map(|device| driver(model, device)).collect(),
        warnings: model.warnings().to_vec(),
    }
}

/// GPU work of each device, if recorded.
type Works = BTreeMap<i32, GpuWorkView>;

fn devices(model: &Model, works: &Works) -> Vec<Device> {
    let device = |view: memlab_trace::DeviceView| {
        let segments = model.segments(view.index);
        let work = works.get(&view.index);
        let outside_work = work.map(|work| {
            let outside = work.layers.iter().filter(|layer| layer.name.is_none());
            outside.map(|layer| layer.totals.nanoseconds).sum()
        });
        let outside = model.layers(view.index).into_iter().find(|row| row.name.is_none()).unwrap_or_default();
        Device {
            index: view.index,
            name: view.name,
            total_bytes: view.total_bytes,
            peak_allocated_bytes: view.peak_allocated_bytes,
            peak_reserved_bytes: view.peak_reserved_bytes,
            peak_used_bytes: view.peak_used_bytes,
            allocated_bytes: view.allocated_bytes,
            reserved_bytes: view.reserved_bytes,
            used_bytes: view.used_bytes,
            host_bytes: view.host_bytes,
            host_bytes_at_peak: view.host_bytes_at_peak,
            peak_host_bytes: view.peak_host_bytes,
            link_bytes_per_second: view.link_bytes_per_second,
            limit_bytes: view.limit_bytes,
            on_limit: view.limit_bytes.map(|_| if view.spills { "spill" } else { "oom" }),
            other_processes: others(&view.others),
            used_is_known: view.used_is_known,
            process_is_known: view.process_is_known,
            peak_time_ns: view.peak_time,
            peak_steps_ended: view.peak_step,
            reserved_bytes_at_peak: view.reserved_bytes_at_peak,
            used_bytes_at_peak: view.used_bytes_at_peak,
            private_reserved_bytes_at_peak: view.private_reserved_bytes_at_peak,
            private_allocated_bytes_at_peak: view.private_allocated_bytes_at_peak,
            allocations: view.allocations,
            async_allocations: view.async_allocations,
            segments: view.segments,
            free_bytes_in_segments: segments.free_bytes,
            free_bytes_in_private_pools: segments.private_free_bytes,
            largest_free_block_bytes: segments.largest_free_bytes,
            fragmentation_percent: segments.fragmentation_percent,
            outside_layers_bytes_at_peak: outside.live_bytes_at_peak,
            outside_layers_bytes_at_end: outside.live_bytes,
            gpu_time_ns: work.map(|work| work.total.nanoseconds),
            outside_layers_gpu_time_ns: outside_work,
            gpu_busy_ns: work.map(|work| work.busy.busy),
            gpu_waits_for_host_ns: work.map(|work| work.busy.waiting),
            gpu_idle_ns: work.map(|work| work.busy.idle),
            gpu_timed_steps: work.map(|_| model.steps_timed()),
        }
    };
    model.devices().into_iter().map(device).collect()
}

fn kernels(device: i32, work: Option<&GpuWorkView>) -> Vec<KernelRow> {
    let row = |view: &KernelView| {
        let (kind, name) = match Kernel::of(&view.name) {
            Kernel::Named(name) => ("kernel", name.into_owned()),
            Kernel::Fill => ("fill", "fill".to_owned()),
            Kernel::Copy(..) => return None,
        };
        let WorkTotals { calls, nanoseconds, .. } = view.totals;
        Some(KernelRow { device, kind, name, calls, gpu_time_ns: nanoseconds })
    };
    work.into_iter().flat_map(|work| &work.kernels).filter_map(row).collect()
}

fn gpu_steps(device: i32, model: &Model) -> impl Iterator<Item = GpuStepRow> {
    model.step_work(device).into_iter().map(move |work| GpuStepRow {
        device,
        first_step: work.step,
        steps: work.steps,
        calls: work.calls,
        gpu_time_ns: work.nanoseconds,
        copied_to_device_bytes: work.to_device_bytes,
        copied_to_host_bytes: work.to_host_bytes,
    })
}

fn copies(device: i32, work: Option<&GpuWorkView>) -> Vec<CopyRow> {
    let row = |view: &KernelView| {
        let Kernel::Copy(from, to) = Kernel::of(&view.name) else { return None };
        let (WorkTotals { calls, nanoseconds, bytes }, from, to) = (view.totals, from.to_owned(), to.to_owned());
        Some(CopyRow { device, from, to, calls, gpu_time_ns: nanoseconds, bytes })
    };
    work.into_iter().flat_map(|work| &work.kernels).filter_map(row).collect()
}

/// Lines with memory, followed by lines with GPU work only.
fn lines(model: &Model, device: i32, scope: Scope, resolver: &LineResolver) -> Vec<Row<CodeLine, LineFigures>> {
    let work = model.gpu_work_in(device, scope);
    let is_recorded = work.is_some();
    let works = work.into_iter().flat_map(|work| work.lines);
    let mut works: HashMap<Option<Arc<Line>>, LineWorkView> = works.map(|work| (work.line.clone(), work)).collect();
    let row = |view: memlab_trace::LineView, work: Option<LineWorkView>| {
        let work = is_recorded.then(|| work.unwrap_or_default());
        let figures = LineFigures {
            whose: view.line.as_deref().map(|line| model.code_origin(line).as_str()),
            compiled: view.is_compiled,
            allocations: view.allocations,
            allocated_bytes: view.allocated_bytes,
            live_bytes_at_peak: view.live_bytes_at_peak,
            peak_live_bytes: view.peak_live_bytes,
            live_bytes_at_end: view.live_bytes,
            backward_bytes_at_peak: view.backward_bytes_at_peak,
            backward_bytes_at_end: view.backward_bytes,
            gpu_time_ns: work.as_ref().map(|work| work.totals.nanoseconds),
            backward_gpu_time_ns: work.as_ref().map(|work| work.backward_nanoseconds),
        };
        Row { device, of: resolver.of(view.line.as_deref()), figures }
    };
    let mut rows = Vec::new();
    for view in model.lines_in(device, scope) {
        let work = works.remove(&view.line);
        rows.push(row(view, work));
    }
    let mut only: Vec<LineWorkView> = works.into_values().collect();
    only.sort_by(|a, b| (b.totals.nanoseconds, &a.line).cmp(&(a.totals.nanoseconds, &b.line)));
    for work in only {
        let is_compiled = work.line.as_ref().is_some_and(|line| model.runs_compiled(line));
        let view = memlab_trace::LineView { line: work.line.clone(), is_compiled, ..Default::default() };
        rows.push(row(view, Some(work)));
    }
    rows
}

/// Layers with memory, then layers with GPU work only, and last the row outside any layer.
fn layers(model: &Model, device: i32, work: Option<&GpuWorkView>) -> Vec<Row<Layer, LayerFigures>> {
    let mut views = model.layers(device);
    let holding: HashSet<(u32, Option<Arc<str>>)> = views.iter().map(|view| (view.root, view.name.clone())).collect();
    let mut works: HashMap<(u32, Option<Arc<str>>), &LayerWorkView> = HashMap::new();
    for work in work.into_iter().flat_map(|work| &work.layers) {
        let key = (work.root, work.name.clone());
        if !holding.contains(&key) {
            views.push(work.to_layer());
        }
        works.insert(key, work);
    }
    let row = |view: memlab_trace::LayerView| {
        let figure = |figure: fn(&LayerWorkView) -> u64| {
            work.map(|_| works.get(&(view.root, view.name.clone())).map_or(0, |work| figure(work)))
        };
        let gpu_time_ns = figure(|work| work.totals.nanoseconds);
        let backward_gpu_time_ns = figure(|work| work.backward_nanoseconds);
        let figures = LayerFigures {
            live_bytes_at_peak: view.live_bytes_at_peak,
            live_bytes_at_end: view.live_bytes,
            forward_bytes: view.forward_bytes,
            backward_bytes: view.backward_bytes,
            parameter_bytes: view.parameter_bytes,
            gradient_bytes: view.gradient_bytes,
            optimizer_state_bytes: view.optimizer_state_bytes,
            buffer_bytes: view.buffer_bytes,
            activation_bytes: view.activation_bytes,
            gpu_time_ns,
            backward_gpu_time_ns,
        };
        Row { device, of: LayerName::from(view).into(), figures }
    };
    views.sort_by_key(|view| view.name.is_none());
    views.into_iter().map(row).collect()
}

fn ranges(model: &Model, device: i32) -> Vec<Row<Range, RangeFigures>> {
    let row = |view: memlab_trace::RangeView| {
        let figures = RangeFigures {
            live_bytes_at_peak: view.live_bytes_at_peak,
            live_bytes_at_end: view.live_bytes,
            live_blocks_at_end: view.live_blocks,
            allocations: view.allocations,
            allocated_bytes: view.allocated_bytes,
        };
        Row { device, of: Range { path: view.path }, figures }
    };
    model.ranges(device).into_iter().map(row).collect()
}

fn categories(model: &Model, device: i32) -> Vec<CategoryRow> {
    let views = model.categories(device).into_iter();
    // These rare categories appear only if they hold memory: unclassified, older than memlab in the process, and
    // benchmarks of compilers.
    let rare = |category| matches!(category, Category::Other | Category::BeforeMemlab | Category::Benchmark);
    let views = views.filter(|view| !rare(view.category) || view.bytes > 0 || view.bytes_at_peak > 0);
    let row = |view: memlab_trace::CategoryView| CategoryRow {
        device,
        name: view.category.as_str(),
        bytes_at_peak: view.bytes_at_peak,
        bytes_at_end: view.bytes,
    };
    views.map(row).collect()
}

fn growth(model: &Model, device: i32, resolver: &LineResolver) -> Vec<GrowthRow> {
    let row = |view: memlab_trace::GrowthView| GrowthRow {
        device,
        line: resolver.of(view.line.as_deref()),
        from_steps_ended: view.from_step,
        to_steps_ended: view.to_step,
        from_bytes: view.from_bytes,
        to_bytes: view.to_bytes,
        bytes_per_step: view.bytes_per_step,
        is_steady: view.is_steady,
    };
    model.growth(device).into_iter().map(row).collect()
}

fn ooms(model: &Model, resolver: &LineResolver) -> Vec<OomRow> {
    let held_by = |view: &memlab_trace::OomView| {
        let row =
            |(line, bytes): &(Option<Arc<Line>>, u64)| HeldByLine { line: resolver.of(line.as_deref()), bytes: *bytes };
        view.lines.iter().map(row).collect()
    };
    let row = |(view, in_libraries): (memlab_trace::OomView, memlab_trace::OomView)| OomRow {
        device: view.device,
        requested_bytes: view.requested_bytes,
        line: resolver.of(view.line.as_deref()),
        library_line: resolver.of(in_libraries.line.as_deref()),
        layer: view.layer.clone(),
        allocated_bytes: view.allocated_bytes,
        reserved_bytes: view.reserved_bytes,
        largest_free_block_bytes: view.largest_free_block_bytes,
        free_bytes_in_segments: view.free_bytes,
        free_bytes_in_private_pools: view.private_free_bytes,
        used_bytes: view.used_bytes,
        used_is_known: view.used_is_known,
        total_bytes: view.total_bytes,
        limit_bytes: view.limit_bytes,
        host_bytes: view.host_bytes,
        other_processes: others(&view.others),
        time_ns: view.time,
        steps_ended: view.step,
        stack: model.frames(view.stack).iter().map(|frame| resolver.of(Some(frame))).collect(),
        held_by_lines: held_by(&view),
        held_by_library_lines: held_by(&in_libraries),
        held_by_layers: view.layers.into_iter().map(|(name, bytes)| HeldBy { name, bytes }).collect(),
        held_by_categories: view
            .categories
            .iter()
            .map(|(category, bytes)| HeldBy { name: Some(category.as_str().into()), bytes: *bytes })
            .collect(),
    };
    std::iter::zip(model.ooms_in(Scope::Users), model.ooms_in(Scope::Libraries)).map(row).collect()
}

fn private_pools(model: &Model, device: i32, resolver: &LineResolver) -> Vec<PrivatePoolRow> {
    let row = |view: memlab_trace::PrivatePoolView| PrivatePoolRow {
        device,
        id: view.id,
        graphs: view.graphs,
        graphs_captured: view.captured,
        segments: view.segments,
        reserved_bytes: view.reserved_bytes,
        free_bytes: view.free_bytes,
        captured_by: view.stacks.iter().map(|stack| resolver.of(model.line_of(*stack).as_deref())).collect(),
    };
    model.private_pools(device).into_iter().map(row).collect()
}

fn driver(model: &Model, device: i32) -> Vec<Row<DriverCall, DriverFigures>> {
    let row = |view: memlab_trace::DriverView| {
        let figures =
            DriverFigures { live_bytes_at_end: view.live_bytes, live_allocations_at_end: view.live_allocations };
        Row { device, of: view.into(), figures }
    };
    model.driver_memory(device).into_iter().map(row).collect()
}
