//! The report on a job as a page.

use std::fmt::Write as _;
use std::io;

use memlab_job::{FigureKind, FirstOom, Job, MemoryAtOom, RankSummary};

use super::findings::findings;
use super::heat::heat_map;
use super::names::{RankNames, ranges};
use super::text::{compared, devices, endings, figure_name, notes, parallel, ranks_and_hosts, signed, then_row};
use crate::page;
use crate::page::elements::{name, plural, size};
use crate::page::table::{Column, Table, bytes, number, rest, text};
use crate::report::html::{markup_words, notes as notes_section};
use memlab_base::parallel::short;
use memlab_base::text::{fit_end, markup, short_command};
use memlab_units::format;

/// The most rows of what differs.
const ROWS: usize = 400;

/// Writes the report of a job as an HTML page.
///
/// # Errors
///
/// What `out` says.
pub fn write_job_html(out: &mut impl io::Write, job: &Job) -> io::Result<()> {
    let names = RankNames::new(job);
    let command = job.ranks.first().map_or_else(String::new, |rank| short_command(&rank.header.command));
    let mut body = header(&names, &command);
    body += "<main>\n";
    body += &verdict(&names);
    let _ = write!(body, "<section id=\"over-time\">\n<h2>Ranks over time</h2>\n{}</section>\n", heat_map(job));
    let _ = write!(body, "<section id=\"side-by-side\">\n<h2>Side by side</h2>\n{}", figures(&names));
    let _ = write!(body, "<h3>Every rank</h3>\n{}</section>\n", ranks(&names));
    let differences = differences(&names);
    if !differences.is_empty() {
        let compared = compared(&names);
        let what = format!(
            "From the median over the {compared}, each at its peak; the figure is of the rank that differs most."
        );
        let _ = write!(
            body,
            "<section id=\"differences\">\n<h2>What differs</h2>\n<p class=\"note\">{what}</p>\n{differences}</section>\n"
        );
    }
    if let Some(first) = &job.first_oom {
        body += &then(&names, first);
    }
    body += &notes_section(&notes(&names).into_iter().map(|note| vec![note]).collect::<Vec<_>>());
    body += "</main>\n";
    let source = format!("from {}", plural(job.ranks.len() as u64, "trace"));
    out.write_all(page::document("report", &command, &source, &body).as_bytes())
}

fn header(names: &RankNames<'_>, command: &str) -> String {
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
    let facts: String = facts.iter().map(|fact| format!("<li>{}</li>", name(fact))).collect();
    format!(
        "<header>\n<p class=\"brand\">memlab report</p>\n<h1>{}</h1>\n<ul class=\"facts\">{facts}</ul>\n</header>\n",
        markup(&fit_end(command, 400, "…")),
    )
}

fn verdict(names: &RankNames<'_>) -> String {
    let found = findings(names);
    let class = match found.first().map(|finding| finding.kind) {
        Some("out_of_memory") => "verdict bad",
        Some(_) => "verdict warn",
        None => "verdict",
    };
    let mut section = format!("<section class=\"{class}\" aria-label=\"what to look at\">\n");
    for finding in &found {
        let (what, next) = (markup_words(&finding.what), markup(&finding.next));
        let _ = writeln!(section, "<p>{what}<br><span class=\"next\">→ {next}</span></p>");
    }
    if found.is_empty() {
        section += "<p>The ranks are alike: none holds more than the others, grows or failed.</p>\n";
    }
    section + "</section>\n"
}

fn figures(names: &RankNames<'_>) -> String {
    let head = ["least", "rank", "median", "most", "rank"].map(|title| (title, Column::Number));
    let mut table = Table::new("figures", &[&head[..], &[("of each rank’s fullest device", Column::Name)]].concat());
    for figure in &names.job.figures {
        let value = |value: u64| match figure.kind {
            FigureKind::Steps => number(value, &format::grouped(value)),
            _ => bytes(value, None),
        };
        let is_same = figure.least.value == figure.most.value;
        let rank = |at: usize| {
            let rank = names.rank(at);
            number(rank.into(), &if is_same { "all".to_owned() } else { rank.to_string() })
        };
        table.row(&[
            value(figure.least.value),
            rank(figure.least.at),
            value(figure.median),
            value(figure.most.value),
            rank(figure.most.at),
            text(figure_name(figure.kind)),
        ]);
    }
    table.finish(None)
}

