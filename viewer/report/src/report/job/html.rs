//! The report on a job as a page.

use std::io;

use maud::{Markup, html};
use memlab_job::{Difference, Figure, FigureKind, FirstOom, Job, MemoryAtOom, RankSummary};

use super::findings::findings;
use super::heat::heat_map;
use super::names::{RankNames, ranges};
use super::text::{compared, devices, endings, figure_name, notes, parallel, ranks_and_hosts, signed, then_row};
use crate::page;
use crate::page::elements::{self, cut, name, plural, size};
use crate::page::table::{Column, Kind, bytes, capped, count, number, table, text};
use crate::report::html::{finding_list, notes as notes_section};
use memlab_base::parallel::short;
use memlab_base::text::short_command;
use memlab_units::format;

/// Maximum number of rows of differences.
const MAX_ROWS: usize = 400;

/// Writes the report of a job as an HTML page.
///
/// # Errors
///
/// Errors of `out`.
pub fn write_job_html(out: &mut impl io::Write, job: &Job) -> io::Result<()> {
    let names = RankNames::new(job);
    let command = job.ranks.first().map_or_else(String::new, |rank| short_command(&rank.header.command));
    let differences = differences(&names);
    let body = html! {
        (header(&names, &command))
        main {
            (findings_section(&names))
            section #over-time { h2 { "Ranks over time" } (heat_map(job)) }
            section #side-by-side {
                h2 { "Ranks compared" }
                (figures(&names))
                h3 { "Every rank" }
                (ranks(&names))
            }
            @if !differences.0.is_empty() {
                section #differences {
                    h2 { "Differences" }
                    p.note {
                        "From the median of the " (compared(&names))
                        ", each at its peak; the figure is that of the rank that differs most."
                    }
                    (differences)
                }
            }
            @if let Some(first) = &job.first_oom { (memory_at_oom(&names, first)) }
            (notes_section(&notes(&names).into_iter().map(|note| vec![note]).collect::<Vec<_>>()))
        }
    };
    let source = format!("from {}", plural(job.ranks.len() as u64, "trace"));
    out.write_all(page::document("report", &command, &source, &body).as_bytes())
}

fn header(names: &RankNames<'_>, command: &str) -> Markup {
    let job = names.job;
    let (begin, end) = job.span_unix_ns();
    let mut facts = vec![ranks_and_hosts(job)];
    facts.extend(devices(job));
    facts.push(format::date(begin));
    facts.push(format!("ran {}", format::duration(end - begin)));
    if let Some(steps) = job.figure(FigureKind::Steps) {
        facts.push(plural(steps.most.value, "step"));
    }
    facts.extend(parallel(names));
    facts.push(endings(names));
    elements::header("report", &cut(command, 400), None, &facts)
}

fn findings_section(names: &RankNames<'_>) -> Markup {
    let found = findings(names);
    let is_bad = found.first().is_some_and(|finding| finding.kind == "out_of_memory");
    let alike = || html! { "No imbalance, no growth, no errors." };
    let found: Vec<_> = found.iter().map(|finding| (&finding.what, finding.next.as_str())).collect();
    finding_list(is_bad, &found, found.is_empty().then(alike))
}

fn figures(names: &RankNames<'_>) -> Markup {
    let value = |figure: &Figure, value: u64| match figure.kind {
        FigureKind::Steps => count(value),
        _ => bytes(value, None),
    };
    let rank = |figure: &Figure, at: usize| {
        let is_same = figure.least.value == figure.most.value;
        let rank = names.rank(at);
        number(rank.into(), &if is_same { "all".to_owned() } else { rank.to_string() })
    };
    let columns: [Column<'_, Figure>; 6] = [
        ("least", Kind::Number, &|figure| value(figure, figure.least.value)),
        ("rank", Kind::Number, &|figure| rank(figure, figure.least.at)),
        ("median", Kind::Number, &|figure| value(figure, figure.median)),
        ("most", Kind::Number, &|figure| value(figure, figure.most.value)),
        ("rank", Kind::Number, &|figure| rank(figure, figure.most.at)),
        ("of each rank’s fullest device", Kind::Name, &|figure| text(figure_name(figure.kind))),
    ];
    table("figures", &names.job.figures, &columns)
}

