//! The memory map: the allocator's segments one after the other, and the blocks in them, by category.

use std::cmp::Reverse;
use std::fmt::Write as _;

use memlab_trace::{BlockView, DeviceView, Segment, SegmentMap};

use super::super::names::ReportNames;
use crate::page::elements::{MAX_NAME_COLUMNS, plural, size};
use memlab_base::category::{LETTERS, category_index, category_names};
use memlab_base::text::{fit_end, markup};
use memlab_units::format;

const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;
const GAP: f64 = 4.0;

/// About how many rows the map has.
const ROWS: u64 = 40;
/// The fewest bytes in a row: the allocator's smallest segment is as large.
const MIN_ROW_BYTES: u64 = 2 << 20;
/// Blocks narrower than this are drawn together.
const MIN_BLOCK_WIDTH: f64 = 1.2;
/// The most blocks that say what they are.
const MAX_DESCRIBED_BLOCKS: usize = 3000;

/// A part of a segment that lies in one row: the row, where it begins and ends in it, and its bytes in the segment.
struct Run<'s> {
    segment: &'s Segment,
    row: usize,
    /// Where it begins in the row, in bytes.
    at: u64,
    /// The address of its first byte, and behind its last.
    addresses: (u64, u64),
}

/// The map of a device; nothing where the allocator has no segments.
pub(super) fn figure(names: &ReportNames<'_>, device: &DeviceView) -> String {
    let map = names.model.segments(device.index);
    if map.segments.is_empty() {
        return String::new();
    }
    let row_bytes = (map.reserved_bytes / ROWS).max(MIN_ROW_BYTES).checked_next_power_of_two().unwrap_or(u64::MAX);
    let runs = runs(&map, row_bytes);
    let rows = runs.last().map_or(0, |run| run.row + 1);
    let height = rows as f64 * (ROW + GAP);
    let mut svg = format!(
        "<svg class=\"map\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        markup(&format!("{} in {}", size(map.reserved_bytes), plural(map.segments.len() as u64, "segment")))
    );
    let least = least_told(&map);
    for run in &runs {
        draw(&mut svg, names, run, row_bytes, least);
    }
    svg += "</svg>\n";
    format!(
        "<p class=\"note\">{}</p>\n<figure>\n<div class=\"scroll\">{svg}</div>\n<figcaption>{}</figcaption>\n</figure>\n",
        markup(&said(&map, row_bytes)),
        legend(&map)
    )
}

fn said(map: &SegmentMap, row_bytes: u64) -> String {
    format!(
        "{} in {}, by address, a row for {}. {} of it are free ({}); the largest free block is {}, so a larger one needs a new \
         segment.",
        size(map.reserved_bytes),
        plural(map.segments.len() as u64, "segment"),
        format::tick(row_bytes),
        size(map.free_bytes),
        format::percent(map.free_bytes, map.reserved_bytes),
        size(map.largest_free_bytes)
    )
}

/// Cuts the segments into rows. One that is shorter than the rest of a row shares it with the one before.
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

/// How large a block has to be to say what it is.
fn least_told(map: &SegmentMap) -> u64 {
    let mut sizes: Vec<u64> =
        map.segments.iter().flat_map(|segment| &segment.blocks).map(|block| block.bytes).collect();
    sizes.sort_unstable_by_key(|bytes| Reverse(*bytes));
    sizes.get(MAX_DESCRIBED_BLOCKS).map_or(0, |bytes| bytes + 1)
}

fn draw(svg: &mut String, names: &ReportNames<'_>, run: &Run<'_>, row_bytes: u64, least: u64) {
    let (from, to) = run.addresses;
    let x = |address: u64| WIDTH * ((run.at + (address - from)) as f64 / row_bytes as f64);
    let y = run.row as f64 * (ROW + GAP);
    let _ = writeln!(
        svg,
        "<rect class=\"hole\" x=\"{:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{ROW}\"><title>free, in a segment of {}{}</title></rect>",
        x(from) + 0.5,
        (x(to) - x(from) - 1.0).max(0.5),
        size(run.segment.bytes),
        if run.segment.is_expandable { " that can grow" } else { "" },
    );
    let blocks = &run.segment.blocks;
    let first = blocks.partition_point(|block| block.address.saturating_add(block.bytes) <= from);
    let mut drawn_to = f64::MIN;
    for block in blocks[first..].iter().take_while(|block| block.address < to) {
        let (left, right) = (x(block.address.max(from)), x(block.address.saturating_add(block.bytes).min(to)));
        // Of those that would be drawn on the same spot, the first stands for all.
        if right - drawn_to < MIN_BLOCK_WIDTH {
            continue;
        }
        let left = left.max(drawn_to);
        let width = (right - left - 0.4).max(0.8);
        drawn_to = right.max(left + MIN_BLOCK_WIDTH);
        let class = category_index(block.category);
        let _ = write!(svg, "<rect class=\"c{class}\" x=\"{left:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{ROW}\"");
        let _ = match block.bytes >= least {
            true => writeln!(svg, "><title>{}</title></rect>", markup(&told(names, block))),
            false => writeln!(svg, "/>"),
        };
    }
}

/// What a block is, who allocated it and when.
fn told(names: &ReportNames<'_>, block: &BlockView) -> String {
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

/// The categories that are on the map, the largest first.
fn legend(map: &SegmentMap) -> String {
    let mut held: Vec<(usize, &str, u64)> = Vec::new();
    for block in map.segments.iter().flat_map(|segment| &segment.blocks) {
        let index = category_index(block.category);
        match held.iter_mut().find(|(other, ..)| *other == index) {
            Some((.., bytes)) => *bytes = bytes.saturating_add(block.bytes),
            None => held.push((index, category_names(block.category).0, block.bytes)),
        }
    }
    held.sort_by_key(|(index, _, bytes)| (Reverse(*bytes), *index));
    let entry = |(index, name, bytes): &(usize, &str, u64)| {
        format!("<li><span class=\"swatch c{index}\">{}</span>{name} {}</li>", LETTERS[*index], size(*bytes))
    };
    let free = format!("<li><span class=\"swatch hole\"></span>free {}</li>", size(map.free_bytes));
    format!("<ul class=\"legend\">{}{free}</ul>", held.iter().map(entry).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_cut_into_rows() {
        // GIVEN a segment of two rows and a half, one that fits behind it and one that does not
        let segment = |address, bytes| Segment { address, bytes, ..Segment::default() };
        let map = SegmentMap {
            segments: vec![segment(1000, 250), segment(5000, 50), segment(9000, 60)],
            ..SegmentMap::default()
        };
        // WHEN it is cut THEN every byte is in one row, and rows do not overflow
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
