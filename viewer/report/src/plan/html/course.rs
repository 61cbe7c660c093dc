//! Memory over the recorded steps, by category.

use std::fmt::Write as _;

use memlab_predict::plan::{PlannedTimeline, Stretch};
use memlab_trace::Category;

use super::picture::{BOTTOM, HEIGHT, LEFT, RIGHT, Scale, TOP, WIDTH};
use crate::page::elements::size;
use crate::plan::answer::Answer;
use memlab_base::category::category_names;
use memlab_units::format;

/// Categories with less than this share of the peak are drawn, but not in the legend.
const MIN_NAMED_SHARE: f64 = 0.002;

/// The picture.
pub(super) fn figure(answer: &Answer, course: &PlannedTimeline) -> String {
    let stretches = &course.stretches;
    let Some((peak, at_peak)) =
        stretches.iter().enumerate().max_by_key(|(index, one)| (one.allocated, usize::MAX - index))
    else {
        return String::new();
    };
    let most = stretches.iter().map(|stretch| stretch.reserved).max().unwrap_or(1);
    let scale = Scale { until: stretches.len() as f64, top: most as f64 * 1.06 };
    let mut svg = scale.begin("course", &format!("memory over the steps, peak {}", size(at_peak.allocated)));
    let mut below = vec![0; stretches.len()];
    let mut legend = String::new();
    for (index, category) in Category::ALL.into_iter().enumerate() {
        let above: Vec<u64> =
            std::iter::zip(&below, stretches).map(|(bottom, stretch)| bottom + stretch.categories[index]).collect();
        let most = stretches.iter().map(|stretch| stretch.categories[index]).max().unwrap_or(0);
        if most > 0 {
            let names = category_names(category).0;
            let _ = writeln!(
                svg,
                "<path class=\"area c{index}\" d=\"{}\"><title>{names}: at most {}</title></path>",
                area(&scale, &below, &above),
                size(most)
            );
            if most as f64 > at_peak.allocated as f64 * MIN_NAMED_SHARE {
                let _ = write!(legend, "<li><span class=\"swatch c{index}\"></span>{names}</li>");
            }
        }
        below = above;
    }
    let _ = writeln!(svg, "<path class=\"line reserved\" d=\"{}\"/>", outline(&scale, stretches));
    steps(&mut svg, &scale, course);
    let x = scale.x(peak as f64 + 0.5);
    let (anchor, text) = if x > WIDTH / 2.0 { ("end", x - 9.0) } else { ("start", x + 9.0) };
    let _ = writeln!(
        svg,
        "<g class=\"peak\"><path d=\"M{x:.1} {:.1}V{:.1}\"/><text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">▼</text><text \
         class=\"{anchor}\" x=\"{text:.1}\" y=\"{:.1}\">{} allocated, in {}</text></g>",
        TOP - 8.0,
        HEIGHT - BOTTOM,
        TOP - 12.0,
        TOP - 12.0,
        size(at_peak.allocated),
        at_peak.phase.as_str()
    );
    svg += "</svg>\n";
    format!(
        "<figure>\n<div class=\"scroll\">{svg}</div><figcaption><ul class=\"legend\">{legend}<li><span class=\"swatch \
         reserved\"></span>reserved</li><li>▼ the peak</li></ul><p class=\"note\">From left to right: the recorded requests for memory, \
         equally far apart. Later steps repeat the last one{}</p></figcaption>\n</figure>\n",
        later(answer, at_peak.allocated)
    )
}

/// The peak may be reached after the recorded steps.
fn later(answer: &Answer, drawn: u64) -> String {
    if answer.peak.allocated_bytes > drawn {
        format!(", up to {} in step {}.", size(answer.peak.allocated_bytes), format::grouped(answer.peak.step as u64))
    } else {
        ".".to_owned()
    }
}

/// The area between two lines of steps.
fn area(scale: &Scale, below: &[u64], above: &[u64]) -> String {
    let mut path = format!("M{LEFT} {:.1}", scale.y(below.first().copied().unwrap_or(0)));
    let mut before = (f64::NAN, f64::NAN);
    let mut back = Vec::new();
    for (index, (low, high)) in std::iter::zip(below, above).enumerate() {
        let (x, low, high) = (scale.x(index as f64), scale.y(*low), scale.y(*high));
        // Points in the same place need no corner.
        if (low - before.0).abs() < 0.05 && (high - before.1).abs() < 0.05 {
            continue;
        }
        let _ = write!(path, "H{x:.1}V{high:.1}");
        back.push((x, low));
        before = (low, high);
    }
    let _ = write!(path, "H{:.1}", WIDTH - RIGHT);
    for (x, low) in back.into_iter().rev() {
        let _ = write!(path, "V{low:.1}H{x:.1}");
    }
    path + "Z"
}

fn outline(scale: &Scale, stretches: &[Stretch]) -> String {
    let mut path = String::new();
    let mut before = f64::NAN;
    for (index, stretch) in stretches.iter().enumerate() {
        let (x, y) = (scale.x(index as f64), scale.y(stretch.reserved));
        if path.is_empty() {
            let _ = write!(path, "M{x:.1} {y:.1}");
        } else if (y - before).abs() >= 0.05 {
            let _ = write!(path, "H{x:.1}V{y:.1}");
        }
        before = y;
    }
    let _ = write!(path, "H{:.1}", WIDTH - RIGHT);
    path
}

/// Where steps ended, with their numbers between.
fn steps(svg: &mut String, scale: &Scale, course: &PlannedTimeline) {
    let axis = HEIGHT - BOTTOM;
    let mut begin = 0.0;
    for (index, end) in course.steps.iter().enumerate() {
        let (from, to) = (scale.x(begin), scale.x(*end as f64));
        let _ = writeln!(svg, "<path class=\"step\" d=\"M{to:.1} {axis}v8\"/>");
        if to - from > 40.0 {
            let _ = writeln!(
                svg,
                "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">step {index}</text>",
                f64::midpoint(from, to),
                axis + 19.0
            );
        }
        begin = *end as f64;
    }
}
