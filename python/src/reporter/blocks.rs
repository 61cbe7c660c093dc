//! The live blocks of PyTorch's caching allocator, and the memory in them outside of tensors.

use std::collections::HashMap;

use memlab_trace::{BlockView, Category, Model};
use pyo3::prelude::*;

use crate::live_books;

/// Blocks of the allocator are multiples of this.
const GRANULE: u64 = 512;

/// Category, bytes, layer, file, line, function of memory below no tensor.
pub type UnseenRow = (&'static str, u64, Option<String>, Option<String>, Option<u32>, Option<String>);

/// Live blocks of all devices at one moment.
#[derive(Default)]
pub struct LiveBlocks(Vec<CardBlocks>);

/// Blocks of one device, and the other memory in use there, by category.
pub struct CardBlocks {
    card: i32,
    /// By address.
    blocks: Vec<BlockView>,
    outside: Vec<(&'static str, u64)>,
}

/// Index of a block among the blocks of its device.
#[derive(Clone, Copy, Default)]
pub struct BlockPlace(usize);

impl LiveBlocks {
    /// Returns the present blocks; none if no books are kept.
    pub fn now(py: Python) -> Self {
        py.detach(|| {
            let Some(live) = live_books::current() else { return Self::default() };
            let model = live.books.model();
            let of_card = |card| {
                let blocks = model.blocks(card);
                CardBlocks { card, outside: outside(model, card, &blocks), blocks }
            };
            Self(model.devices().iter().map(|device| of_card(device.index)).collect())
        })
    }

    /// Returns the blocks of a device, if any were seen there.
    pub fn of(&self, card: i32) -> Option<&CardBlocks> {
        self.0.iter().find(|blocks| blocks.card == card)
    }

    /// Finds the device and the block that contain an address.
    pub fn find(&self, address: u64, guess: BlockPlace) -> Option<(&CardBlocks, BlockPlace)> {
        self.0.iter().find_map(|blocks| blocks.find(address, guess).map(|place| (blocks, place)))
    }
}

impl CardBlocks {
    /// Index of the device.
    pub fn card(&self) -> i32 {
        self.card
    }

    /// Finds the block that contains an address.
    ///
    /// Checks `guess` and the block behind it first, because tensors are often found in the order of their blocks.
    pub fn find(&self, address: u64, guess: BlockPlace) -> Option<BlockPlace> {
        let is_in = |place: usize| {
            self.blocks.get(place).is_some_and(|block| address.wrapping_sub(block.address) < block.bytes)
        };
        let searched = || self.blocks.partition_point(|block| block.address <= address).checked_sub(1);
        let likely = [guess.0, guess.0 + 1].into_iter().find(|&place| is_in(place));
        likely.or_else(|| searched().filter(|&place| is_in(place))).map(BlockPlace)
    }

    /// Address and size of a block.
    pub fn extent(&self, place: BlockPlace) -> (u64, u64) {
        let block = &self.blocks[place.0];
        (block.address, block.bytes)
    }

    /// Memory in use besides the blocks, by category.
    pub fn outside(&self) -> Vec<(&'static str, u64)> {
        self.outside.clone()
    }
}

/// Size of the smallest block with room for this many bytes.
pub fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(GRANULE)
}

/// Memory of blocks outside of the tensors in them.
pub struct Remainder<'a> {
    blocks: &'a [BlockView],
    room: Vec<u64>,
    is_seen: Vec<bool>,
}

impl<'a> Remainder<'a> {
    /// Starts with all memory of the blocks, before tensors are counted.
    pub fn of(card: &'a CardBlocks) -> Self {
        let room = card.blocks.iter().map(|block| block.bytes).collect();
        Self { blocks: &card.blocks, room, is_seen: vec![false; card.blocks.len()] }
    }

    /// Counts a tensor's memory, rounded like the allocator.
    ///
    /// The first tensor that counts memory gets all of it.
    pub fn take(&mut self, BlockPlace(place): BlockPlace, bytes: u64) -> u64 {
        let taken = rounded(bytes).min(self.room[place]);
        self.room[place] -= taken;
        self.is_seen[place] = true;
        taken
    }

    /// Addresses of the blocks below no tensor, without those of libraries.
    pub fn unseen_blocks(&self) -> Vec<u64> {
        let blocks = self.blocks.iter().zip(&self.is_seen);
        let unseen = blocks.filter(|(block, is_seen)| !**is_seen && block.category != Category::Workspace);
        unseen.map(|(block, _)| block.address).collect()
    }

    /// Memory of blocks below no tensor, the largest first.
    ///
    /// The rest of blocks with tensors in them is a row of the category "rounding".
    pub fn unseen(&self, py: Python) -> Vec<UnseenRow> {
        py.detach(|| live_books::unread().map(|live| self.unseen_in(live.books.model())).unwrap_or_default())
    }

    fn unseen_in(&self, model: &Model) -> Vec<UnseenRow> {
        let mut rounding = 0;
        let mut sums: HashMap<(Category, u32, u32, u32), (u64, &BlockView)> = HashMap::new();
        for ((block, room), is_seen) in self.blocks.iter().zip(&self.room).zip(&self.is_seen) {
            if *is_seen {
                rounding += room;
            } else {
                let key = (block.category, block.stack, block.layer, block.owner);
                sums.entry(key).or_insert((0, block)).0 += room;
            }
        }
        // Several stacks can have one line.
        let mut rows: HashMap<UnseenRow, u64> = HashMap::new();
        for (bytes, block) in sums.into_values() {
            let layer = model.layer_of(block).name.map(|name| name.to_string());
            let (file, line, function) = match model.line_of(block.stack) {
                Some(line) => (Some(line.file.to_string()), line.line, Some(line.function.to_string())),
                None => (None, None, None),
            };
            *rows.entry((block.category.as_str(), 0, layer, file, line, function)).or_default() += bytes;
        }
        let mut rows: Vec<UnseenRow> = rows
            .into_iter()
            .map(|((category, _, layer, file, line, function), bytes)| (category, bytes, layer, file, line, function))
            .collect();
        rows.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.cmp(b)));
        if rounding > 0 {
            rows.push(("rounding", rounding, None, None, None, None));
        }
        rows
    }
}

/// Memory in use on a device besides its blocks.
fn outside(model: &Model, card: i32, blocks: &[BlockView]) -> Vec<(&'static str, u64)> {
    let mut rest = model.categories(card);
    for block in blocks {
        if let Some(row) = rest.iter_mut().find(|row| row.category == block.category) {
            row.bytes = row.bytes.saturating_sub(block.bytes);
        }
    }
    rest.iter().filter(|row| row.bytes > 0).map(|row| (row.category.as_str(), row.bytes)).collect()
}
