//! The report on a job as text, within one screen.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use memlab_job::{Difference, FigureKind, FirstOom, Job, MemoryAtOom, RankSummary};
use memlab_trace::record::MeshDimension;

use super::findings::{findings, most_telling, typical};
use super::names::{RankNames, ranges};
use crate::report::sections::section;
use crate::report::text::{Part, write_parts};
use memlab_base::signals;
use memlab_base::table::Table;
use memlab_base::text::{Style, clean, short_command, typed_path, wrapped};
use memlab_units::format::{self, size};

/// Bars of ranks, from the least to the most.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Maximum number of ranks in a row of bars.
const ROW: usize = 64;

/// Maximum number of differing categories, lines and layers shown, each.
const MAX_ROWS: usize = 5;

/// Maximum number of pipeline stages shown with their ranks.
const STAGES: usize = 8;

/// Maximum number of ranks shown at the first out-of-memory error.
const MAX_OOM_RANKS: usize = 4;

/// Writes the report of a job. No character in it controls the terminal, except the colours.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_job_text(out: &mut impl Write, job: &Job, style: Style) -> io::Result<()> {
    let names = RankNames::new(job);
    let columns = style.columns;
    let parts = vec![
        title(&names),
        look_at(&names, columns),
        bars(&names, columns),
        figures(&names, columns),
        differences(&names, columns),
        job.first_oom.as_ref().map(|first| memory_at_oom(&names, first, columns)).unwrap_or_default(),
        next(&names),
        notes(&names),
    ];
    write_parts(out, parts.into_iter().map(Part::from).collect(), style)
}

/// Description of the job, and the endings of its ranks.
fn title(names: &RankNames<'_>) -> Vec<String> {
    let job = names.job;
    let command = job.ranks.first().map_or_else(String::new, |rank| short_command(&rank.header.command));
    let (begin, end) = job.span_unix_ns();
    let mut facts = vec![ranks_and_hosts(job)];
    facts.extend(devices(job));
    facts.push(format::duration(end - begin));
    if let Some(steps) = job.figure(FigureKind::Steps) {
        facts.push(format::counted(steps.most.value, "step"));
    }
    let mut lines = vec![format!("memlab report: {command}"), format!("  {}", facts.join(" · "))];
    lines.extend(parallel(names).map(|parallel| format!("  {parallel}")));
    lines.push(format!("  {}", endings(names)));
    lines
}

