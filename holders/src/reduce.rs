//! Makes a graph small enough for a trace: what no person can name is folded into what holds it.

use std::collections::{HashMap, HashSet};

use crate::dominators::{DominatorTree, UNREACHED};
use crate::graph::{Edge, EdgeKind, HeapGraph, Node, NodeKind, ROOT, leading_to};

/// A container with more tensors than this gets one node for all of them.
const MAX_NAMED_TENSORS: usize = 12;

/// Returns a graph that gives the same answers with fewer nodes.
///
/// Without the objects that lead to no memory. Tensors and nodes of autograd graphs are folded into the tensor or node that
/// alone holds them, and the many tensors of one container into one node, followed by one for all that they hold.
#[must_use]
pub fn reduced(graph: &HeapGraph) -> HeapGraph {
    let count = graph.nodes.len();
    let with_memory = (0..)
        .zip(&graph.nodes)
        .filter(|(_, node)| !node.memory.is_empty() || node.holds_the_rest())
        .map(|(index, _)| index);
    let kept = leading_to(count, graph.edges.iter().map(|edge| (edge.from, edge.to)), with_memory);
    let edges = || graph.edges.iter().filter(|edge| kept[edge.from as usize] && kept[edge.to as usize]);
    let tree = DominatorTree::new(count, edges().map(|edge| (edge.from, edge.to)));
    let crowded = crowded_containers(graph, &tree, &kept);
    let mut folder = Folder {
        graph,
        reduced: HeapGraph::new(),
        places: vec![UNREACHED; count],
        summaries: HashMap::new(),
        below: HashMap::new(),
    };
    folder.places[ROOT as usize] = ROOT;
    for &vertex in tree.order.iter().skip(1) {
        folder.fold(vertex, tree.parents[vertex as usize], &crowded);
    }
    folder.join(edges());
    folder.reduced
}

/// Finds the containers with many elements that are tensors held by nothing else.
fn crowded_containers(graph: &HeapGraph, tree: &DominatorTree, kept: &[bool]) -> Vec<bool> {
    let mut tensors = vec![0_usize; graph.nodes.len()];
    for edge in graph.edges.iter().filter(|edge| kept[edge.to as usize] && edge.kind == EdgeKind::Item) {
        let is_own = tree.parents[edge.to as usize] == edge.from;
        tensors[edge.from as usize] += usize::from(is_own && graph.nodes[edge.to as usize].kind == NodeKind::Tensor);
    }
    tensors.into_iter().map(|count| count > MAX_NAMED_TENSORS).collect()
}

struct Folder<'a> {
    graph: &'a HeapGraph,
    reduced: HeapGraph,
    /// Node of the reduced graph for each node of the graph.
    places: Vec<u32>,
    /// Of a crowded container, by its place: the node for its tensors.
    summaries: HashMap<u32, u32>,
    /// Of a tensor or node of an autograd graph, by its place: the node for all that it alone holds.
    below: HashMap<u32, u32>,
}

impl Folder<'_> {
    /// Places a node whose immediate dominator has its place.
    fn fold(&mut self, vertex: u32, dominator: u32, crowded: &[bool]) {
        let node = &self.graph.nodes[vertex as usize];
        let holder = self.places[dominator as usize];
        let is_crowded = crowded[dominator as usize];
        let place = if node.kind.is_container() {
            self.add(node.clone())
        } else if !self.graph.nodes[dominator as usize].kind.is_container() && dominator != ROOT {
            self.merged_below(holder, node)
        } else if is_crowded && node.kind == NodeKind::Tensor {
            self.merged_in_summary(holder, node)
        } else {
            self.add(node.clone())
        };
        self.places[vertex as usize] = place;
    }

    fn add(&mut self, node: Node) -> u32 {
        self.reduced.nodes.push(node);
        self.reduced.nodes.len() as u32 - 1
    }

    fn merged_in_summary(&mut self, container: u32, node: &Node) -> u32 {
        let place = match self.summaries.get(&container) {
            Some(&known) => known,
            None => {
                let place = self.add(Node { kind: NodeKind::Tensor, ..Node::default() });
                self.summaries.insert(container, place);
                place
            }
        };
        self.merge(place, node);
        place
    }

    fn merged_below(&mut self, head: u32, node: &Node) -> u32 {
        let place = match self.below.get(&head) {
            Some(&known) => known,
            None => {
                let place = self.add(Node { kind: NodeKind::Autograd, ..Node::default() });
                self.below.insert(head, place);
                self.below.insert(place, place);
                place
            }
        };
        self.merge(place, node);
        place
    }

    fn merge(&mut self, place: u32, node: &Node) {
        let into = &mut self.reduced.nodes[place as usize];
        into.items += u32::from(node.kind == into.kind);
        into.memory.extend_from_slice(&node.memory);
    }

    /// Adds the references between nodes of different places, each once.
    fn join<'e>(&mut self, edges: impl Iterator<Item = &'e Edge>) {
        let summaries: HashSet<u32> = self.summaries.values().copied().collect();
        let mut known = HashSet::new();
        for edge in edges {
            let (from, to) = (self.places[edge.from as usize], self.places[edge.to as usize]);
            if from == UNREACHED || to == UNREACHED || from == to {
                continue;
            }
            let mut edge = Edge { from, to, ..edge.clone() };
            if summaries.contains(&to) {
                edge.label.clear();
            }
            if known.insert((from, to, edge.kind, edge.label.clone())) {
                self.reduced.edges.push(edge);
            }
        }
    }
}
