//! Findings on a job in a few sentences, most urgent first.

use std::collections::BTreeMap;

use memlab_job::{ComparedMemory, FigureKind, FirstOom, Job, RankSummary};

use super::names::RankNames;
use memlab_base::findings::Words;
use memlab_base::text::typed_path;
use memlab_units::format::{self, size};

/// Reports growth from this fraction of a rank's peak.
const GROWTH: u64 = 100;

/// Number of named lines of a difference.
const LINES: usize = 2;

/// One finding.
#[derive(Clone, Debug)]
pub struct JobFinding {
    /// Name in JSON reports.
    pub kind: &'static str,
    /// Positions of the ranks concerned.
    pub ranks: Vec<usize>,
    /// Bytes concerned.
    pub bytes: u64,
    /// Description.
    pub what: Words,
    /// Next action.
    pub next: String,
}

/// All findings on a job, most urgent first.
pub(super) fn findings(names: &RankNames<'_>) -> Vec<JobFinding> {
    let job = names.job;
    let first = job.first_oom.as_ref().map(|first| out_of_memory(names, first));
    let rest = [growth(names), more(names), less(names), behind(names)].into_iter().flatten();
    first.into_iter().chain(rest).chain(foreign_contexts(names)).collect()
}

/// All findings on a job, most urgent first.
pub fn job_findings(job: &Job) -> Vec<JobFinding> {
    findings(&RankNames::new(job))
}

/// Position of the rank to look at first.
pub(super) fn most_telling(job: &Job, findings: &[JobFinding]) -> Option<usize> {
    let found = findings.iter().find_map(|finding| finding.ranks.first().copied());
    found.or_else(|| job.figure(FigureKind::Allocated).map(|figure| figure.most.at))
}

/// Position of a rank with the median peak.
pub(super) fn typical(job: &Job) -> Option<usize> {
    let median = job.figure(FigureKind::Allocated)?.median;
    job.ranks.iter().position(|rank| FigureKind::Allocated.of(rank, job.scope) == Some(median))
}

/// Position of a rank with this peak, and with the same stages as the rank `at`.
fn typical_of(job: &Job, at: usize, median: u64) -> Option<usize> {
    let has_median = |rank: &RankSummary| {
        rank.stages == job.ranks[at].stages && FigureKind::Allocated.of(rank, job.scope) == Some(median)
    };
    job.ranks.iter().position(has_median)
}

fn report_of(rank: &RankSummary) -> String {
    format!("memlab report {}", typed_path(&rank.path))
}

fn out_of_memory(names: &RankNames<'_>, first: &FirstOom) -> JobFinding {
    let (job, oom) = (names.job, &first.oom);
    let rank = &job.ranks[first.at];
    let mut what = Words::strong("Out of memory").and(format!(
        ": rank {} first, after {}, ",
        rank.rank(),
        format::duration(oom.time)
    ));
    if rank.steps_ended > 0 {
        what = what.and(format!("{}: ", format::step_reached(oom.step)));
    }
    what = what.and_code(names.line(oom.line.as_ref())).and(format!(
        " requested {} with {} allocated",
        size(oom.requested_bytes),
        size(oom.allocated_bytes)
    ));
    what = match (oom.limit_bytes, oom.total_bytes) {
        (Some(limit), _) => what.and(format!(" under a limit of {}.", size(limit))),
        (None, 0) => what.and("."),
        (None, total) => what.and(format!(" on a device of {}.", size(total))),
    };
    let held = first.allocated_by_others();
    if let Some([least, median, most]) = held {
        let (least, median, most) = (size(least), size(median), size(most));
        what = what.and(if least == most {
            format!(" At that moment each of the others held {least}.")
        } else {
            format!(" At that moment the others held {least} to {most}, their median {median}.")
        });
    }
    if first.ranks.len() > 1 {
        what = what
            .and(format!(" {} ran out of memory too.", capitalized(&names.ranks(first.ranks[1..].iter().copied()))));
    }
    let is_alone =
        held.is_some_and(|[_, median, _]| oom.allocated_bytes.saturating_sub(median) > oom.allocated_bytes / 10);
    let next = if held.is_none() {
        format!("`{}` shows its memory at that moment.", report_of(rank))
    } else if is_alone {
        format!("It held more than the others: `{}` shows its memory.", report_of(rank))
    } else {
        format!(
            "The others were as full: all ranks must use less memory. `memlab advise {}` suggests changes.",
            typed_path(&rank.path)
        )
    };
    JobFinding { kind: "out_of_memory", ranks: vec![first.at], bytes: oom.requested_bytes, what, next }
}

/// Finding on ranks that hold more after every step.
fn growth(names: &RankNames<'_>) -> Option<JobFinding> {
    let job = names.job;
    let mut grown: Vec<(usize, u64, f64)> = Vec::new();
    for (at, rank) in job.ranks.iter().enumerate() {
        let Some(device) = rank.own_device() else { continue };
        let (bytes, per_step) = device.growth(job.scope);
        if bytes > 0 && bytes >= device.view.peak_allocated_bytes / GROWTH {
            grown.push((at, bytes, per_step));
        }
    }
    grown.sort_by_key(|(at, bytes, _)| (std::cmp::Reverse(*bytes), *at));
    let &(most, bytes, per_step) = grown.first()?;
    let ranks: Vec<usize> = grown.iter().map(|(at, ..)| *at).collect();
    let whose = if ranks.len() > 1 { format!("; most on rank {}, ", names.rank(most)) } else { ", ".to_owned() };
    let line = job.ranks[most].own_device()?.growth[job.scope].first()?;
    let what = Words::strong("Growth")
        .and(format!(
            " on {}{whose}where lines hold {} more than after warm-up, {} a step, mostly ",
            names.ranks(ranks.iter().copied()),
            size(bytes),
            size(per_step as u64)
        ))
        .and_code(names.line(line.line.as_ref()))
        .and(".");
    let next = format!("`{}` shows the cause.", report_of(&job.ranks[most]));
    Some(JobFinding { kind: "leak", ranks, bytes, what, next })
}

