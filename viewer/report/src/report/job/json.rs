//! The report on a job as JSON: a contract with scripts. Keys are added, never renamed or removed.

use std::io::{self, Write};
use std::sync::Arc;

use memlab_job::{
    ComparedMemory, DeviceSummary, Difference, Figure, FirstOom, ForeignContext, Job, Layer, MemoryAtOom, RankSummary,
};
use memlab_trace::{Category, Line};
use serde::Serialize;

use super::findings::{JobFinding, findings};
use super::names::RankNames;
use memlab_base::json;
use memlab_base::json::parts::{CodeLine, LineResolver};
use memlab_base::parallel::Parallel;

#[derive(Serialize)]
struct Report {
    job: JobRow,
    findings: Vec<FindingRow>,
    ranks: Vec<RankRow>,
    figures: Vec<FigureRow>,
    differences: Vec<DifferenceRow>,
    out_of_memory: Option<OomRow>,
    stray_contexts: Vec<ForeignContextRow>,
    unreadable: Vec<UnreadableRow>,
}

#[derive(Serialize)]
struct JobRow {
    command: Vec<String>,
    directory: String,
    world_size: Option<u32>,
    start_unix_ns: u64,
    duration_ns: u64,
    hosts: Vec<HostRow>,
    /// Number of ranks without a trace, and the first of them.
    missing_ranks: u64,
    first_missing_ranks: Vec<u32>,
    /// Source of the lines in `differences` and `growth`: `lines` or `library_lines`.
    lines_shown: &'static str,
}

#[derive(Serialize)]
struct HostRow {
    host: String,
    /// Lead of its clock over the first host's clock, from the steps that ranks ended together.
    clock_ahead_ns: i64,
}

#[derive(Serialize)]
struct FindingRow {
    /// `out_of_memory`, `leak`, `difference`, `behind` or `stray_context`.
    kind: &'static str,
    ranks: Vec<u32>,
    bytes: u64,
    /// Description, followed by the next action.
    what: String,
    next: String,
}

#[derive(Serialize)]
struct RankRow {
    rank: u32,
    local_rank: Option<u32>,
    host: String,
    pid: u32,
    trace: String,
    /// Exit code; null if a signal ended the process or its end is not known.
    exit: Option<i32>,
    signal: Option<i32>,
    start_unix_ns: u64,
    duration_ns: u64,
    events: u64,
    missing_events: u64,
    steps: u64,
    ooms: u64,
    #[serde(flatten)]
    parallel: Parallel,
    /// The device that it fills most, whose figures are compared.
    device: Option<i32>,
    devices: Vec<DeviceRow>,
}

#[derive(Serialize)]
struct DeviceRow {
    index: i32,
    name: String,
    bus_id: Option<String>,
    total_bytes: u64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    peak_used_bytes: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    used_bytes: u64,
    peak_time_ns: u64,
    peak_steps_ended: u64,
    used_bytes_at_peak: u64,
    context_bytes: u64,
    /// At the peak; they sum to `used_bytes_at_peak` plus the memory on the host.
    categories: Vec<CategoryRow>,
    /// Lines that hold more after every step.
    growth: Vec<GrowthRow>,
    growth_bytes: u64,
    growth_bytes_per_step: f64,
    /// Maximum allocated bytes in equal parts of the duration.
    peaks_over_time: Vec<u64>,
}

#[derive(Serialize)]
struct CategoryRow {
    name: &'static str,
    bytes_at_peak: u64,
}

#[derive(Serialize)]
struct GrowthRow {
    #[serde(flatten)]
    line: CodeLine,
    from_bytes: u64,
    to_bytes: u64,
    bytes_per_step: f64,
}

#[derive(Serialize)]
struct FigureRow {
    name: &'static str,
    least: u64,
    least_rank: u32,
    median: u64,
    most: u64,
    most_rank: u32,
}

#[derive(Serialize)]
struct DifferenceRow {
    /// `peak`, `category`, `line` or `layer`.
    kind: &'static str,
    /// Name of a category or a layer; null: outside any layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Option<String>>,
    #[serde(flatten)]
    line: Option<CodeLine>,
    median_bytes: u64,
    ranks: Vec<RankDifference>,
}

#[derive(Serialize)]
struct RankDifference {
    rank: u32,
    bytes: u64,
    /// Difference from the median; negative: it holds less.
    difference_bytes: i64,
}

#[derive(Serialize)]
struct OomRow {
    rank: u32,
    device: i32,
    #[serde(flatten)]
    line: CodeLine,
    requested_bytes: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    used_bytes: u64,
    total_bytes: u64,
    limit_bytes: Option<u64>,
    time_ns: u64,
    /// By the clock of the first host.
    unix_ns: u64,
    steps_ended: u64,
    /// All ranks that ran out of memory, in order of time.
    ranks: Vec<u32>,
    /// Memory of the other ranks at that moment.
    others: Vec<RankAtOomRow>,
}

