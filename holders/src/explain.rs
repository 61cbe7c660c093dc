//! What holds a set of blocks: the objects or names whose release frees them, with a path to each.

use crate::answer::{Explanation, Memory};
use crate::graph::HeapGraph;
use crate::search::Search;

/// Finds what holds the wanted blocks.
///
/// `memory` are all blocks that were alive; `find` gives the index in it of the block that contains an address.
///
/// # Panics
///
/// If the graph is not [valid](HeapGraph::is_valid).
#[must_use]
pub fn explain(graph: &HeapGraph, memory: &[Memory], find: impl Fn(u64) -> Option<usize>) -> Explanation {
    let wanted: u64 = memory.iter().filter(|block| block.is_wanted).map(|block| block.bytes).sum();
    let search = Search::new(graph, memory, find);
    let mut holders = search.holders();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    Explanation { holders, unreached: wanted - search.reached_wanted() }
}
