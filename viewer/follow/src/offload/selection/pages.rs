//! Selects whole pages for blocks that do not end at page boundaries, because memory moves in whole pages.

use std::collections::BTreeMap;

use memlab_protocol::request::Range;

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// True if it is selected.
    pub is_wanted: bool,
}

/// The pages to move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Address ranges in order; adjacent pages form one range.
    pub ranges: Vec<Range>,
    /// Total size of the pages.
    pub bytes: u64,
    /// Total size of the wanted blocks.
    pub wanted_bytes: u64,
    /// Part of the wanted blocks inside the pages.
    pub moved_bytes: u64,
}

impl Pages {
    /// Bytes in these pages that are not wanted: other blocks, and holes.
    pub fn other_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.moved_bytes)
    }

    /// Bytes of wanted blocks outside these pages.
    pub fn left_bytes(&self) -> u64 {
        self.wanted_bytes.saturating_sub(self.moved_bytes)
    }
}

/// Live bytes in a page.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    live: u64,
    wanted: u64,
}

/// Returns the pages of which at least half of the live bytes are wanted.
///
/// Blocks may come in any order; they do not overlap.
///
/// `page_bytes` must not be 0.
pub fn whole_pages(blocks: impl IntoIterator<Item = Block>, page_bytes: u64) -> Pages {
    // Only the first and last page of a block can hold other blocks, so each block needs at most two entries.
    let mut edges: BTreeMap<u64, Share> = BTreeMap::new();
    // Pages that one wanted block fills: the first, and the one after the last.
    let mut filled: Vec<(u64, u64)> = Vec::new();
    let mut pages = Pages::default();
    for Block { address, bytes, is_wanted } in blocks {
        let end = address.saturating_add(bytes);
        if end == address {
            continue;
        }
        let (first, last) = (address / page_bytes, (end - 1) / page_bytes);
        let mut add = |page: u64, bytes: u64| {
            let share = edges.entry(page).or_default();
            share.live = share.live.saturating_add(bytes);
            if is_wanted {
                share.wanted = share.wanted.saturating_add(bytes);
            }
        };
        if first == last {
            add(first, end - address);
        } else {
            add(first, (first + 1) * page_bytes - address);
            add(last, end - last * page_bytes);
        }
        if is_wanted {
            pages.wanted_bytes = pages.wanted_bytes.saturating_add(end - address);
            if first + 1 < last {
                filled.push((first + 1, last));
                pages.moved_bytes = pages.moved_bytes.saturating_add((last - first - 1).saturating_mul(page_bytes));
            }
        }
    }
    for (page, share) in edges {
        if share.wanted > 0 && share.wanted >= share.live - share.wanted {
            pages.moved_bytes = pages.moved_bytes.saturating_add(share.wanted);
            filled.push((page, page.saturating_add(1)));
        }
    }
    filled.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (first, after) in filled {
        match merged.last_mut() {
            Some(before) if first <= before.1 => before.1 = before.1.max(after),
            _ => merged.push((first, after)),
        }
    }
    pages.ranges = merged
        .into_iter()
        .map(|(first, after)| (first * page_bytes, (after - first).saturating_mul(page_bytes)))
        .collect();
    pages.bytes = pages.ranges.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    pages
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(address: u64, bytes: u64, is_wanted: bool) -> Block {
        Block { address, bytes, is_wanted }
    }

    #[test]
    fn a_page_goes_if_half_of_it_is_wanted() {
        // GIVEN pages of 10: one half wanted, one slightly less, one with a hole, one with only the wanted block
        let blocks = [
            block(0, 5, true),
            block(5, 5, false),
            block(10, 4, true),
            block(14, 6, false),
            block(25, 2, true),
            block(30, 10, true),
            block(40, 10, false),
        ];
        // WHEN pages are selected THEN the second and the last stay, and adjacent pages form one range
        let pages = whole_pages(blocks, 10);
        assert_eq!(pages.ranges, [(0, 10), (20, 20)]);
        assert_eq!((pages.bytes, pages.wanted_bytes, pages.moved_bytes), (30, 21, 17));
        assert_eq!((pages.other_bytes(), pages.left_bytes()), (13, 4));
    }

    #[test]
    fn blocks_out_of_this_world_bring_nothing_down() {
        for page_bytes in [1, 7, 2 << 20, u64::MAX] {
            let blocks = [
                block(u64::MAX, u64::MAX, true),
                block(0, u64::MAX, true),
                block(5, u64::MAX / 2, false),
                block(u64::MAX - 1, 1, true),
                block(3, 0, true),
            ];
            let pages = whole_pages(blocks, page_bytes);
            assert!(pages.ranges.len() <= 4, "{pages:?}");
        }
    }

    /// A reference implementation, byte by byte and page by page.
    fn brute_force(blocks: &[Block], page_bytes: u64) -> Pages {
        let end = blocks.iter().map(|block| block.address + block.bytes).max().unwrap_or(0);
        let mut pages = Pages::default();
        for page in 0..=end / page_bytes {
            let (mut live, mut wanted) = (0, 0);
            for byte in page * page_bytes..(page + 1) * page_bytes {
                for block in blocks {
                    if (block.address..block.address + block.bytes).contains(&byte) {
                        live += 1;
                        wanted += u64::from(block.is_wanted);
                    }
                }
            }
            pages.wanted_bytes += wanted;
            if wanted > 0 && 2 * wanted >= live {
                pages.moved_bytes += wanted;
                pages.bytes += page_bytes;
                match pages.ranges.last_mut() {
                    Some((address, bytes)) if *address + *bytes == page * page_bytes => *bytes += page_bytes,
                    _ => pages.ranges.push((page * page_bytes, page_bytes)),
                }
            }
        }
        pages
    }

    proptest! {
        #[test]
        fn the_pages_are_those_that_counting_bytes_finds(
            pieces in prop::collection::vec((0u64..9, 0u64..40, any::<bool>()), 0..24),
            page_bytes in 1u64..17,
        ) {
            // GIVEN consecutive blocks with holes between them
            let mut address = 0;
            let blocks: Vec<Block> = pieces
                .into_iter()
                .map(|(hole, bytes, is_wanted)| {
                    let block = block(address + hole, bytes, is_wanted);
                    address += hole + bytes;
                    block
                })
                .collect();
            // WHEN they come in another order THEN the pages are the same
            prop_assert_eq!(whole_pages(blocks.iter().rev().copied(), page_bytes), brute_force(&blocks, page_bytes));
        }
    }
}
