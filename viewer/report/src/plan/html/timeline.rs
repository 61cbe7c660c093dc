//! Memory over the recorded steps, by category.

use maud::{Markup, html};
use memlab_predict::plan::{PlannedTimeline, TimelineBucket};

use crate::page::chart::{self, Chart, HEIGHT, LEFT, entry, px};
use crate::page::elements::size;
use crate::page::stacked::{self, AXIS, TOP};
use crate::plan::answer::Answer;
use memlab_units::format;

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
    let bands = stacked::bands(&chart, buckets);
    let label = format!("{} allocated, in {}", size(at_peak.allocated), at_peak.phase.as_str());
    let svg = html! {
        (chart.grid())
        (chart.axis())
        (stacked::areas(&bands))
        path.line.reserved d=(outline(&chart, buckets)) {}
        (steps(&chart, timeline))
        (chart.mark("peak", chart.x(peak as f64 + 0.5), [TOP - 8.0, TOP - 12.0], Some('▼'), &label))
    };
    let label = format!("memory over the steps, peak {}", size(at_peak.allocated));
    let svg = chart::svg("timeline plan course", HEIGHT, &label, &svg);
    let caption = html! {
        ul.legend {
            (stacked::entries(&bands, at_peak.allocated))
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