fn ranks(names: &RankNames<'_>) -> String {
    let job = names.job;
    let columns = ["rank", "peak", "reserved", "used", "context", "at the end", "a step more", "steps", "pid"];
    let head = columns.map(|title| (title, Column::Number));
    let mut table = Table::new(
        "ranks",
        &[&head[..], &[("place", Column::Name), ("host", Column::Name), ("trace", Column::Name)]].concat(),
    );
    let most = |kind: FigureKind| job.figure(kind).map(|figure| figure.most.value);
    for rank in &job.ranks {
        let cell = |kind: FigureKind| bytes(kind.of(rank, job.scope).unwrap_or(0), most(kind));
        table.row(&[
            number(rank.rank().into(), &rank.rank().to_string()),
            cell(FigureKind::Allocated),
            cell(FigureKind::Reserved),
            cell(FigureKind::Used),
            cell(FigureKind::Context),
            cell(FigureKind::AtEnd),
            cell(FigureKind::GrowthPerStep),
            number(rank.steps_ended, &format::grouped(rank.steps_ended)),
            number(rank.header.pid.into(), &rank.header.pid.to_string()),
            text(&short(&rank.mesh, &rank.stages)),
            text(&rank.header.host),
            text(&rank.path.display().to_string()),
        ]);
    }
    table.finish(None)
}

fn differences(names: &RankNames<'_>) -> String {
    let found = &names.job.differences;
    let head = [
        ("difference", Column::Number),
        ("median", Column::Number),
        ("ranks", Column::Name),
        ("kind", Column::Name),
        ("what", Column::Name),
    ];
    let mut table = Table::new("differences", &head);
    for difference in found.iter().take(ROWS) {
        let (kind, what) = names.held(&difference.held);
        table.row(&[
            number(difference.bytes(), &signed(difference)),
            bytes(difference.median_bytes, None),
            text(&ranges(difference.ranks.iter().map(|rank| names.rank(rank.at)).collect())),
            text(kind),
            text(&what),
        ]);
    }
    let left_out: Vec<u64> = found.iter().skip(ROWS).map(|difference| difference.bytes()).collect();
    table.finish(rest(&left_out))
}

/// What all ranks held when the first one ran out of memory.
fn then(names: &RankNames<'_>, first: &FirstOom) -> String {
    let oom = &first.oom;
    let head = ["rank", "allocated", "reserved", "used"].map(|title| (title, Column::Number));
    let mut table = Table::new("then", &[&head[..], &[("at that moment", Column::Name)]].concat());
    let rank_cell = |at: usize| number(names.rank(at).into(), &names.rank(at).to_string());
    let most = first.allocated_by_others().map_or(0, |[_, _, most]| most).max(oom.allocated_bytes);
    table.row(&[
        rank_cell(first.at),
        bytes(oom.allocated_bytes, Some(most)),
        bytes(oom.reserved_bytes, None),
        bytes(oom.used_bytes, None),
        text(&format!("asked for {}", size(oom.requested_bytes))),
    ]);
    for rank in &first.others {
        let [.., words] = then_row(&rank.held);
        let cells = match rank.held {
            MemoryAtOom::Bytes { allocated_bytes, reserved_bytes, used_bytes, .. } => {
                [bytes(allocated_bytes, Some(most)), bytes(reserved_bytes, None), bytes(used_bytes, None)]
            }
            _ => ["–"; 3].map(|dash| number(0, dash)),
        };
        let [allocated, reserved, used] = cells;
        table.row(&[rank_cell(rank.at), allocated, reserved, used, text(&words)]);
    }
    let rank: &RankSummary = &names.job.ranks[first.at];
    format!(
        "<section id=\"out-of-memory\">\n<h2>When rank {} ran out of memory</h2>\n<p class=\"note\">After {} of its run, {}; by <code>{}</code>.</p>\n{}</section>\n",
        rank.rank(),
        format::duration(oom.time),
        format::step_reached(oom.step),
        name(&names.line(oom.line.as_ref())),
        table.finish(None)
    )
}