/// Finding on ranks with a higher peak than the others.
fn more(names: &RankNames<'_>) -> Option<JobFinding> {
    difference(names, true)
}

/// Finding on ranks with a lower peak than the others.
fn less(names: &RankNames<'_>) -> Option<JobFinding> {
    difference(names, false)
}

fn difference(names: &RankNames<'_>, is_more: bool) -> Option<JobFinding> {
    let job = names.job;
    let peak = job.differences.iter().find(|found| found.held == ComparedMemory::Peak && found.is_more() == is_more)?;
    let (most, word) = (peak.ranks.first()?, if is_more { "more" } else { "less" });
    let among = if job.has_stages { " of its stage" } else { "" };
    let upto = if peak.ranks.len() > 1 { "up to " } else { "" };
    let mut what = Words::strong("Imbalance").and(format!(
        ": {} held {upto}{} {word} than the median rank{among} at the peak ({}; median {})",
        names.ranks(peak.ranks.iter().map(|rank| rank.at)),
        size(peak.bytes()),
        size(most.bytes),
        size(peak.median_bytes)
    ));
    let lines = job.differences.iter().filter(|found| {
        matches!(found.held, ComparedMemory::Line(_))
            && found.is_more() == is_more
            && found.ranks.iter().any(|rank| rank.at == most.at)
    });
    for (index, line) in lines.take(LINES).enumerate() {
        let bytes =
            line.ranks.iter().find(|rank| rank.at == most.at).map_or(0, |rank| rank.bytes.abs_diff(line.median_bytes));
        what = what
            .and(if index == 0 { "; " } else { ", " })
            .and_code(names.held(&line.held).1)
            .and(format!(" {} {word}", size(bytes)));
    }
    let typical = typical_of(job, most.at, peak.median_bytes).filter(|typical| *typical != most.at)?;
    let [of_typical, of_rank] = [typical, most.at].map(|at| typed_path(&job.ranks[at].path));
    let next = format!("`memlab diff {of_typical} {of_rank}` compares it with rank {}.", names.rank(typical));
    let ranks = peak.ranks.iter().map(|rank| rank.at).collect();
    Some(JobFinding { kind: "difference", ranks, bytes: peak.bytes(), what: what.and("."), next })
}

/// Finding on ranks that ended fewer steps.
fn behind(names: &RankNames<'_>) -> Option<JobFinding> {
    let steps = names.job.figure(FigureKind::Steps)?;
    // When a job is killed, ranks are a step apart.
    if steps.most.value - steps.least.value < 2 {
        return None;
    }
    let what = Words::strong("Behind").and(format!(
        ": rank {} ended {}, rank {} ended {}.",
        names.rank(steps.least.at),
        format::counted(steps.least.value, "step"),
        names.rank(steps.most.at),
        format::grouped(steps.most.value)
    ));
    let next = format!("`{}` shows how it ended.", report_of(&names.job.ranks[steps.least.at]));
    Some(JobFinding { kind: "behind", ranks: vec![steps.least.at], bytes: 0, what, next })
}

/// Findings on contexts on devices of other ranks, one for each such device.
fn foreign_contexts(names: &RankNames<'_>) -> Vec<JobFinding> {
    let mut by_device: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for context in &names.job.stray_contexts {
        let host = names.job.ranks[context.at].header.host.as_str();
        by_device.entry((host, context.owner, context.device)).or_default().push(context);
    }
    let finding =
        |((host, owner, device), contexts): ((&str, Option<usize>, i32), Vec<&memlab_job::ForeignContext>)| {
            let bytes = contexts.iter().fold(0_u64, |sum, context| sum.saturating_add(context.bytes));
            let ranks: Vec<usize> = contexts.iter().map(|context| context.at).collect();
            let place = match owner {
                Some(owner) => format!("cuda:{device} of {host}, the device of rank {}", names.rank(owner)),
                None => format!("cuda:{device} of {host}, which no rank uses"),
            };
            let mut what = Words::strong("Stray contexts").and(format!(
                ": {} held {} on {place}",
                names.ranks(ranks.iter().copied()),
                size(bytes)
            ));
            if let Some(line) = contexts.iter().find_map(|context| context.line.as_ref()) {
                what = what.and("; allocated there by ").and_code(names.line(Some(line)));
            }
            let next =
                "Call torch.cuda.set_device(LOCAL_RANK) before any GPU use, and torch.load(…, map_location=\"cpu\").";
            JobFinding { kind: "stray_context", ranks, bytes, what: what.and("."), next: next.to_owned() }
        };
    let mut found: Vec<JobFinding> = by_device.into_iter().map(finding).collect();
    found.sort_by_key(|finding| std::cmp::Reverse(finding.bytes));
    found
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
