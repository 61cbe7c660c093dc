//! The memory map: the allocator's segments in sequence, and the blocks in them, by category.

use std::cmp::Reverse;

use maud::{Markup, html};
use memlab_trace::{BlockView, Category, DeviceView, Segment, SegmentMap};

use super::super::names::ReportNames;
use crate::page::chart::{self, WIDTH, px};
use crate::page::elements::{MAX_NAME_COLUMNS, note, plural, size, swatch};
use memlab_base::category::{category_index, category_names};
use memlab_base::text::{clean, fit_end};
use memlab_units::format;

const ROW: f64 = 18.0;
const GAP: f64 = 4.0;

/// Approximate number of rows in the map.
const TARGET_ROWS: u64 = 40;
/// Minimum bytes in a row: the size of the allocator's smallest segment.
const MIN_ROW_BYTES: u64 = 2 << 20;
/// Blocks narrower than this are drawn together.
const MIN_BLOCK_WIDTH: f64 = 1.2;
/// Maximum number of blocks with a description.
const MAX_DESCRIBED_BLOCKS: usize = 3000;

/// The part of a segment in one row.
struct Run<'s> {
    segment: &'s Segment,
    row: usize,
    /// Start in the row, in bytes.
    at: u64,
    /// Address of the first byte, and of the byte after the last.
    addresses: (u64, u64),
}

/// Map of a device; empty without segments.
pub(super) fn figure(names: &ReportNames<'_>, device: &DeviceView) -> Markup {
    let map = names.model.segments(device.index);
    if map.segments.is_empty() {
        return Markup::default();
    }
    let row_bytes =
        (map.reserved_bytes / TARGET_ROWS).max(MIN_ROW_BYTES).checked_next_power_of_two().unwrap_or(u64::MAX);
    let runs = runs(&map, row_bytes);
    let rows = runs.last().map_or(0, |run| run.row + 1);
    let least = least_told(&map);
    let what = format!("{} in {}", size(map.reserved_bytes), plural(map.segments.len() as u64, "segment"));
    let drawn = html! {
        @for run in &runs { (draw(names, run, row_bytes, least)) }
    };
    let svg = chart::svg("map", rows as f64 * (ROW + GAP), &what, &drawn);
    html! { (note(&description(&map, row_bytes))) (chart::figure(&svg, &legend(&map))) }
}

fn description(map: &SegmentMap, row_bytes: u64) -> String {
    format!(
        "{} in {}, by address, {} a row. {} are free ({}); the largest free block is {}. A larger block needs a new \
         segment.",
        size(map.reserved_bytes),
        plural(map.segments.len() as u64, "segment"),
        format::tick(row_bytes),
        size(map.free_bytes),
        format::percent(map.free_bytes, map.reserved_bytes),
        size(map.largest_free_bytes)
    )
}

/// Divides the segments into rows. A segment that fits into the rest of a row shares it with the previous one.
fn runs(map: &SegmentMap, row_bytes: u64) -> Vec<Run<'_>> {
    let mut runs = Vec::new();
    let (mut row, mut at) = (0, 0);
    for segment in &map.segments {
        if at > 0 && segment.bytes > row_bytes - at {
            (row, at) = (row + 1, 0);
        }
        let mut from = segment.address;
        let end = segment.address.saturating_add(segment.bytes);
        while from < end {
            let bytes = (end - from).min(row_bytes - at);
            runs.push(Run { segment, row, at, addresses: (from, from + bytes) });
            (from, at) = (from + bytes, at + bytes);
            if at == row_bytes {
                (row, at) = (row + 1, 0);
            }
        }
    }
    runs
}

/// Minimum size of a block with a description.
fn least_told(map: &SegmentMap) -> u64 {
    let mut sizes: Vec<u64> =
        map.segments.iter().flat_map(|segment| &segment.blocks).map(|block| block.bytes).collect();
    sizes.sort_unstable_by_key(|bytes| Reverse(*bytes));
    sizes.get(MAX_DESCRIBED_BLOCKS).map_or(0, |bytes| bytes + 1)
}

