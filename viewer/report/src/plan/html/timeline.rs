//! Memory over the recorded steps, by category.

use std::fmt::Write as _;

use maud::{Markup, html};
use memlab_predict::plan::{PlannedTimeline, TimelineBucket};
use memlab_trace::Category;

use crate::page::chart::{self, Chart, HEIGHT, LEFT, RIGHT, entry, px};
use crate::page::elements::size;
use crate::plan::answer::Answer;
use memlab_base::category::category_names;
use memlab_units::format;

/// Upper edge of a plan's charts, below the marks, and lower edge, above the labels.
pub(super) const TOP: f64 = 34.0;
pub(super) const AXIS: f64 = HEIGHT - 44.0;

/// Categories with less than this share of the peak are drawn, but not in the legend.
const MIN_NAMED_SHARE: f64 = 0.002;

/// The picture.
pub(super) fn figure(answer: &Answer, timeline: &PlannedTimeline) -> Markup {
    let buckets = &timeline.buckets;
    let Some((peak, at_peak)) =
        buckets.iter().enumerate().max_by_key(|(index, one)| (one.allocated, usize::MAX - index))
    else {
        return Markup::default();
    };
    let most = buckets.iter().map(|bucket| bucket.reserved).max().unwrap_or(1);
    let chart = Chart { until: buckets.len() as f64, most: most as f64 * 1.06, top: TOP, axis: AXIS };
    let mut below = vec![0; buckets.len()];
    // For each category in use: class, name, maximum, and area.
    let mut categories: Vec<(String, &str, u64, String)> = Vec::new();
    for (index, category) in Category::ALL.into_iter().enumerate() {
        let above: Vec<u64> =
            std::iter::zip(&below, buckets).map(|(bottom, bucket)| bottom + bucket.categories[index]).collect();
        let most = buckets.iter().map(|bucket| bucket.categories[index]).max().unwrap_or(0);
        if most > 0 {
            let path = area(&chart, &below, &above);
            categories.push((format!("c{index}"), category_names(category).0, most, path));
        }
        below = above;
    }
    let label = format!("{} allocated, in {}", size(at_peak.allocated), at_peak.phase.as_str());
    let svg = html! {
        (chart.grid())
        (chart.axis())
        @for (class, name, most, path) in &categories {
            path.area.(class) d=(path) { title { (name) ": at most " (size(*most)) } }
        }
        path.line.reserved d=(outline(&chart, buckets)) {}
        (steps(&chart, timeline))
        (chart.mark("peak", chart.x(peak as f64 + 0.5), [TOP - 8.0, TOP - 12.0], Some('▼'), &label))
    };
    let label = format!("memory over the steps, peak {}", size(at_peak.allocated));
    let svg = chart::svg("timeline plan course", HEIGHT, &label, &svg);
    let caption = html! {
        ul.legend {
            @for (class, name, most, _) in &categories {
                @if *most as f64 > at_peak.allocated as f64 * MIN_NAMED_SHARE { (entry(class, name)) }
            }
            (entry("reserved", "reserved"))
            li { "▼ the peak" }
        }
        p.note {
            "Left to right: the recorded memory requests, evenly spaced. Later steps repeat the last one"
            (later(answer, at_peak.allocated))
        }
    };
    chart::figure(&svg, &caption)
}

/// Note for a peak after the recorded steps.
fn later(answer: &Answer, drawn: u64) -> String {
    if answer.peak.allocated_bytes > drawn {
        format!(", up to {} in step {}.", size(answer.peak.allocated_bytes), format::grouped(answer.peak.step as u64))
    } else {
        ".".to_owned()
    }
}

/// Area between two step lines.
fn area(chart: &Chart, below: &[u64], above: &[u64]) -> String {
    let mut path = format!("M{LEFT} {:.1}", chart.y(below.first().copied().unwrap_or(0)));
    let mut before = (f64::NAN, f64::NAN);
    let mut back = Vec::new();
    for (index, (low, high)) in std::iter::zip(below, above).enumerate() {
        let (x, low, high) = (chart.x(index as f64), chart.y(*low), chart.y(*high));
        // Points at the same position need no corner.
        if (low - before.0).abs() < 0.05 && (high - before.1).abs() < 0.05 {
            continue;
        }
        let _ = write!(path, "H{x:.1}V{high:.1}");
        back.push((x, low));
        before = (low, high);
    }
    let _ = write!(path, "H{RIGHT:.1}");
    for (x, low) in back.into_iter().rev() {
        let _ = write!(path, "V{low:.1}H{x:.1}");
    }
    path + "Z"
}

fn outline(chart: &Chart, buckets: &[TimelineBucket]) -> String {
    let y = |bucket: &TimelineBucket| chart.y(bucket.reserved);
    let first = buckets.first().map_or(chart.axis, y);
    let mut path = format!("M{LEFT:.1} {first:.1}");
    chart::steps(&mut path, first, buckets.iter().enumerate().map(|(index, one)| (chart.x(index as f64), y(one))));
    path
}

/// Ends of steps, with the step numbers in between.
fn steps(chart: &Chart, timeline: &PlannedTimeline) -> Markup {
    let begins = std::iter::once(0).chain(timeline.steps.iter().copied());
    html! {
        @for (index, (begin, end)) in begins.zip(&timeline.steps).enumerate() {
            @let (from, to) = (chart.x(begin as f64), chart.x(*end as f64));
            path.step d=(format!("M{to:.1} {AXIS}v8")) {}
            @if to - from > 40.0 {
                text.middle x=(px(f64::midpoint(from, to))) y=(px(AXIS + 19.0)) { "step " (index) }
            }
        }
    }
}
