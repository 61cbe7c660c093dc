//! Finds the holders of a set of blocks: the objects or names whose release frees them, with a path to each.

use crate::answer::{Explanation, Memory};
use crate::graph::HeapGraph;
use crate::search::Search;

/// No machine has more memory: sums of fewer bytes, and percentages of them, fit into 64 bits.
const MAX_BYTES: u64 = 1 << 56;

/// Finds the holders of the wanted blocks.
///
/// `memory` are all blocks that were alive; `find` gives the index in it of the block that contains an address.
///
/// # Panics
///
/// If the graph is not [valid](HeapGraph::is_valid).
#[must_use]
pub fn explain(graph: &HeapGraph, memory: &[Memory], find: impl Fn(u64) -> Option<usize>) -> Explanation {
    let total = memory.iter().fold(0_u64, |sum, block| sum.saturating_add(block.bytes));
    if total > MAX_BYTES {
        return Explanation { unreached: total, ..Explanation::default() };
    }
    let wanted: u64 = memory.iter().filter(|block| block.is_wanted).map(|block| block.bytes).sum();
    let search = Search::new(graph, memory, find);
    let mut holders = search.holders();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    Explanation { holders, unreached: wanted - search.reached_wanted() }
}
