//! All ranks over time, a row each. A stronger colour means more allocated bytes.

use maud::{Markup, html};
use memlab_job::{FigureKind, Job, RankSummary, STRIP_PARTS};

use crate::page::chart::{self, LEFT, WIDTH, decimal_step, px, ticks};
use crate::page::elements::{name, size};
use memlab_units::format;

/// Right margin.
const RIGHT: f64 = 12.0;

/// Height of all rows together, and maximum height of one row.
const HEIGHT: f64 = 560.0;
const ROW: f64 = 22.0;

/// Number of shades from nothing to the maximum.
const SHADES: u64 = 8;

/// Minimum distance of numbered rows.
const LABELS: f64 = 16.0;

/// Minimum height of a mark, also in thin rows.
const MARK: f64 = 8.0;

/// Space above the first row for its number and mark.
const TOP: f64 = 8.0;

/// The picture; empty if no rank allocated memory.
pub(super) fn heat_map(job: &Job) -> Markup {
    let Some(figure) = job.figure(FigureKind::Allocated) else { return Markup::default() };
    let most = figure.most.value;
    let (begin, end) = job.span_unix_ns();
    let row = (HEIGHT / job.ranks.len() as f64).min(ROW);
    let bottom = TOP + row * job.ranks.len() as f64 + 4.0;
    let x_of = |unix_ns: u64| {
        LEFT + (WIDTH - LEFT - RIGHT) * unix_ns.saturating_sub(begin) as f64 / (end - begin).max(1) as f64
    };
    let apart = (LABELS / row).ceil().max(1.0) as usize;
    let rows = || job.ranks.iter().enumerate().map(|(at, rank)| (at, rank, TOP + (at as f64 + 0.5) * row));
    let at = |rank: &RankSummary, time: u64| x_of(job.begin_unix_ns(rank).saturating_add(time));
    let failed = rows().filter_map(|(_, rank, middle)| Some((at(rank, rank.first_oom.as_ref()?.time), middle)));
    let step = decimal_step(end - begin, 8);
    let svg = html! {
        svg.timeline.ranks style=(format!("--row:{row:.1}")) viewBox=(format!("0 0 {WIDTH} {:.0}", bottom + 24.0))
            role="img" aria-label="memory of the ranks over time" {
            @for (index, rank, middle) in rows() {
                @if index.is_multiple_of(apart) { text.end x=(LEFT - 8.0) y=(px(middle + 4.0)) { (rank.rank()) } }
                g {
                    title { (name(&tooltip(job, rank))) }
                    (shades(rank, most, |part| at(rank, rank.duration / STRIP_PARTS as u64 * part as u64), middle))
                }
            }
            @for (x, middle) in failed {
                @let height = row.max(MARK);
                rect.failed x=(px(x - 1.5)) y=(px(middle - height / 2.0)) width="3" height=(px(height)) {}
            }
            @for time in ticks(step).take_while(|time| *time <= end - begin) {
                text.middle x=(px(x_of(begin.saturating_add(time)))) y=(px(bottom + 16.0)) {
                    (format::moment(time, step))
                }
            }
        }
    };
    let caption = html! {
        "A stronger colour means more allocated; the strongest is " (size(most))
        ". A red mark is an out-of-memory error."
    };
    chart::figure(&svg, &caption)
}

/// Row of a rank, one path per shade.
fn shades(rank: &RankSummary, most: u64, x_of: impl Fn(usize) -> f64, middle: f64) -> Markup {
    let Some(device) = rank.own_device() else { return Markup::default() };
    let shade = |bytes: u64| (u128::from(bytes) * u128::from(SHADES)).div_ceil(u128::from(most.max(1))) as usize;
    let shades: Vec<usize> = device.strip.iter().map(|bytes| shade(*bytes)).collect();
    let stretch = |from: f64, to: f64| format!("M{from:.1} {middle:.1}h{:.1}", (to - from).max(0.5));
    let mut paths = vec![String::new(); SHADES as usize + 1];
    let mut first = 0;
    for run in shades.chunk_by(|a, b| a == b) {
        paths[run[0]] += &stretch(x_of(first), x_of(first + run.len()));
        first += run.len();
    }
    html! {
        path.ground d=(stretch(x_of(0), x_of(STRIP_PARTS))) {}
        @for (shade, path) in paths.iter().enumerate().skip(1).filter(|(_, path)| !path.is_empty()) {
            path stroke-opacity=(format!("{:.2}", shade as f64 / SHADES as f64)) d=(path) {}
        }
    }
}

/// Tooltip of a rank.
fn tooltip(job: &Job, rank: &RankSummary) -> String {
    let peak = FigureKind::Allocated.of(rank, job.scope).unwrap_or(0);
    format!("rank {} on {}: peak {}, {}", rank.rank(), rank.header.host, size(peak), format::duration(rank.duration))
}