/// Parallelism of the ranks: `mesh dp=4 × tp=2 · 2 stages of a pipeline: 0 on ranks 0–3, 1 on ranks 4–7`.
pub(super) fn parallel(names: &RankNames<'_>) -> Option<String> {
    let ranks = &names.job.ranks;
    let mut facts = Vec::new();
    let dimension = |of: &MeshDimension| format!("{}={}", clean(&of.name), of.size);
    // Some of the ranks may have a separate mesh.
    if let Some(mesh) =
        ranks.iter().map(|rank| &rank.mesh).max_by_key(|mesh| mesh.len()).filter(|mesh| !mesh.is_empty())
    {
        facts.push(format!("mesh {}", mesh.iter().map(dimension).collect::<Vec<_>>().join(" × ")));
    }
    let count = ranks.iter().map(|rank| rank.stages.of).max().unwrap_or(0);
    if count > 0 {
        let mut holders: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for rank in ranks {
            rank.stages.stages.iter().for_each(|stage| holders.entry(*stage).or_default().push(rank.rank()));
        }
        let on = |(stage, ranks): (&u32, &Vec<u32>)| {
            format!("{stage} on {} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, ranges(ranks.clone()))
        };
        let mut places: Vec<String> = holders.iter().take(STAGES).map(on).collect();
        if holders.len() > STAGES {
            places.push(format!("{} more", holders.len() - STAGES));
        }
        facts.push(format!("{count} stages of a pipeline: {}", places.join(", ")));
    }
    (!facts.is_empty()).then(|| facts.join(" · "))
}

/// `4 ranks on gpu1`, `32 ranks on 4 hosts`.
pub(super) fn ranks_and_hosts(job: &Job) -> String {
    let ranks = format::counted(job.ranks.len() as u64, "rank");
    match &*job.clocks {
        [one] => format!("{ranks} on {}", clean(&one.host)),
        several => format!("{ranks} on {} hosts", format::grouped(several.len() as u64)),
    }
}

/// The device of each rank, if all are alike.
pub(super) fn devices(job: &Job) -> Option<String> {
    let own = job.ranks.iter().filter_map(RankSummary::own_device);
    let kinds: BTreeSet<(&str, u64)> = own.map(|device| (device.view.name.as_str(), device.view.total_bytes)).collect();
    let (name, bytes) = kinds.iter().next().filter(|_| kinds.len() == 1)?;
    (!name.is_empty()).then(|| format!("{}, {}", clean(name), size(*bytes)))
}

/// Endings of the ranks: `all ended with exit code 0`.
pub(super) fn endings(names: &RankNames<'_>) -> String {
    let mut ways: BTreeMap<(bool, String), Vec<usize>> = BTreeMap::new();
    for (at, rank) in names.job.ranks.iter().enumerate() {
        let way = match rank.end.map(|end| (end.code, end.signal)) {
            None => "no end was recorded (running, or killed)".to_owned(),
            Some((_, Some(signal))) => signals::describe(signal),
            Some((Some(code), None)) => format!("exit code {code}"),
            Some((None, None)) => "ended".to_owned(),
        };
        let is_well = rank.end.is_some_and(|end| end.code == Some(0) && end.signal.is_none());
        ways.entry((is_well, way)).or_default().push(at);
    }
    let ways: Vec<String> =
        ways.into_iter().map(|((_, way), ranks)| format!("{}: {way}", names.ranks(ranks))).collect();
    ways.join(" · ")
}

fn look_at(names: &RankNames<'_>, columns: usize) -> Vec<String> {
    let mut lines = vec!["Findings".to_owned()];
    let found = findings(names);
    for finding in &found {
        lines.extend(wrapped("  !", &clean(&finding.what.text()), columns));
        lines.extend(wrapped("    →", &clean(&finding.next), columns));
    }
    if found.is_empty() {
        lines.push("  No imbalance, no growth, no errors.".to_owned());
    }
    lines
}

/// A bar for each rank, with the height of its peak.
fn bars(names: &RankNames<'_>, columns: usize) -> Vec<String> {
    let job = names.job;
    let Some(most) = job.figure(FigureKind::Allocated).map(|figure| figure.most.value) else { return Vec::new() };
    let bar = |rank: &RankSummary| match FigureKind::Allocated.of(rank, job.scope) {
        None | Some(0) => ' ',
        Some(bytes) => BARS[(u128::from(bytes) * 8).div_ceil(u128::from(most)).clamp(1, 8) as usize - 1],
    };
    let digits = job.ranks.iter().map(|rank| rank.rank().to_string().len()).max().unwrap_or(1);
    let across = columns.saturating_sub(digits + 4).clamp(1, ROW);
    let mut lines = vec![format!("Peaks of the ranks, █ is {}", size(most))];
    for row in job.ranks.chunks(across) {
        lines.push(format!("  {:>digits$}  {}", row[0].rank(), row.iter().map(bar).collect::<String>()));
    }
    lines
}

fn figures(names: &RankNames<'_>, columns: usize) -> Vec<String> {
    let job = names.job;
    let mut table = Table::new(&["least", "rank", "median", "most", "rank", "of each rank's fullest device"]);
    for figure in &job.figures {
        let value = |value: u64| if figure.kind == FigureKind::Steps { format::grouped(value) } else { size(value) };
        let is_same = figure.least.value == figure.most.value;
        let rank = |at: usize| if is_same { "all".to_owned() } else { names.rank(at).to_string() };
        table.row(vec![
            value(figure.least.value),
            rank(figure.least.at),
            value(figure.median),
            value(figure.most.value),
            rank(figure.most.at),
            figure_name(figure.kind).to_owned(),
        ]);
    }
    section("Ranks compared", &table, None, columns)
}

/// Name of a figure.
pub(super) fn figure_name(kind: FigureKind) -> &'static str {
    match kind {
        FigureKind::Allocated => "peak allocated",
        FigureKind::Reserved => "peak reserved",
        FigureKind::Used => "peak in use, with context and others",
        FigureKind::Context => "CUDA context",
        FigureKind::AtEnd => "allocated at the end",
        FigureKind::GrowthPerStep => "growth a step",
        FigureKind::Steps => "steps",
    }
}

fn differences(names: &RankNames<'_>, columns: usize) -> Vec<String> {
    let mut table = Table::new(&["difference", "median", "rank", "", "what"]);
    let kind = |difference: &Difference| names.held(&difference.held).0;
    let mut left_out = 0;
    let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
    for difference in &names.job.differences {
        let count = shown.entry(kind(difference)).or_default();
        *count += 1;
        if *count > MAX_ROWS {
            left_out += 1;
            continue;
        }
        let (kind, name) = names.held(&difference.held);
        table.row(vec![
            signed(difference),
            size(difference.median_bytes),
            ranges(difference.ranks.iter().map(|rank| names.rank(rank.at)).collect()),
            kind.to_owned(),
            name,
        ]);
    }
    let rest = (left_out > 0).then(|| format!("  and {left_out} more: see --json"));
    section(&format!("Differences from the median of the {}, each at its peak", compared(names)), &table, rest, columns)
}

