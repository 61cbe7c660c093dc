//! Cells of the memory map.

use memlab_trace::{BlockView, Category, Segment};

use super::pieces::{end, piece_at};
use memlab_base::category::category_index;

/// A cell of the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Category of most of its allocated memory; `None`: free. If blocks in it pass the filter, only they count.
    pub category: Option<Category>,
    /// Allocated part in eighths; at least one if anything is allocated.
    pub eighths: u8,
    /// True if it contains part of a block that passes the filter.
    pub passes: bool,
    /// True if a block starts in it.
    pub begins: bool,
    /// True if a block ends in it.
    pub ends: bool,
    /// True if that block has an odd index in its segment, to distinguish neighbours.
    pub is_odd: bool,
    /// Address of the piece with most of the cell: a block if it contains one.
    pub piece: u64,
}

/// Sums of a cell so far.
#[derive(Clone, Default)]
struct Tally {
    /// Bytes by category, of blocks that pass and of others.
    passing: [u64; Category::COUNT],
    others: [u64; Category::COUNT],
    used: u64,
    /// Block with most of the cell: true if it passes, its bytes here, its address, its index.
    most: (bool, u64, u64, usize),
    begins: bool,
    ends: bool,
}

/// Cells of a segment from number `from` on, `cell_bytes` each.
pub fn cells(
    segment: &Segment,
    cell_bytes: u64,
    from: usize,
    count: usize,
    mut passes: impl FnMut(&BlockView) -> bool,
) -> Vec<Cell> {
    let cell_bytes = cell_bytes.max(1);
    let edge = |cell: usize| {
        let offset = cell_bytes.saturating_mul((from + cell) as u64);
        segment.address.saturating_add(offset).min(end(segment))
    };
    let mut tallies = vec![Tally::default(); count];
    let (start, stop) = (edge(0), edge(count));
    let first = segment.blocks.partition_point(|block| block.address <= start).saturating_sub(1);
    let mut cell = 0;
    let blocks = segment.blocks.iter().enumerate().skip(first);
    for (index, block) in blocks.take_while(|(_, block)| block.address < stop) {
        let block_end = block.address.saturating_add(block.bytes);
        if block_end <= start || block.bytes == 0 {
            continue;
        }
        while cell + 1 < count && edge(cell + 1) <= block.address {
            cell += 1;
        }
        let passes = passes(block);
        let mut at = cell;
        while at < count && edge(at) < block_end {
            let (left, right) = (edge(at), edge(at + 1));
            let bytes = right.min(block_end).saturating_sub(left.max(block.address));
            tallies[at].add(index, block, bytes, passes);
            tallies[at].begins |= block.address >= left;
            tallies[at].ends |= block_end <= right;
            at += 1;
        }
    }
    tallies.iter().enumerate().map(|(at, tally)| tally.cell(segment, edge(at), edge(at + 1))).collect()
}

impl Tally {
    fn add(&mut self, index: usize, block: &BlockView, bytes: u64, passes: bool) {
        let sums = if passes { &mut self.passing } else { &mut self.others };
        let sum = &mut sums[category_index(block.category)];
        *sum = sum.saturating_add(bytes);
        self.used = self.used.saturating_add(bytes);
        // The first of equal blocks stays.
        if (passes, bytes) > (self.most.0, self.most.1) {
            self.most = (passes, bytes, block.address, index);
        }
    }

    fn cell(&self, segment: &Segment, from: u64, to: u64) -> Cell {
        if self.used == 0 {
            let piece = piece_at(segment, from).map_or(segment.address, |piece| piece.address);
            return Cell { piece, ..Cell::default() };
        }
        let passes = self.passing.iter().any(|bytes| *bytes > 0);
        let sums = if passes { &self.passing } else { &self.others };
        let most = sums.iter().max().copied().unwrap_or(0);
        let category = Category::ALL.into_iter().find(|category| sums[category_index(*category)] == most);
        let eighths = u128::from(self.used) * 8 / u128::from(to.saturating_sub(from).max(1));
        Cell {
            category,
            eighths: eighths.clamp(1, 8) as u8,
            passes,
            begins: self.begins,
            ends: self.ends,
            is_odd: self.most.3 % 2 == 1,
            piece: self.most.2,
        }
    }
}

#[cfg(test)]
mod tests {
    use memlab_trace::record::Phase;

    use super::*;

    fn block(address: u64, bytes: u64, category: Category) -> BlockView {
        BlockView { address, bytes, category, stack: 0, layer: 0, owner: 0, range: 0, phase: Phase::Other, time: 0 }
    }

    fn segment() -> Segment {
        let blocks = vec![
            block(1000, 20, Category::Parameter),
            block(1020, 5, Category::Gradient),
            block(1025, 5, Category::Activation),
            block(1052, 1, Category::Input),
        ];
        Segment { address: 1000, bytes: 75, blocks, ..Segment::default() }
    }

    #[test]
    fn a_cell_shows_what_most_of_it_is() {
        // GIVEN a segment of eight cells, the last one half as wide
        let cells = cells(&segment(), 10, 0, 8, |_| true);
        // THEN blocks are at their places, and a single byte is visible
        use Category::{Gradient, Input, Parameter};
        let categories: Vec<_> = cells.iter().map(|cell| cell.category).collect();
        assert_eq!(categories, [Some(Parameter), Some(Parameter), Some(Gradient), None, None, Some(Input), None, None]);
        assert_eq!(cells.iter().map(|cell| cell.eighths).collect::<Vec<_>>(), [8, 8, 8, 0, 0, 1, 0, 0]);
        let pieces: Vec<_> = cells.iter().map(|cell| cell.piece).collect();
        assert_eq!(pieces, [1000, 1000, 1020, 1030, 1030, 1052, 1053, 1053]);
        let edges: Vec<_> = cells.iter().map(|cell| (cell.begins, cell.ends)).collect();
        assert_eq!(edges[..3], [(true, false), (false, true), (true, true)]);
    }

    #[test]
    fn small_blocks_that_pass_the_filter_are_shown() {
        let cells = cells(&segment(), 75, 0, 1, |block| block.category == Category::Input);
        assert_eq!((cells[0].category, cells[0].passes, cells[0].piece), (Some(Category::Input), true, 1052));
    }

    #[test]
    fn a_part_looks_as_it_does_in_the_whole() {
        let whole = cells(&segment(), 10, 0, 8, |_| true);
        for from in 0..8 {
            for count in 0..8 - from {
                assert_eq!(cells(&segment(), 10, from, count, |_| true), whole[from..from + count]);
            }
        }
    }
}
