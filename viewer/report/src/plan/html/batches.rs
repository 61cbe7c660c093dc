//! Memory over the batch size.

use maud::{Markup, html};

use crate::page::chart::{self, Chart, HEIGHT, RIGHT, decimal_step, entry, px, ticks};
use crate::page::elements::{name, size};
use crate::page::stacked::{AXIS, TOP};
use crate::plan::answer::{Answer, BatchRow};
use memlab_units::format;

/// A drawn line, from the top: class in the style, title, and bytes.
type Line = (&'static str, &'static str, fn(&BatchRow) -> u64);
const LINES: [Line; 3] = [
    ("needed", "smallest card", |row| row.needed_bytes),
    ("reserved", "reserved", |row| row.peak_reserved_bytes),
    ("allocated", "allocated", |row| row.peak_allocated_bytes),
];

/// The picture; empty if the batch cannot be chosen.
pub(super) fn figure(answer: &Answer, rows: &[BatchRow]) -> Markup {
    let points: Vec<(u64, &BatchRow)> = rows.iter().filter_map(|row| Some((row.batch?, row))).collect();
    let (Some((last, _)), Some(most)) =
        (points.last(), points.iter().map(|(_, row)| row.needed_bytes.max(row.peak_reserved_bytes)).max())
    else {
        return Markup::default();
    };
    let card = answer.card_bytes;
    // The card is drawn if a batch comes near its size.
    let shows_card = most > card / 2;
    let top = if shows_card { most.max(card) } else { most } as f64 * 1.06;
    let chart = Chart { until: *last as f64 * 1.02, most: top, top: TOP, axis: AXIS };
    let line = |bytes: fn(&BatchRow) -> u64| {
        let corner =
            |(batch, row): &(u64, &BatchRow)| format!("{:.1} {:.1}", chart.x(*batch as f64), chart.y(bytes(row)));
        format!("M{}", points.iter().map(corner).collect::<Vec<_>>().join("L"))
    };
    let content = html! {
        (chart.grid())
        (chart.axis())
        @if shows_card { (chart.total(card, &format!("{}: {}", name(&answer.card.name), size(card)))) }
        @for (class, _, bytes) in LINES { path.line.(class) d=(line(bytes)) {} }
        @for (batch, row) in &points {
            @let class = if row.fits { "fits" } else { "too-large" };
            @let (x, y) = (px(chart.x(*batch as f64)), px(chart.y(row.needed_bytes)));
            circle.point.(class) cx=(x) cy=(y) r="4" tabindex="0" {
                title {
                    "batch " (format::grouped(*batch))
                    @if answer.recorded_batches.contains(batch) { ", recorded" } ": "
                    (size(row.peak_allocated_bytes)) " allocated, " (size(row.peak_reserved_bytes))
                    " reserved, smallest card " (size(row.needed_bytes))
                }
            }
        }
        @for batch in ticks(decimal_step(*last, 12)).take_while(|batch| batch <= last) {
            (chart.tick(chart.x(batch as f64), "middle", &format::grouped(batch)))
        }
        text.end x=(RIGHT) y=(px(AXIS + 36.0)) { "batch size" }
        @if let Some(largest) = answer.largest_batch.filter(|largest| (1..=*last).contains(largest)) {
            @let label = format!("largest batch that fits: {}", format::grouped(largest));
            (chart.mark("here", chart.x(largest as f64), [TOP - 8.0, TOP - 12.0], None, &label))
        }
    };
    let legend = html! {
        ul.legend {
            @for (class, what, _) in LINES { (entry(class, what)) }
            li { "● fits" }
            li { "○ does not fit" }
        }
    };
    let svg = chart::svg("timeline plan batches", HEIGHT, "memory over the batch size", &content);
    chart::figure(&svg, &legend)
}
