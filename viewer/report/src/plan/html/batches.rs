//! Memory over the batch size.

use std::fmt::Write as _;

use super::picture::{BOTTOM, HEIGHT, RIGHT, Scale, TOP, WIDTH};
use crate::page::axes::decimal_step;
use crate::page::elements::{name, size};
use crate::plan::answer::{Answer, BatchRow};
use memlab_units::format;

/// What is drawn, from the top: its class in the style, what it is, and its bytes.
type Line = (&'static str, &'static str, fn(&BatchRow) -> u64);
const LINES: [Line; 3] = [
    ("needed", "smallest card", |row| row.needed_bytes),
    ("reserved", "reserved", |row| row.peak_reserved_bytes),
    ("allocated", "allocated", |row| row.peak_allocated_bytes),
];

/// The picture; nothing if the batch cannot be chosen.
pub(super) fn figure(answer: &Answer, rows: &[BatchRow]) -> String {
    let points: Vec<(u64, &BatchRow)> = rows.iter().filter_map(|row| Some((row.batch?, row))).collect();
    let (Some((last, _)), Some(most)) =
        (points.last(), points.iter().map(|(_, row)| row.needed_bytes.max(row.peak_reserved_bytes)).max())
    else {
        return String::new();
    };
    let card = answer.card_bytes;
    // The card is drawn where a batch comes near it.
    let shows_card = most > card / 2;
    let scale = Scale { until: *last as f64 * 1.02, top: if shows_card { most.max(card) } else { most } as f64 * 1.06 };
    let mut svg = scale.begin("batches", "memory over the batch size");
    if shows_card {
        scale.card(&mut svg, card, &format!("{}: {}", name(&answer.card.name), size(card)));
    }
    for (class, _, bytes) in LINES {
        let corners =
            points.iter().map(|(batch, row)| format!("{:.1} {:.1}", scale.x(*batch as f64), scale.y(bytes(row))));
        let _ = writeln!(svg, "<path class=\"line {class}\" d=\"M{}\"/>", corners.collect::<Vec<_>>().join("L"));
    }
    for (batch, row) in &points {
        let recorded = if answer.recorded_batches.contains(batch) { ", recorded" } else { "" };
        let said = format!(
            "batch {}{recorded}: {} allocated, {} reserved, smallest card {}",
            format::grouped(*batch),
            size(row.peak_allocated_bytes),
            size(row.peak_reserved_bytes),
            size(row.needed_bytes)
        );
        let class = if row.fits { "fits" } else { "too-large" };
        let (x, y) = (scale.x(*batch as f64), scale.y(row.needed_bytes));
        let _ = writeln!(
            svg,
            "<circle class=\"point {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" tabindex=\"0\"><title>{said}</title></circle>"
        );
    }
    axis(&mut svg, &scale, *last);
    if let Some(largest) = answer.largest_batch.filter(|largest| (1..=*last).contains(largest)) {
        let x = scale.x(largest as f64);
        let (anchor, at) = if x > WIDTH / 2.0 { ("end", x - 9.0) } else { ("start", x + 9.0) };
        let _ = writeln!(
            svg,
            "<g class=\"here\"><path d=\"M{x:.1} {}V{}\"/><text class=\"{anchor}\" x=\"{at:.1}\" y=\"{}\">largest batch that fits: \
             {}</text></g>",
            TOP - 8.0,
            HEIGHT - BOTTOM,
            TOP - 12.0,
            format::grouped(largest)
        );
    }
    svg += "</svg>\n";
    let legend: String =
        LINES.iter().map(|(class, what, _)| format!("<li><span class=\"swatch {class}\"></span>{what}</li>")).collect();
    format!(
        "<figure>\n<div class=\"scroll\">{svg}</div><figcaption><ul class=\"legend\">{legend}<li>● fits</li><li>○ does not \
         fit</li></ul></figcaption>\n</figure>\n"
    )
}

fn axis(svg: &mut String, scale: &Scale, last: u64) {
    let axis = HEIGHT - BOTTOM;
    let step = decimal_step(last, 12);
    for batch in (0..).map(|index| index * step).take_while(|batch| *batch <= last) {
        let x = scale.x(batch as f64);
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{x:.1} {axis}v5\"/><text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            axis + 19.0,
            format::grouped(batch)
        );
    }
    let _ = writeln!(svg, "<text class=\"end\" x=\"{}\" y=\"{:.1}\">batch size</text>", WIDTH - RIGHT, axis + 36.0);
}