fn draw(names: &ReportNames<'_>, run: &Run<'_>, row_bytes: u64, least: u64) -> Markup {
    let (from, to) = run.addresses;
    let x = |address: u64| WIDTH * ((run.at + (address - from)) as f64 / row_bytes as f64);
    let y = run.row as f64 * (ROW + GAP);
    let blocks = &run.segment.blocks;
    let first = blocks.partition_point(|block| block.address.saturating_add(block.bytes) <= from);
    let mut drawn_to = f64::MIN;
    // The first of several blocks at the same position stands for all.
    let drawn = blocks[first..].iter().take_while(|block| block.address < to).filter_map(|block| {
        let (left, right) = (x(block.address.max(from)), x(block.address.saturating_add(block.bytes).min(to)));
        let left = (right - drawn_to >= MIN_BLOCK_WIDTH).then(|| left.max(drawn_to))?;
        drawn_to = right.max(left + MIN_BLOCK_WIDTH);
        Some((block, left, (right - left - 0.4).max(0.8)))
    });
    html! {
        rect.hole x=(px(x(from) + 0.5)) y=(y) width=(px((x(to) - x(from) - 1.0).max(0.5))) height=(ROW) {
            title {
                "free, in a segment of " (size(run.segment.bytes)) @if run.segment.is_expandable { " that can grow" }
            }
        }
        @for (block, left, width) in drawn {
            rect.{ "c" (category_index(block.category)) } x=(px(left)) y=(y) width=(px(width)) height=(ROW) {
                @if block.bytes >= least { title { (clean(&tooltip(names, block))) } }
            }
        }
    }
}

/// Category, line and time of a block.
fn tooltip(names: &ReportNames<'_>, block: &BlockView) -> String {
    let line = names.line(names.model.line_of(block.stack).as_ref());
    let layer = names.model.layer_of(block).name;
    let layer = layer.filter(|layer| !layer.is_empty()).map(|layer| format!("\nlayer {layer}")).unwrap_or_default();
    format!(
        "{} of {}\n{}{}\nallocated after {}",
        size(block.bytes),
        category_names(block.category).0,
        fit_end(&line, MAX_NAME_COLUMNS, "…"),
        fit_end(&layer, MAX_NAME_COLUMNS, "…"),
        format::duration(block.time)
    )
}

/// Categories on the map, largest first.
fn legend(map: &SegmentMap) -> Markup {
    let mut held: Vec<(Category, u64)> = Vec::new();
    for block in map.segments.iter().flat_map(|segment| &segment.blocks) {
        match held.iter_mut().find(|(other, _)| *other == block.category) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(block.bytes),
            None => held.push((block.category, block.bytes)),
        }
    }
    held.sort_by_key(|(category, bytes)| (Reverse(*bytes), category_index(*category)));
    html! {
        ul.legend {
            @for (category, bytes) in &held {
                li { (swatch(*category)) (category_names(*category).0) " " (size(*bytes)) }
            }
            li { span.swatch.hole {} "free " (size(map.free_bytes)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_cut_into_rows() {
        // GIVEN a segment of two and a half rows, one that fits behind it and one that does not
        let segment = |address, bytes| Segment { address, bytes, ..Segment::default() };
        let map = SegmentMap {
            segments: vec![segment(1000, 250), segment(5000, 50), segment(9000, 60)],
            ..SegmentMap::default()
        };
        // WHEN they are divided THEN every byte is in one row, and rows do not overflow
        let cut: Vec<_> = runs(&map, 100).iter().map(|run| (run.row, run.at, run.addresses)).collect();
        assert_eq!(
            cut,
            [
                (0, 0, (1000, 1100)),
                (1, 0, (1100, 1200)),
                (2, 0, (1200, 1250)),
                (2, 50, (5000, 5050)),
                (3, 0, (9000, 9060))
            ]
        );
    }
}
