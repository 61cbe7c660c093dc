//! Shortest paths from the root to objects, without calls that are about to return. The order of the edges decides between paths of the same length.

use std::collections::VecDeque;

use crate::answer::PathStep;
use crate::dominators::UNREACHED;
use crate::graph::{HeapGraph, Node, NodeKind, ROOT};

/// For each node, the reference by which the shortest path arrives.
pub(crate) struct Paths {
    arrivals: Vec<u32>,
}

impl Paths {
    pub(crate) fn new(graph: &HeapGraph) -> Self {
        let mut leaving = vec![Vec::new(); graph.nodes.len()];
        for (index, edge) in graph.edges.iter().enumerate() {
            leaving[edge.from as usize].push(index as u32);
        }
        let mut arrivals = vec![UNREACHED; graph.nodes.len()];
        let mut waiting = VecDeque::from([ROOT]);
        while let Some(node) = waiting.pop_front() {
            for &index in &leaving[node as usize] {
                let to = graph.edges[index as usize].to;
                let is_call = graph.nodes[to as usize].kind == NodeKind::Call;
                if to != ROOT && !is_call && arrivals[to as usize] == UNREACHED {
                    arrivals[to as usize] = index;
                    waiting.push_back(to);
                }
            }
        }
        Self { arrivals }
    }

    /// The path to a node; empty for the root.
    pub(crate) fn to_node(&self, graph: &HeapGraph, node: u32) -> Vec<PathStep> {
        let mut path = Vec::new();
        let mut node = node;
        while node != ROOT && self.arrivals[node as usize] != UNREACHED {
            let index = self.arrivals[node as usize] as usize;
            path.push(step(graph, index));
            node = graph.edges[index].from;
        }
        path.reverse();
        path
    }

    /// The path that ends with a reference.
    pub(crate) fn to_edge(&self, graph: &HeapGraph, index: usize) -> Vec<PathStep> {
        let mut path = self.to_node(graph, graph.edges[index].from);
        path.push(step(graph, index));
        path
    }
}

fn step(graph: &HeapGraph, index: usize) -> PathStep {
    let edge = &graph.edges[index];
    PathStep {
        reference: edge.kind,
        label: edge.label.clone(),
        stored_at: edge.line,
        object: without_addresses(&graph.nodes[edge.to as usize]),
    }
}

pub(crate) fn without_addresses(node: &Node) -> Node {
    Node { memory: Vec::new(), name: node.name.clone(), file: node.file.clone(), ..*node }
}
