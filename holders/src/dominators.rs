//! Immediate dominators, by Cooper, Harvey and Kennedy's algorithm (petgraph).

use petgraph::algo::dominators::simple_fast;
use petgraph::graph::{DiGraph, NodeIndex};

/// A vertex that is not reached from vertex 0.
pub const UNREACHED: u32 = u32::MAX;

/// The dominator tree of a graph, from vertex 0.
pub struct DominatorTree {
    /// Immediate dominator of each vertex; [`UNREACHED`] for the others. Vertex 0 is its own.
    pub parents: Vec<u32>,
    /// The reached vertices, each after its immediate dominator.
    pub order: Vec<u32>,
}

impl DominatorTree {
    /// Computes the tree of the graph with `count` vertices and these edges.
    pub fn new(count: usize, edges: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut graph = DiGraph::<(), ()>::with_capacity(count, 0);
        for _ in 0..count {
            graph.add_node(());
        }
        graph.extend_with_edges(edges);
        let found = simple_fast(&graph, NodeIndex::new(0));
        let parents: Vec<u32> = (0..count)
            .map(|vertex| match found.immediate_dominator(NodeIndex::new(vertex)) {
                Some(dominator) => dominator.index() as u32,
                None if vertex == 0 => 0,
                None => UNREACHED,
            })
            .collect();
        let order = parents_first(&parents);
        Self { parents, order }
    }

    /// Adds up values along the tree: each vertex gets its own value and those of all that it dominates.
    pub fn sums(&self, mut values: Vec<u64>) -> Vec<u64> {
        for &vertex in self.order.iter().rev().filter(|vertex| **vertex != 0) {
            values[self.parents[vertex as usize] as usize] += values[vertex as usize];
        }
        values
    }
}

/// Sorts the reached vertices of a tree so that each comes after its parent.
fn parents_first(parents: &[u32]) -> Vec<u32> {
    let mut children = vec![Vec::new(); parents.len()];
    for (vertex, &parent) in parents.iter().enumerate().skip(1) {
        if parent != UNREACHED {
            children[parent as usize].push(vertex as u32);
        }
    }
    let mut order = vec![0];
    let mut next = 0;
    while let Some(&vertex) = order.get(next) {
        order.extend_from_slice(&children[vertex as usize]);
        next += 1;
    }
    order
}