/// Ranks that are compared with each other.
pub(super) fn compared(names: &RankNames<'_>) -> &'static str {
    if names.job.has_stages { "ranks at the same stages" } else { "ranks" }
}

/// `+24.0 MiB`, for the rank that differs most.
pub(super) fn signed(difference: &Difference) -> String {
    format!("{}{}", if difference.is_more() { '+' } else { '-' }, size(difference.bytes()))
}

/// Memory of ranks at the first out-of-memory error: the rank that failed, and those that held most.
fn memory_at_oom(names: &RankNames<'_>, first: &FirstOom, columns: usize) -> Vec<String> {
    let oom = &first.oom;
    let mut table = Table::new(&["rank", "allocated", "reserved", "in use", "at that moment"]);
    table.row(vec![
        names.rank(first.at).to_string(),
        size(oom.allocated_bytes),
        size(oom.reserved_bytes),
        size(oom.used_bytes),
        format!("requested {}", size(oom.requested_bytes)),
    ]);
    let mut others: Vec<_> = first.others.iter().collect();
    others.sort_by_key(|rank| match &rank.held {
        MemoryAtOom::Bytes { allocated_bytes, .. } => (0, std::cmp::Reverse(*allocated_bytes), rank.at),
        _ => (1, std::cmp::Reverse(0), rank.at),
    });
    for rank in others.iter().take(MAX_OOM_RANKS) {
        let [allocated, reserved, used, words] = then_row(&rank.held);
        table.row(vec![names.rank(rank.at).to_string(), allocated, reserved, used, words]);
    }
    let rest = others.len().checked_sub(MAX_OOM_RANKS).filter(|more| *more > 0);
    let rest = rest.map(|more| format!("  and {more} more: see --json"));
    section("When the first rank ran out of memory", &table, rest, columns)
}

/// Allocated, reserved and used bytes of a rank, and its progress.
pub(super) fn then_row(held: &MemoryAtOom) -> [String; 4] {
    let words = |words: &str| ["–", "–", "–", words].map(str::to_owned);
    match held {
        MemoryAtOom::NotBegun => words("had not begun"),
        MemoryAtOom::Ended => words("had ended"),
        MemoryAtOom::NotKept => words("its trace no longer contains that moment"),
        MemoryAtOom::Bytes { allocated_bytes, reserved_bytes, used_bytes, steps_ended, .. } => {
            let bytes = [*allocated_bytes, *reserved_bytes, *used_bytes].map(size);
            let [allocated, reserved, used] = bytes;
            [allocated, reserved, used, format::step_reached(*steps_ended)]
        }
    }
}

/// Commands for more details.
fn next(names: &RankNames<'_>) -> Vec<String> {
    let job = names.job;
    let Some(most) = most_telling(job, &findings(names)) else { return Vec::new() };
    let path = |at: usize| typed_path(&job.ranks[at].path);
    let mut lines = vec!["More".to_owned(), format!("  rank {}: memlab report {}", names.rank(most), path(most))];
    let is_comparable = |typical: &usize| *typical != most && job.ranks[*typical].stages == job.ranks[most].stages;
    if let Some(typical) = typical(job).filter(is_comparable) {
        let (a, b) = (names.rank(typical), names.rank(most));
        lines.push(format!("  rank {b} against rank {a}: memlab diff {} {}", path(typical), path(most)));
    }
    lines
}

/// Notes on the traces.
pub(super) fn notes(names: &RankNames<'_>) -> Vec<String> {
    let job = names.job;
    let mut lines = Vec::new();
    if job.missing.count > 0 {
        let more = job.missing.count - job.missing.first.len() as u64;
        let more = if more > 0 { format!(" and {} more", format::grouped(more)) } else { String::new() };
        let ranks = if job.missing.count == 1 { "rank" } else { "ranks" };
        lines.push(format!("Note: no trace of {ranks} {}{more}", ranges(job.missing.first.clone())));
    }
    for failed in job.unreadable.iter().take(MAX_ROWS) {
        lines.push(format!("Note: {}", clean(&failed.why)));
    }
    if job.unreadable.len() > MAX_ROWS {
        lines.push(format!("Note: {} more traces cannot be read: see --json", job.unreadable.len() - MAX_ROWS));
    }
    lines.extend(clocks(job));
    let lossy: Vec<usize> =
        (0..job.ranks.len()).filter(|at| job.ranks[*at].lost_events > 0 || job.ranks[*at].skipped_lines > 0).collect();
    if !lossy.is_empty() {
        lines.push(format!("Note: traces of {} miss events; see their own reports", names.ranks(lossy)));
    }
    lines
}

/// Hosts with corrected clocks.
fn clocks(job: &Job) -> Option<String> {
    let wrong = || job.clocks.iter().filter(|clock| clock.ahead_ns != 0);
    let most = wrong().max_by_key(|clock| clock.ahead_ns.unsigned_abs())?;
    let way = if most.ahead_ns > 0 { "ahead of" } else { "behind" };
    let (time, host, first) =
        (format::duration(most.ahead_ns.unsigned_abs()), clean(&most.host), clean(&job.clocks[0].host));
    let whose = match wrong().count() {
        1 => format!("the clock of {host} is {time} {way} that of {first}"),
        count => {
            format!("{count} hosts' clocks differ from that of {first}, most that of {host}, which is {time} {way} it")
        }
    };
    Some(format!("Note: {whose}, measured at steps that ranks ended together; times are corrected for it"))
}
