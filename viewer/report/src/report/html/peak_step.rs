//! The step with the peak, request by request: a chart by category, with the largest lines at each point.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use maud::{Markup, html};
use memlab_predict::plan::{PeakStep, TimelineBucket};
use memlab_trace::Line;

use super::super::names::ReportNames;
use crate::page::chart::{Chart, HEIGHT, LEFT, RIGHT, WIDTH, px};
use crate::page::elements::size;
use crate::page::stacked::{self, AXIS, TOP};
use memlab_base::text::phase_name;
use memlab_units::format;

/// Lines named at each point.
const LINES: usize = 5;

/// Narrower phases have no label, in units of the picture.
const MIN_PHASE_WIDTH: f64 = 60.0;

/// The chart; `step`: that of the device.
pub(super) fn figure(names: &ReportNames<'_>, step: &PeakStep) -> Markup {
    let buckets = &step.buckets;
    let peak = (0..).zip(buckets).max_by_key(|(index, one)| (one.allocated, Reverse(*index)));
    let Some((peak, at_peak)) = peak else { return Markup::default() };
    let chart = Chart { until: buckets.len() as f64, most: at_peak.allocated as f64 * 1.06, top: TOP, axis: AXIS };
    let bands = stacked::bands(&chart, buckets);
    let (places, points) = points(names, step);
    let which = match step.step {
        Some(step) => format!("step {}", format::grouped(step as u64)),
        None => "the part with the peak".to_owned(),
    };
    let label = format!("memory in {which}, request by request, peak {}", size(at_peak.allocated));
    let during = phase_name(step.phase);
    let during = if during.is_empty() { String::new() } else { format!(", in {during}") };
    let said = format!("{} allocated{during}", size(at_peak.allocated));
    html! {
        h3 { "Memory in " (which) ", request by request" }
        figure {
            div.scroll {
                svg.timeline.plan xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {HEIGHT}"))
                    tabindex="0" role="img" aria-label=(label) data-left=(LEFT) data-right=(RIGHT) data-points=(points)
                    data-places=(places) {
                    (chart.grid())
                    (chart.axis())
                    (chart.zoomed(&stacked::areas(&bands)))
                    (phases(&chart, buckets))
                    (chart.mark("peak", chart.x(f64::from(peak) + 0.5), [TOP - 8.0, TOP - 12.0], Some('▼'), &said))
                    path.cursor d=(format!("M0 {TOP}V{AXIS}")) {}
                }
            }
            output.readout { "\u{a0}" }
            figcaption {
                ul.legend { (stacked::entries(&bands, at_peak.allocated)) li { "▼ the peak" } }
                p.note { "Left to right: requests for memory, evenly spaced. Drag to zoom, double-click to go back." }
            }
        }
    }
}

/// The phases below the axis.
fn phases(chart: &Chart, buckets: &[TimelineBucket]) -> Markup {
    let mut from = 0;
    let mut spans = Vec::new();
    for (index, bucket) in buckets.iter().enumerate() {
        if buckets.get(index + 1).is_none_or(|next| next.phase != bucket.phase) {
            spans.push((chart.x(from as f64), chart.x((index + 1) as f64), bucket.phase));
            from = index + 1;
        }
    }
    html! {
        @for (from, to, phase) in spans {
            g data-x=(px(to)) { path.step d=(format!("M{to:.1} {AXIS}v8")) {} }
            @if to - from > MIN_PHASE_WIDTH {
                g data-x=(px(f64::midpoint(from, to))) {
                    text.middle x=(px(f64::midpoint(from, to))) y=(px(AXIS + 19.0)) { (phase_name(phase)) }
                }
            }
        }
    }
}

/// Names of the lines, one per row, and for each point the allocated bytes with its largest lines:
/// `allocated,line,bytes,line,bytes…`, separated by semicolons.
fn points(names: &ReportNames<'_>, step: &PeakStep) -> (String, String) {
    let mut places: Vec<String> = Vec::new();
    let mut known: HashMap<Option<Arc<Line>>, usize> = HashMap::new();
    let mut line_of: HashMap<u32, Option<Arc<Line>>> = HashMap::new();
    let mut points = String::new();
    for (bucket, stacks) in step.buckets.iter().zip(&step.stacks) {
        let mut lines: HashMap<Option<Arc<Line>>, u64> = HashMap::new();
        for (stack, bytes) in stacks {
            let line = line_of.entry(*stack).or_insert_with(|| names.model.line_of(*stack));
            let held = lines.entry(line.clone()).or_default();
            *held = held.saturating_add(*bytes);
        }
        let mut lines: Vec<_> = lines.into_iter().collect();
        lines.sort_by(|(a_line, a), (b_line, b)| b.cmp(a).then_with(|| a_line.cmp(b_line)));
        let _ = write!(points, "{}{}", if points.is_empty() { "" } else { ";" }, bucket.allocated);
        for (line, bytes) in lines.into_iter().take(LINES) {
            let place = *known.entry(line.clone()).or_insert_with(|| {
                places.push(names.line(line.as_ref()).replace('\n', " "));
                places.len() - 1
            });
            let _ = write!(points, ",{place},{bytes}");
        }
    }
    (places.join("\n"), points)
}
