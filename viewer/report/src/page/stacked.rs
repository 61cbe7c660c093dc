//! Areas of the categories in a chart, one above the other.

use std::fmt::Write as _;

use maud::{Markup, html};
use memlab_predict::plan::TimelineBucket;
use memlab_trace::Category;

use super::chart::{Chart, HEIGHT, LEFT, RIGHT, entry};
use super::elements::size;
use memlab_base::category::category_names;

/// Upper edge of such a chart, below the marks, and lower edge, above the labels.
pub(crate) const TOP: f64 = 34.0;
pub(crate) const AXIS: f64 = HEIGHT - 44.0;

/// Categories with less than this share of the peak are drawn, but not in the legend.
const MIN_NAMED_SHARE: f64 = 0.002;

/// The area of a category.
pub(crate) struct Band {
    class: String,
    name: &'static str,
    most: u64,
    path: String,
}

/// Areas of the categories in use, from the bottom up.
pub(crate) fn bands(chart: &Chart, buckets: &[TimelineBucket]) -> Vec<Band> {
    let mut below = vec![0; buckets.len()];
    let mut bands = Vec::new();
    for (index, category) in Category::ALL.into_iter().enumerate() {
        let above: Vec<u64> =
            std::iter::zip(&below, buckets).map(|(bottom, bucket)| bottom + bucket.categories[index]).collect();
        let most = buckets.iter().map(|bucket| bucket.categories[index]).max().unwrap_or(0);
        if most > 0 {
            let path = area(chart, &below, &above);
            bands.push(Band { class: format!("c{index}"), name: category_names(category).0, most, path });
        }
        below = above;
    }
    bands
}

/// The areas.
pub(crate) fn areas(bands: &[Band]) -> Markup {
    html! {
        @for Band { class, name, most, path } in bands {
            path.area.(class) d=(path) { title { (name) ": at most " (size(*most)) } }
        }
    }
}

/// Entries of the legend. `peak`: bytes at the peak.
pub(crate) fn entries(bands: &[Band], peak: u64) -> Markup {
    let is_named = |band: &&Band| band.most as f64 > peak as f64 * MIN_NAMED_SHARE;
    html! { @for Band { class, name, .. } in bands.iter().filter(is_named) { (entry(class, name)) } }
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