#[derive(Serialize)]
struct RankAtOomRow {
    rank: u32,
    /// `running`, `not_begun`, `ended` or `not_kept` (the trace no longer has that moment).
    state: &'static str,
    allocated_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    used_bytes: Option<u64>,
    steps_ended: Option<u64>,
}

#[derive(Serialize)]
struct ForeignContextRow {
    rank: u32,
    /// Rank that owns the device; null: none.
    owner: Option<u32>,
    host: String,
    device: i32,
    bytes: u64,
    /// Line that allocated most there; all null: none did.
    #[serde(flatten)]
    line: CodeLine,
}

#[derive(Serialize)]
struct UnreadableRow {
    trace: String,
    why: String,
}

/// Writes the report of a job as JSON. Control characters in its texts are escaped.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_job_json(out: &mut impl Write, job: &Job) -> io::Result<()> {
    json::write_pretty(out, &report(job))
}

fn report(job: &Job) -> Report {
    let names = RankNames::new(job);
    let directory = job.ranks.first().map_or("", |rank| rank.header.directory.as_str());
    let resolver = LineResolver::in_directory(directory);
    Report {
        job: job_row(job),
        findings: findings(&names).into_iter().map(|finding| finding_row(&names, finding)).collect(),
        ranks: job.ranks.iter().map(|rank| rank_row(job, rank, &resolver)).collect(),
        figures: job.figures.iter().map(|figure| figure_row(&names, figure)).collect(),
        differences: job.differences.iter().map(|row| difference_row(&names, row, &resolver)).collect(),
        out_of_memory: job.first_oom.as_ref().map(|first| oom_row(&names, first, &resolver)),
        stray_contexts: job.stray_contexts.iter().map(|stray| foreign_context_row(&names, stray, &resolver)).collect(),
        unreadable: job
            .unreadable
            .iter()
            .map(|failed| UnreadableRow { trace: failed.path.display().to_string(), why: failed.why.clone() })
            .collect(),
    }
}

fn job_row(job: &Job) -> JobRow {
    let header = job.ranks.first().map(|rank| rank.header.clone()).unwrap_or_default();
    let (begin, end) = job.span_unix_ns();
    let host = |clock: &memlab_job::HostClock| HostRow { host: clock.host.clone(), clock_ahead_ns: clock.ahead_ns };
    JobRow {
        command: header.command,
        directory: header.directory,
        world_size: header.world_size,
        start_unix_ns: begin,
        duration_ns: end - begin,
        hosts: job.clocks.iter().map(host).collect(),
        missing_ranks: job.missing.count,
        first_missing_ranks: job.missing.first.clone(),
        lines_shown: job.scope.as_str(),
    }
}

fn finding_row(names: &RankNames<'_>, finding: JobFinding) -> FindingRow {
    FindingRow {
        kind: finding.kind,
        ranks: finding.ranks.iter().map(|at| names.rank(*at)).collect(),
        bytes: finding.bytes,
        what: finding.what.text(),
        next: finding.next,
    }
}

fn rank_row(job: &Job, rank: &RankSummary, resolver: &LineResolver) -> RankRow {
    RankRow {
        rank: rank.rank(),
        local_rank: rank.header.local_rank,
        host: rank.header.host.clone(),
        pid: rank.header.pid,
        trace: rank.path.display().to_string(),
        exit: rank.end.and_then(|end| end.code),
        signal: rank.end.and_then(|end| end.signal),
        start_unix_ns: rank.header.start_unix_ns,
        duration_ns: rank.duration,
        events: rank.events,
        missing_events: rank.lost_events,
        steps: rank.steps_ended,
        ooms: rank.oom_count,
        parallel: Parallel::of(&rank.mesh, &rank.stages),
        device: rank.own_device().map(|device| device.view.index),
        devices: rank.devices.iter().map(|device| device_row(job, device, resolver)).collect(),
    }
}