fn ranks(names: &RankNames<'_>) -> Markup {
    let job = names.job;
    let cell = |rank: &RankSummary, kind: FigureKind| {
        bytes(kind.of(rank, job.scope).unwrap_or(0), job.figure(kind).map(|figure| figure.most.value))
    };
    let columns: [Column<'_, RankSummary>; 12] = [
        ("rank", Kind::Number, &|rank| number(rank.rank().into(), &rank.rank().to_string())),
        ("peak", Kind::Number, &|rank| cell(rank, FigureKind::Allocated)),
        ("reserved", Kind::Number, &|rank| cell(rank, FigureKind::Reserved)),
        ("in use", Kind::Number, &|rank| cell(rank, FigureKind::Used)),
        ("context", Kind::Number, &|rank| cell(rank, FigureKind::Context)),
        ("at the end", Kind::Number, &|rank| cell(rank, FigureKind::AtEnd)),
        ("a step more", Kind::Number, &|rank| cell(rank, FigureKind::GrowthPerStep)),
        ("steps", Kind::Number, &|rank| count(rank.steps_ended)),
        ("pid", Kind::Number, &|rank| number(rank.header.pid.into(), &rank.header.pid.to_string())),
        ("place", Kind::Note, &|rank| text(&short(&rank.mesh, &rank.stages))),
        ("host", Kind::Note, &|rank| text(&rank.header.host)),
        ("trace", Kind::Note, &|rank| text(&rank.path.display().to_string())),
    ];
    table("ranks", &job.ranks, &columns)
}

fn differences(names: &RankNames<'_>) -> Markup {
    let ranks = |found: &Difference| ranges(found.ranks.iter().map(|rank| names.rank(rank.at)).collect());
    let columns: [Column<'_, Difference>; 5] = [
        ("difference", Kind::Number, &|found| number(found.bytes(), &signed(found))),
        ("median", Kind::Number, &|found| bytes(found.median_bytes, None)),
        ("ranks", Kind::Note, &|found| text(&ranks(found))),
        ("kind", Kind::Note, &|found| text(names.held(&found.held).0)),
        ("what", Kind::Name, &|found| text(&names.held(&found.held).1)),
    ];
    capped("differences", &names.job.differences, MAX_ROWS, Difference::bytes, &columns)
}

/// Memory of all ranks when the first one ran out of memory.
fn memory_at_oom(names: &RankNames<'_>, first: &FirstOom) -> Markup {
    let oom = &first.oom;
    let asked = format!("requested {}", size(oom.requested_bytes));
    let failed = (first.at, Some([oom.allocated_bytes, oom.reserved_bytes, oom.used_bytes]), asked);
    let others = first.others.iter().map(|rank| {
        let [.., words] = then_row(&rank.held);
        let held = match rank.held {
            MemoryAtOom::Bytes { allocated_bytes, reserved_bytes, used_bytes, .. } => {
                Some([allocated_bytes, reserved_bytes, used_bytes])
            }
            _ => None,
        };
        (rank.at, held, words)
    });
    type Row = (usize, Option<[u64; 3]>, String);
    let rows: Vec<Row> = std::iter::once(failed).chain(others).collect();
    let most = first.allocated_by_others().map_or(0, |[_, _, most]| most).max(oom.allocated_bytes);
    let held =
        |(_, held, _): &Row, index: usize, most| held.map_or_else(|| number(0, "–"), |held| bytes(held[index], most));
    let columns: [Column<'_, Row>; 5] = [
        ("rank", Kind::Number, &|(at, ..)| number(names.rank(*at).into(), &names.rank(*at).to_string())),
        ("allocated", Kind::Number, &|row| held(row, 0, Some(most))),
        ("reserved", Kind::Number, &|row| held(row, 1, None)),
        ("in use", Kind::Number, &|row| held(row, 2, None)),
        ("at that moment", Kind::Note, &|(.., words)| text(words)),
    ];
    html! {
        section #out-of-memory {
            h2 { "When rank " (names.job.ranks[first.at].rank()) " ran out of memory" }
            p.note {
                "After " (format::duration(oom.time)) " of its run, " (format::step_reached(oom.step)) "; by "
                code { (name(&names.line(oom.line.as_ref()))) } "."
            }
            (table("then", &rows, &columns))
        }
    }
}
