//! All ranks over time: a row for each, the stronger its colour the more it had allocated.

use std::fmt::Write as _;

use memlab_job::{FigureKind, Job, RankSummary, STRIP_PARTS};

use crate::page::axes::decimal_step;
use crate::page::elements::{name, size};
use memlab_units::format;

/// The width of the picture and of its left margin, in its own units.
const WIDTH: f64 = 1200.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 12.0;

/// The height of all rows together, and of one row at most.
const HEIGHT: f64 = 560.0;
const ROW: f64 = 22.0;

/// Shades from nothing to the most.
const SHADES: u64 = 8;

/// Rows are numbered at least so far apart.
const LABELS: f64 = 16.0;

/// A mark is at least so high, also where rows are thin.
const MARK: f64 = 8.0;

/// Above the first row, so that its number and mark are whole.
const TOP: f64 = 8.0;

/// The picture; nothing if no rank allocated anything.
pub(super) fn heat_map(job: &Job) -> String {
    let Some(most) = job.figure(FigureKind::Allocated).map(|figure| figure.most.value) else { return String::new() };
    let (begin, end) = job.span_unix_ns();
    let row = (HEIGHT / job.ranks.len() as f64).min(ROW);
    let bottom = TOP + row * job.ranks.len() as f64 + 4.0;
    let x_of = |unix_ns: u64| {
        LEFT + (WIDTH - LEFT - RIGHT) * unix_ns.saturating_sub(begin) as f64 / (end - begin).max(1) as f64
    };
    let mut svg = format!(
        "<svg class=\"timeline ranks\" style=\"--row:{row:.1}\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"memory of the ranks over time\">\n",
        bottom + 24.0
    );
    let mut marks = String::new();
    let apart = (LABELS / row).ceil().max(1.0) as usize;
    for (at, rank) in job.ranks.iter().enumerate() {
        let (middle, since) = (TOP + (at as f64 + 0.5) * row, job.begin_unix_ns(rank));
        if at.is_multiple_of(apart) {
            let (x, y) = (LEFT - 8.0, middle + 4.0);
            let _ = write!(svg, "<text class=\"end\" x=\"{x:.0}\" y=\"{y:.1}\">{}</text>", rank.rank());
        }
        let _ = write!(svg, "<g><title>{}</title>", name(&told(job, rank)));
        svg += &shades(
            rank,
            most,
            |part| x_of(since.saturating_add(rank.duration / STRIP_PARTS as u64 * part as u64)),
            middle,
        );
        if let Some(oom) = &rank.first_oom {
            let (x, height) = (x_of(since.saturating_add(oom.time)) - 1.5, row.max(MARK));
            let y = middle - height / 2.0;
            let _ =
                write!(marks, "<rect class=\"failed\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"3\" height=\"{height:.1}\"/>");
        }
        svg += "</g>\n";
    }
    svg += &marks;
    let step = decimal_step(end - begin, 8);
    for time in (0..=(end - begin) / step).map(|tick| tick * step) {
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x_of(begin.saturating_add(time)),
            bottom + 16.0,
            format::moment(time, step)
        );
    }
    let shown = format!(
        "The stronger the colour, the more was allocated; the strongest is {}. A red mark is an out-of-memory.",
        size(most)
    );
    format!("<figure><div class=\"scroll\">{svg}</svg></div>\n<figcaption>{shown}</figcaption></figure>\n")
}

/// The row of a rank, a path for each shade.
fn shades(rank: &RankSummary, most: u64, x_of: impl Fn(usize) -> f64, middle: f64) -> String {
    let Some(device) = rank.own_device() else { return String::new() };
    let shade = |bytes: u64| (u128::from(bytes) * u128::from(SHADES)).div_ceil(u128::from(most.max(1))) as usize;
    let shades: Vec<usize> = device.strip.iter().map(|bytes| shade(*bytes)).collect();
    let stretch = |from: f64, to: f64| format!("M{from:.1} {middle:.1}h{:.1}", (to - from).max(0.5));
    let mut paths = vec![String::new(); SHADES as usize + 1];
    let mut first = 0;
    for run in shades.chunk_by(|a, b| a == b) {
        paths[run[0]] += &stretch(x_of(first), x_of(first + run.len()));
        first += run.len();
    }
    let mut svg = format!("<path class=\"ground\" d=\"{}\"/>", stretch(x_of(0), x_of(STRIP_PARTS)));
    for (shade, path) in paths.iter().enumerate().skip(1).filter(|(_, path)| !path.is_empty()) {
        let _ = write!(svg, "<path stroke-opacity=\"{:.2}\" d=\"{path}\"/>", shade as f64 / SHADES as f64);
    }
    svg
}

/// What is said of a rank where one points at it.
fn told(job: &Job, rank: &RankSummary) -> String {
    let peak = FigureKind::Allocated.of(rank, job.scope).unwrap_or(0);
    format!("rank {} on {}: peak {}, {}", rank.rank(), rank.header.host, size(peak), format::duration(rank.duration))
}