fn device_row(job: &Job, device: &DeviceSummary, resolver: &LineResolver) -> DeviceRow {
    let view = &device.view;
    let (growth_bytes, growth_bytes_per_step) = device.growth(job.scope);
    let category = |(category, bytes_at_peak): (Category, u64)| CategoryRow { name: category.as_str(), bytes_at_peak };
    let growth = |growth: &memlab_trace::GrowthView| GrowthRow {
        line: resolver.of(growth.line.as_deref()),
        from_bytes: growth.from_bytes,
        to_bytes: growth.to_bytes,
        bytes_per_step: growth.bytes_per_step,
    };
    DeviceRow {
        index: view.index,
        name: view.name.clone(),
        bus_id: view.bus_id.clone(),
        total_bytes: view.total_bytes,
        peak_allocated_bytes: view.peak_allocated_bytes,
        peak_reserved_bytes: view.peak_reserved_bytes,
        peak_used_bytes: view.peak_used_bytes,
        allocated_bytes: view.allocated_bytes,
        reserved_bytes: view.reserved_bytes,
        used_bytes: view.used_bytes,
        peak_time_ns: view.peak_time,
        peak_steps_ended: view.peak_step,
        used_bytes_at_peak: view.used_bytes_at_peak,
        context_bytes: device.context_bytes,
        categories: std::iter::zip(Category::ALL, device.categories).map(category).collect(),
        growth: device.growth[job.scope].iter().map(growth).collect(),
        growth_bytes,
        growth_bytes_per_step,
        peaks_over_time: device.strip.clone(),
    }
}

fn figure_row(names: &RankNames<'_>, figure: &Figure) -> FigureRow {
    FigureRow {
        name: figure.kind.as_str(),
        least: figure.least.value,
        least_rank: names.rank(figure.least.at),
        median: figure.median,
        most: figure.most.value,
        most_rank: names.rank(figure.most.at),
    }
}

fn difference_row(names: &RankNames<'_>, difference: &Difference, resolver: &LineResolver) -> DifferenceRow {
    let median = difference.median_bytes;
    let rank = |rank: &memlab_job::RankBytes| RankDifference {
        rank: names.rank(rank.at),
        bytes: rank.bytes,
        difference_bytes: memlab_units::format::signed_difference(rank.bytes, median),
    };
    let layer = |layer: &Layer| layer.name.as_ref().map(|name| name.to_string());
    let (name, line) = match &difference.held {
        ComparedMemory::Peak => (None, None),
        ComparedMemory::Category(category) => (Some(Some(category.as_str().to_owned())), None),
        ComparedMemory::Layer(held) => (Some(layer(held)), None),
        ComparedMemory::Line(line) => (None, Some(place(resolver, line.as_ref()))),
    };
    DifferenceRow {
        kind: names.held(&difference.held).0,
        name,
        line,
        median_bytes: median,
        ranks: difference.ranks.iter().map(rank).collect(),
    }
}

fn place(resolver: &LineResolver, line: Option<&Arc<Line>>) -> CodeLine {
    resolver.of(line.map(Arc::as_ref))
}

fn oom_row(names: &RankNames<'_>, first: &FirstOom, resolver: &LineResolver) -> OomRow {
    let oom = &first.oom;
    OomRow {
        rank: names.rank(first.at),
        device: oom.device,
        line: place(resolver, oom.line.as_ref()),
        requested_bytes: oom.requested_bytes,
        allocated_bytes: oom.allocated_bytes,
        reserved_bytes: oom.reserved_bytes,
        used_bytes: oom.used_bytes,
        total_bytes: oom.total_bytes,
        limit_bytes: oom.limit_bytes,
        time_ns: oom.time,
        unix_ns: first.unix_ns,
        steps_ended: oom.step,
        ranks: first.ranks.iter().map(|at| names.rank(*at)).collect(),
        others: first.others.iter().map(|rank| rank_at_oom_row(names.rank(rank.at), &rank.held)).collect(),
    }
}

fn rank_at_oom_row(rank: u32, held: &MemoryAtOom) -> RankAtOomRow {
    let nothing = |state| RankAtOomRow {
        rank,
        state,
        allocated_bytes: None,
        reserved_bytes: None,
        used_bytes: None,
        steps_ended: None,
    };
    match held {
        MemoryAtOom::NotBegun => nothing("not_begun"),
        MemoryAtOom::Ended => nothing("ended"),
        MemoryAtOom::NotKept => nothing("not_kept"),
        MemoryAtOom::Bytes { allocated_bytes, reserved_bytes, used_bytes, steps_ended, .. } => RankAtOomRow {
            rank,
            state: "running",
            allocated_bytes: Some(*allocated_bytes),
            reserved_bytes: Some(*reserved_bytes),
            used_bytes: Some(*used_bytes),
            steps_ended: Some(*steps_ended),
        },
    }
}

fn foreign_context_row(names: &RankNames<'_>, stray: &ForeignContext, resolver: &LineResolver) -> ForeignContextRow {
    ForeignContextRow {
        rank: names.rank(stray.at),
        owner: stray.owner.map(|owner| names.rank(owner)),
        host: names.job.ranks[stray.at].header.host.clone(),
        device: stray.device,
        bytes: stray.bytes,
        line: place(resolver, stray.line.as_ref()),
    }
}
