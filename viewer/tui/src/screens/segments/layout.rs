//! Layout of the segments, all on one scale, so that sizes compare.
//!
//! A segment longer than a row continues in the rows below it. Segments shorter than half a row share rows.

use std::ops::{Range, RangeInclusive};

/// Minimum width of a segment.
const MIN_SEGMENT_COLUMNS: usize = 2;
/// Columns between segments of a row.
const GAP: usize = 1;

/// Positions of the segments on the map.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Bytes per column.
    pub scale: u64,
    /// Numbers of available scales that are coarser and finer than the one that fits.
    pub nearer: RangeInclusive<isize>,
    /// Columns of a row.
    columns: usize,
    /// Bytes of each segment.
    sizes: Vec<u64>,
    runs: Vec<Run>,
    rows: usize,
}

impl Default for Layout {
    fn default() -> Self {
        Self { scale: scale(0), nearer: 0..=0, columns: 1, sizes: Vec::new(), runs: Vec::new(), rows: 0 }
    }
}

/// Segments that share a row, or a segment with one or more rows for itself.
#[derive(Clone, Copy, Debug)]
struct Run {
    row: usize,
    first: usize,
    count: usize,
}

/// Part of a segment in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpan {
    /// Row of the map.
    pub row: usize,
    /// First column.
    pub column: usize,
    /// Index of the segment.
    pub segment: usize,
    /// First of the segment's cells in it.
    pub from: usize,
    /// Number of cells.
    pub cells: usize,
    /// Number of segments that share the row.
    pub sharing: usize,
}

/// Average columns of a segment below which it shows little.
const READABLE_COLUMNS: usize = 8;
/// Maximum number of screens filled to show more.
const MAX_SCREENS: usize = 3;
/// Number of scales.
const SCALES: usize = 217;

/// Bytes per column on a scale, finest first: 512, 640, 768, 896, 1024, 1280 …
fn scale(step: usize) -> u64 {
    (4 + step as u64 % 4) << (7 + step / 4)
}

impl Layout {
    /// Lays out segments on rows of `columns`, on the finest scale that fits into `page` rows.
    ///
    /// Segments too small to read on that scale fill several pages. `closer`: number of scales finer, or coarser if
    /// negative.
    pub fn fitting(sizes: Vec<u64>, columns: usize, page: usize, closer: isize) -> Self {
        let mut layout = Self { columns: columns.max(1), sizes, ..Self::default() };
        let least = layout.rows_at(scale(SCALES - 1));
        let is_readable = layout.sizes.len() * READABLE_COLUMNS <= page * layout.columns;
        let wanted = if is_readable && least <= page { page } else { (MAX_SCREENS * page).max(least + least / 2) };
        let fine = layout.finest(wanted);
        layout.nearer = -(layout.finest(least).saturating_sub(fine) as isize)..=fine as isize;
        layout.scale = scale(fine.saturating_add_signed(-closer.clamp(*layout.nearer.start(), fine as isize)));
        let mut runs = Vec::new();
        layout.rows = layout.walk(layout.scale, |run| runs.push(run));
        layout.runs = runs;
        layout
    }

    /// Finest scale with at most `rows` rows.
    fn finest(&self, rows: usize) -> usize {
        // A coarser scale never needs more rows.
        let (mut fine, mut coarse) = (0, SCALES - 1);
        while fine < coarse {
            let middle = fine.midpoint(coarse);
            if self.rows_at(scale(middle)) <= rows { coarse = middle } else { fine = middle + 1 }
        }
        fine
    }

    fn rows_at(&self, scale: u64) -> usize {
        self.walk(scale, |_| {})
    }

    /// Visits the rows, one run after the other; returns the number of rows.
    fn walk(&self, scale: u64, mut tell: impl FnMut(Run)) -> usize {
        let mut row = 0;
        let mut used = 0;
        let mut run = Run { row: 0, first: 0, count: 0 };
        for (index, bytes) in self.sizes.iter().enumerate() {
            let cells = self.cells_at(*bytes, scale);
            let shares = 2 * cells + GAP <= self.columns;
            if run.count > 0 && (!shares || used + GAP + cells > self.columns) {
                tell(run);
                row += 1;
                run.count = 0;
            }
            if !shares {
                tell(Run { row, first: index, count: 1 });
                row = row.saturating_add(cells.div_ceil(self.columns));
                continue;
            }
            if run.count == 0 {
                (run, used) = (Run { row, first: index, count: 0 }, 0);
            }
            used += cells + if run.count > 0 { GAP } else { 0 };
            run.count += 1;
        }
        if run.count > 0 {
            tell(run);
            row += 1;
        }
        row
    }

    fn cells_at(&self, bytes: u64, scale: u64) -> usize {
        let cells = usize::try_from(bytes.div_ceil(scale.max(1))).unwrap_or(usize::MAX / 4).min(usize::MAX / 4);
        cells.max(MIN_SEGMENT_COLUMNS.min(self.columns))
    }

    /// Number of rows of the map.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of cells of a segment.
    pub fn cells(&self, segment: usize) -> usize {
        self.sizes.get(segment).map_or(0, |bytes| self.cells_at(*bytes, self.scale))
    }

    /// Bytes per cell of a segment: fewer than elsewhere if the segment is drawn wider than its size.
    pub fn cell_bytes(&self, segment: usize) -> u64 {
        let Some(bytes) = self.sizes.get(segment) else { return 1 };
        let least = MIN_SEGMENT_COLUMNS.min(self.columns) as u64;
        if bytes.div_ceil(self.scale.max(1)) < least { bytes.div_ceil(least).max(1) } else { self.scale.max(1) }
    }

