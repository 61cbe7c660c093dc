//! What `memlab.MemReporter` does with all objects of a process, or all blocks of a device, at once.

use std::collections::HashMap;

use memlab_trace::{BlockView, Category, Model};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::live_books;

/// What the allocator's blocks are multiples of.
const GRANULE: u64 = 512;
/// Slots of the filter for types: many more than there are classes of tensors.
const FILTER: usize = 4096;

/// Category, bytes, layer, file, line, function of memory that is below no tensor.
type UnseenRow = (&'static str, u64, Option<String>, Option<String>, Option<u32>, Option<String>);

/// See [`below_tensors`].
type BelowTensors = (Vec<Option<u64>>, Vec<UnseenRow>, Vec<(&'static str, u64)>);

/// The objects whose type is one of `types`, in their order. Looks at nothing but the type: an object's class may be a lie.
#[pyfunction]
pub fn of_types<'py>(objects: &Bound<'py, PyList>, types: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
    let mut wanted: Vec<usize> = types.iter().map(|kind| kind.as_ptr() as usize).collect();
    wanted.sort_unstable();
    // Nearly all objects are of none of them, which one look tells.
    let slot = |kind: usize| (kind >> 4) % FILTER;
    let mut filter = [false; FILTER];
    wanted.iter().for_each(|&kind| filter[slot(kind)] = true);
    let found = PyList::empty(objects.py());
    for object in objects {
        let kind = object.get_type_ptr() as usize;
        if filter[slot(kind)] && wanted.binary_search(&kind).is_ok() {
            found.append(object)?;
        }
    }
    Ok(found)
}

/// The block that contains an address.
fn place_of(blocks: &[BlockView], address: u64) -> Option<usize> {
    let place = blocks.partition_point(|block| block.address <= address).checked_sub(1)?;
    (address - blocks[place].address < blocks[place].bytes).then_some(place)
}

/// What is below tensors on a device, and what is not: how much of its block each tensor's memory takes (None: it is in no
/// block), the memory of blocks that is below no tensor, and what is in use outside of blocks, by category.
///
/// Sizes are rounded as the allocator does it. Of memory that several tensors count, the first has all. The rest of blocks
/// with tensors in them is a row of the category "rounding".
#[pyfunction]
pub fn below_tensors(py: Python, device: i32, addresses: Vec<u64>, nbytes: Vec<u64>) -> BelowTensors {
    py.detach(|| {
        let Some(live) = live_books::current() else {
            return (vec![None; addresses.len()], Vec::new(), Vec::new());
        };
        let model = live.books.model();
        let blocks = model.blocks(device);
        let mut room: Vec<u64> = blocks.iter().map(|block| block.bytes).collect();
        let mut is_seen = vec![false; blocks.len()];
        let take = |(&address, &nbytes): (&u64, &u64)| {
            let place = place_of(&blocks, address)?;
            let taken = nbytes.next_multiple_of(GRANULE).min(room[place]);
            room[place] -= taken;
            is_seen[place] = true;
            Some(taken)
        };
        let taken = addresses.iter().zip(&nbytes).map(take).collect();
        (taken, unseen(model, &blocks, &room, &is_seen), outside(model, device, &blocks))
    })
}

/// What is in use on a device besides its blocks.
fn outside(model: &Model, device: i32, blocks: &[BlockView]) -> Vec<(&'static str, u64)> {
    let mut rest = model.categories(device);
    for block in blocks {
        if let Some(row) = rest.iter_mut().find(|row| row.category == block.category) {
            row.bytes = row.bytes.saturating_sub(block.bytes);
        }
    }
    rest.iter().filter(|row| row.bytes > 0).map(|row| (row.category.as_str(), row.bytes)).collect()
}

fn unseen(model: &Model, blocks: &[BlockView], room: &[u64], is_seen: &[bool]) -> Vec<UnseenRow> {
    let mut rounding = 0;
    let mut sums: HashMap<(Category, u32, u32, u32), (u64, usize)> = HashMap::new();
    for (index, block) in blocks.iter().enumerate() {
        if is_seen[index] {
            rounding += room[index];
        } else {
            let key = (block.category, block.stack, block.layer, block.owner);
            sums.entry(key).or_insert((0, index)).0 += room[index];
        }
    }
    // Several stacks can have one line.
    let mut rows: HashMap<UnseenRow, u64> = HashMap::new();
    for (bytes, index) in sums.into_values() {
        let block = &blocks[index];
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
