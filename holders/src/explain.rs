//! Finds the holders of a set of blocks: the objects or names whose release frees them, with a path to each.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::answer::{Explanation, Holder, Memory, NativeOwner};
use crate::graph::{DDP, Edge, EdgeKind, HeapGraph, Node, NodeKind, ROOT};
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
    let total = total(memory);
    if total > MAX_BYTES {
        return Explanation { unreached: total, ..Explanation::default() };
    }
    let wanted: u64 = memory.iter().filter(|block| block.is_wanted).map(|block| block.bytes).sum();
    let graph = with_native_memory(graph, memory, &find);
    let search = Search::new(&graph, memory, find);
    let mut holders = search.holders();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    Explanation { holders, unreached: wanted - search.reached_wanted() }
}

/// Finds holders of another search by their names. Returns the bytes of the wanted blocks that each holds here.
///
/// # Panics
///
/// If the graph is not [valid](HeapGraph::is_valid).
#[must_use]
pub fn bytes_held(
    graph: &HeapGraph,
    memory: &[Memory],
    find: impl Fn(u64) -> Option<usize>,
    holders: &[&Holder],
) -> Vec<u64> {
    if total(memory) > MAX_BYTES {
        return vec![0; holders.len()];
    }
    let graph = with_native_memory(graph, memory, &find);
    let search = Search::new(&graph, memory, find);
    holders.iter().map(|holder| search.wanted_by(&holder.paths)).collect()
}

fn total(memory: &[Memory]) -> u64 {
    memory.iter().fold(0, |sum, block| sum.saturating_add(block.bytes))
}

/// Gives memory that no object leads to to its owner in C++: the node that holds the rest, or a new one for the buckets of
/// `DistributedDataParallel`.
fn with_native_memory<'a>(
    graph: &'a HeapGraph,
    memory: &[Memory],
    find: &impl Fn(u64) -> Option<usize>,
) -> Cow<'a, HeapGraph> {
    let rest = graph.nodes.iter().position(Node::holds_the_rest);
    if rest.is_none() && memory.iter().all(|block| block.owner != NativeOwner::Ddp) {
        return Cow::Borrowed(graph);
    }
    let addresses = graph.nodes.iter().flat_map(|node| &node.memory);
    let led_to: HashSet<usize> = addresses.filter_map(|&address| find(address)).collect();
    let unreached = |owner: NativeOwner| {
        let blocks = memory.iter().enumerate().filter(|(index, block)| block.owner == owner && !led_to.contains(index));
        blocks.map(|(_, block)| block.block).collect::<Vec<u64>>()
    };
    let mut graph = graph.clone();
    if let Some(rest) = rest {
        graph.nodes[rest].memory.extend(unreached(NativeOwner::Unknown));
    }
    let (to, buckets) = (graph.nodes.len() as u32, unreached(NativeOwner::Ddp));
    // Without buckets, the node holds nothing and is in no answer.
    graph.nodes.push(Node { kind: NodeKind::Native, name: DDP.to_owned(), memory: buckets, ..Node::default() });
    graph.edges.push(Edge { from: ROOT, to, kind: EdgeKind::Unnamed, label: String::new(), line: 0 });
    Cow::Owned(graph)
}