    /// Row that contains a byte of a segment.
    pub fn row_of(&self, segment: usize, offset: u64) -> usize {
        let index = self.runs.partition_point(|run| run.first <= segment).saturating_sub(1);
        let Some(run) = self.runs.get(index) else { return 0 };
        if run.count > 1 {
            return run.row;
        }
        let cell = (offset / self.cell_bytes(segment)).min(self.cells(segment).saturating_sub(1) as u64);
        run.row.saturating_add(cell as usize / self.columns)
    }

    /// Start of a row: a segment, and the offset of the byte in it.
    pub fn at(&self, row: usize) -> Option<(usize, u64)> {
        let run = self.run_at(row)?;
        let cell = row.saturating_sub(run.row).saturating_mul(self.columns).min(self.cells(run.first) - 1);
        Some((run.first, (cell as u64).saturating_mul(self.cell_bytes(run.first))))
    }

    fn run_at(&self, row: usize) -> Option<&Run> {
        let index = self.runs.partition_point(|run| run.row <= row).checked_sub(1)?;
        self.runs.get(index)
    }

    /// Content of these rows, from left to right and from top to bottom.
    pub fn spans(&self, rows: Range<usize>) -> Vec<SegmentSpan> {
        let mut spans = Vec::new();
        let Some(first) = self.runs.partition_point(|run| run.row <= rows.start).checked_sub(1) else {
            return spans;
        };
        for run in self.runs[first..].iter().take_while(|run| run.row < rows.end) {
            if run.count > 1 {
                let mut column = 0;
                for segment in run.first..run.first + run.count {
                    let cells = self.cells(segment);
                    spans.push(SegmentSpan { row: run.row, column, segment, from: 0, cells, sharing: run.count });
                    column += cells + GAP;
                }
                continue;
            }
            let all = self.cells(run.first);
            for row in run.row.max(rows.start)..rows.end {
                let from = (row - run.row).saturating_mul(self.columns);
                if from >= all {
                    break;
                }
                let cells = (all - from).min(self.columns);
                spans.push(SegmentSpan { row, column: 0, segment: run.first, from, cells, sharing: 1 });
            }
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn scales_grow() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(scale), [512, 640, 768, 896, 1024, 1280]);
        assert!((1..SCALES).all(|step| scale(step) > scale(step - 1)));
    }

    #[test]
    fn small_segments_share_a_row_and_large_ones_go_on_below() {
        // GIVEN a large segment between small ones
        let sizes = vec![2 * MIB, 2 * MIB, 300 * MIB, 2 * MIB];
        // WHEN they are laid out in ten rows of forty columns
        let layout = Layout::fitting(sizes, 40, 10, 0);
        // THEN a column is 1 MiB: 300 columns in eight rows
        assert_eq!((layout.scale, layout.rows()), (MIB, 10));
        let spans = layout.spans(0..10);
        let seen: Vec<_> = spans.iter().map(|it| (it.row, it.column, it.segment, it.from, it.cells)).collect();
        assert_eq!(seen[..3], [(0, 0, 0, 0, 2), (0, 3, 1, 0, 2), (1, 0, 2, 0, 40)]);
        assert_eq!(seen[9..], [(8, 0, 2, 280, 20), (9, 0, 3, 0, 2)]);
        assert_eq!([layout.row_of(2, 0), layout.row_of(2, 285 * MIB), layout.row_of(3, 0)], [1, 8, 9]);
        assert_eq!([layout.at(0), layout.at(3), layout.at(99)], [Some((0, 0)), Some((2, 80 * MIB)), Some((3, MIB))]);
    }

    #[test]
    fn segments_keep_two_columns_if_more_than_fit() {
        // GIVEN ten thousand segments, far too many for a screen
        let layout = Layout::fitting(vec![2 * MIB; 10_000], 80, 20, 0);
        // THEN each still has its two columns, with one in between
        assert!(layout.rows() >= 10_000 / 27);
        assert!(layout.spans(0..20).iter().all(|span| span.cells >= 2));
    }

    proptest! {
        #[test]
        fn every_cell_is_drawn_once_and_nothing_overlaps(
            sizes in proptest::collection::vec(prop_oneof![1u64..200 * MIB, Just(u64::MAX / 3), Just(0)], 0..40),
            columns in 0usize..90,
            page in 0usize..50,
            closer in -3isize..4,
        ) {
            let layout = Layout::fitting(sizes.clone(), columns, page, closer);
            let drawn = layout.rows().min(2000);
            let spans = layout.spans(0..drawn);
            for pair in spans.windows(2) {
                prop_assert!(pair[0].row < pair[1].row || pair[0].column + pair[0].cells < pair[1].column);
            }
            for span in &spans {
                prop_assert!(span.cells > 0 && span.column + span.cells <= columns.max(1));
                let offset = span.from as u64 * layout.cell_bytes(span.segment);
                prop_assert_eq!(layout.row_of(span.segment, offset), span.row);
            }
            if drawn == layout.rows() {
                for (segment, bytes) in sizes.iter().enumerate() {
                    let of = spans.iter().filter(|span| span.segment == segment);
                    let cells = layout.cells(segment);
                    prop_assert_eq!(of.map(|span| span.cells).sum::<usize>(), cells);
                    prop_assert!(cells as u128 * u128::from(layout.cell_bytes(segment)) >= u128::from(*bytes));
                }
            }
        }
    }
}
