//! The memory map in the last frame.
//!
//! Of a million blocks only those on the screen become cells, and only after a change of the map, the filter or the
//! position.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::{Arc, Weak};

use memlab_trace::record::Phase;
use memlab_trace::{BlockView, Category, Segment, SegmentMap};

use super::cells::{Cell, cells};
use super::filtered_block::FilteredBlock;
use super::layout::{Layout, SegmentSpan};
use super::order::SegmentOrder;
use memlab_base::category::category_index;
use memlab_base::filter::Filter;
use memlab_follow::snapshot::SnapshotNames;

/// Number and bytes of blocks or segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of blocks or segments.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Sums over the blocks of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapSummary {
    /// All blocks in segments.
    pub blocks: Sum,
    /// Blocks that pass the filter.
    pub passing: Sum,
    /// Blocks by category, in the order of [`Category::ALL`].
    pub categories: [Sum; Category::COUNT],
    /// Segments without a block.
    pub empty: Sum,
}

impl MapSummary {
    fn of(map: &SegmentMap, mut passes: impl FnMut(&BlockView) -> bool) -> Self {
        let mut summary = Self::default();
        for segment in &map.segments {
            if segment.blocks.is_empty() {
                summary.empty.add(segment.bytes);
            }
            for block in &segment.blocks {
                summary.categories[category_index(block.category)].add(block.bytes);
                if passes(block) {
                    summary.passing.add(block.bytes);
                }
            }
        }
        for sum in summary.categories {
            summary.blocks.count += sum.count;
            summary.blocks.bytes = summary.blocks.bytes.saturating_add(sum.bytes);
        }
        summary
    }
}

/// Mixes the few numbers of a block's key. A million keys are looked up before the screen is drawn.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}

/// Cache of the filter's results. Blocks with the same key have the same result.
pub struct FilterCache<'a> {
    filter: &'a Filter,
    names: &'a SnapshotNames,
    known: HashMap<(u32, u32, Category, Phase, u64), bool, BuildHasherDefault<Mixer>>,
}

impl<'a> FilterCache<'a> {
    /// Makes an empty cache.
    pub fn new(filter: &'a Filter, names: &'a SnapshotNames) -> Self {
        Self { filter, names, known: HashMap::default() }
    }

    /// True if a block passes.
    pub fn passes(&mut self, block: &BlockView) -> bool {
        if self.filter.is_empty() {
            return true;
        }
        let Self { filter, names, known } = self;
        let key = (block.stack, block.layer, block.category, block.phase, block.bytes);
        *known.entry(key).or_insert_with(|| filter.passes(&FilteredBlock::new(block, names)))
    }
}

/// Parameters of the layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapParameters {
    /// Order of segments.
    pub order: SegmentOrder,
    /// Columns of the map.
    pub columns: usize,
    /// Available rows.
    pub page: usize,
    /// Zoom: number of scales finer than the one that fits.
    pub closer: isize,
}

/// The map in the last frame.
#[derive(Clone, Debug, Default)]
pub struct DrawnMap {
    of: Weak<SegmentMap>,
    filter: String,
    /// Sums over the blocks.
    pub summary: MapSummary,
    parameters: Option<MapParameters>,
    /// Positions of the segments, in their order.
    pub layout: Layout,
    rows: Range<usize>,
    /// Parts on the screen.
    pub parts: Vec<(SegmentSpan, Vec<Cell>)>,
}

impl DrawnMap {
    /// Discards the data of another map or filter, and sums this one up.
    pub fn sum_up(&mut self, map: &Arc<SegmentMap>, filter_text: &str, cache: &mut FilterCache<'_>) {
        let of = Arc::downgrade(map);
        if !Weak::ptr_eq(&self.of, &of) || self.filter != filter_text {
            let summary = MapSummary::of(map, |block| cache.passes(block));
            *self = Self { of, filter: filter_text.to_owned(), summary, ..Self::default() };
        }
    }

    /// Lays the segments out again after a change.
    pub fn lay_out(&mut self, map: &SegmentMap, parameters: MapParameters) {
        if self.parameters != Some(parameters) {
            let sizes = parameters.order.of(map).iter().map(|segment| segment.bytes).collect();
            self.layout = Layout::fitting(sizes, parameters.columns, parameters.page, parameters.closer);
            (self.parameters, self.rows, self.parts) = (Some(parameters), 0..0, Vec::new());
        }
    }

    /// Makes the cells of these rows, unless they exist already.
    pub fn show(&mut self, segments: &[&Segment], rows: Range<usize>, cache: &mut FilterCache<'_>) {
        if self.rows == rows {
            return;
        }
        let layout = &self.layout;
        let part = |span: SegmentSpan| {
            let cell_bytes = layout.cell_bytes(span.segment);
            let segment = segments[span.segment];
            (span, cells(segment, cell_bytes, span.from, span.cells, |block| cache.passes(block)))
        };
        self.parts = layout.spans(rows.clone()).into_iter().map(part).collect();
        self.rows = rows;
    }
}
