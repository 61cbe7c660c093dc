//! Walks the dominator tree from the root to the objects that hold most of the wanted bytes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::answer::{Holder, Memory, PathStep};
use crate::dominators::{DominatorTree, UNREACHED};
use crate::graph::{Edge, EdgeKind, HeapGraph, Node, NodeKind, ROOT};
use crate::paths::{Paths, without_addresses};

/// An object is followed to one that it holds if that one keeps this share of the bytes, in percent.
const FOLLOWED_PERCENT: u64 = 80;
/// A holder is named if it keeps this share of the wanted bytes, in percent.
const NAMED_PERCENT: u64 = 10;
/// Names that together hold memory are listed up to this number.
const MAX_NAMES: usize = 8;
/// Names are replaced by the one that leads to them if its release frees at most this share of what theirs does, in percent.
const GATHERED_PERCENT: u64 = 105;
/// Names that lead to others and that are tried in their place.
const MAX_GATHERED: usize = 64;
/// Groups of nodes that share blocks, the largest, for which names are searched.
const MAX_OWNERS: usize = 512;

/// Returns true for a frame whose call is about to return.
fn is_call(graph: &HeapGraph, node: u32) -> bool {
    graph.nodes[node as usize].kind == NodeKind::Call
}

/// Joins groups that share a name.
fn joined(given: impl Iterator<Item = (HashSet<usize>, u64)>) -> Vec<(HashSet<usize>, u64)> {
    let mut groups: Vec<(HashSet<usize>, u64)> = Vec::new();
    for mut group in given {
        let (same, apart) = groups.into_iter().partition::<Vec<_>, _>(|known| !known.0.is_disjoint(&group.0));
        for (names, bytes) in same {
            group.0.extend(names);
            group.1 += bytes;
        }
        groups = apart;
        groups.push(group);
    }
    groups
}

/// Adds groups whose names are all among those of another to that one: its release frees both.
fn within_others(mut groups: Vec<(HashSet<usize>, u64)>) -> Vec<(HashSet<usize>, u64)> {
    groups.sort_by_key(|(names, _)| std::cmp::Reverse(names.len()));
    let mut kept: Vec<(HashSet<usize>, u64)> = Vec::new();
    for (names, bytes) in groups {
        match kept.iter_mut().find(|(known, _)| names.is_subset(known)) {
            Some(known) => known.1 += bytes,
            None => kept.push((names, bytes)),
        }
    }
    kept
}

/// The graph with a vertex for each reference and each block: then a dominator may be a name.
pub(crate) struct Search<'a> {
    graph: &'a HeapGraph,
    memory: &'a [Memory],
    /// For each node, the indices of its blocks.
    blocks_of: Vec<Vec<usize>>,
    tree: DominatorTree,
    children: Vec<Vec<u32>>,
    wanted: Vec<u64>,
    paths: Paths,
}

impl<'a> Search<'a> {
    pub(crate) fn new(graph: &'a HeapGraph, memory: &'a [Memory], find: impl Fn(u64) -> Option<usize>) -> Self {
        let blocks_of: Vec<Vec<usize>> = graph
            .nodes
            .iter()
            .map(|node| {
                let mut blocks: Vec<usize> = node.memory.iter().filter_map(|&address| find(address)).collect();
                blocks.sort_unstable();
                blocks.dedup();
                blocks
            })
            .collect();
        let (nodes, references) = (graph.nodes.len(), graph.edges.len());
        let count = nodes + references + memory.len();
        let mut arcs = Vec::with_capacity(2 * references + memory.len());
        for (index, edge) in graph.edges.iter().enumerate() {
            let vertex = (nodes + index) as u32;
            if is_call(graph, edge.to) {
                continue;
            }
            arcs.extend([(edge.from, vertex), (vertex, edge.to)]);
        }
        for (node, blocks) in blocks_of.iter().enumerate() {
            arcs.extend(blocks.iter().map(|block| (node as u32, (nodes + references + block) as u32)));
        }
        let tree = DominatorTree::new(count, arcs);
        let mut wanted = vec![0; count];
        for (index, block) in memory.iter().enumerate() {
            let vertex = nodes + references + index;
            if block.is_wanted && tree.parents[vertex] != UNREACHED {
                wanted[vertex] = block.bytes;
            }
        }
        let wanted = tree.sums(wanted);
        let mut children = vec![Vec::new(); count];
        for &vertex in tree.order.iter().skip(1).filter(|vertex| wanted[**vertex as usize] > 0) {
            children[tree.parents[vertex as usize] as usize].push(vertex);
        }
        let paths = Paths::new(graph);
        Self { graph, memory, blocks_of, tree, children, wanted, paths }
    }

    pub(crate) fn reached_wanted(&self) -> u64 {
        self.wanted[ROOT as usize]
    }

    pub(crate) fn holders(&self) -> Vec<Holder> {
        let mut found = Vec::new();
        self.explore(ROOT, &mut found);
        found
    }

    /// Adds the holders below a vertex that dominates wanted bytes.
    fn explore(&self, mut vertex: u32, found: &mut Vec<Holder>) {
        while !self.ends(vertex) {
            let Some(best) = self.children_by_bytes(vertex).first().copied() else { break };
            if self.wanted[best as usize] * 100 < self.wanted[vertex as usize] * FOLLOWED_PERCENT {
                break;
            }
            vertex = best;
        }
        if self.is_split(vertex) {
            self.split(vertex, found);
        } else {
            found.push(self.holder(vertex));
        }
    }

    /// Children in the dominator tree that a person can name, the one with the most wanted bytes first.
    fn children_by_bytes(&self, vertex: u32) -> Vec<u32> {
        let mut children: Vec<u32> =
            self.children[vertex as usize].iter().copied().filter(|child| self.is_nameable(*child)).collect();
        children.sort_by_key(|child| std::cmp::Reverse(self.wanted[*child as usize]));
        children
    }

    fn node(&self, vertex: u32) -> Option<&Node> {
        self.graph.nodes.get(vertex as usize)
    }

    fn edge(&self, vertex: u32) -> Option<&Edge> {
        self.graph.edges.get((vertex as usize).checked_sub(self.graph.nodes.len())?)
    }

    fn is_nameable(&self, vertex: u32) -> bool {
        match (self.node(vertex), self.edge(vertex)) {
            (Some(node), _) => node.kind.is_container(),
            (None, Some(edge)) => {
                // An edge to many tensors of a container is no name.
                let to = &self.graph.nodes[edge.to as usize];
                self.holds_by_name(edge.from) && (to.kind.is_container() || to.items == 0)
            }
            (None, None) => false,
        }
    }

    /// Returns true if references of the node are names: it is no part of a tensor or autograd graph.
    fn holds_by_name(&self, node: u32) -> bool {
        node == ROOT || self.graph.nodes[node as usize].kind.is_container()
    }

    /// Returns true if nothing below the vertex is a better name for what holds the memory.
    fn ends(&self, vertex: u32) -> bool {
        use NodeKind::{Cache, Context, Exception, Garbage, Generator, Native};
        self.node(vertex)
            .is_some_and(|node| matches!(node.kind, Exception | Cache | Context | Generator | Garbage | Native))
    }

    /// Returns true if the vertex holds memory only by the names in it.
    fn is_split(&self, vertex: u32) -> bool {
        use NodeKind::{Class, Frame, Function, Module, Object, Root};
        match self.node(vertex).map(|node| node.kind) {
            Some(Root | Module | Frame | Class | Function) => true,
            Some(Object) if !self.repeated_keys(vertex, &self.dominated(vertex)).0.is_empty() => false,
            Some(Object) => {
                let large = |child: &&u32| self.wanted[**child as usize] * 4 >= self.wanted[vertex as usize];
                let children = self.children_by_bytes(vertex);
                let named: u64 = children.iter().filter(large).map(|child| self.wanted[*child as usize]).sum();
                named * 100 >= self.wanted[vertex as usize] * FOLLOWED_PERCENT
            }
            _ => false,
        }
    }

    /// Adds a holder for each large child of the vertex, and one for what several names hold together.
    fn split(&self, vertex: u32, found: &mut Vec<Holder>) {
        let enough = |bytes: u64| bytes > 0 && bytes * 100 >= self.reached_wanted() * NAMED_PERCENT;
        let mut rest = self.wanted[vertex as usize];
        let mut named = HashSet::new();
        for child in self.children_by_bytes(vertex) {
            let bytes = self.wanted[child as usize];
            if enough(bytes) {
                rest -= bytes;
                named.insert(child);
                self.explore(child, found);
            }
        }
        if enough(rest) {
            let shared = self.gathered(self.shared(&self.blocks_below(vertex, &named))).into_iter();
            let enough = within_others(shared.filter(|(_, bytes)| enough(*bytes)).collect());
            found.extend(enough.into_iter().map(|(names, bytes)| self.together(&names, bytes)));
        }
    }

    /// The wanted blocks that the vertex dominates, without those below the vertices of `except`.
    fn blocks_below(&self, vertex: u32, except: &HashSet<u32>) -> Vec<usize> {
        let first = self.graph.nodes.len() + self.graph.edges.len();
        let mut waiting = vec![vertex];
        let mut blocks = Vec::new();
        while let Some(vertex) = waiting.pop() {
            blocks.extend((vertex as usize).checked_sub(first));
            waiting.extend(self.children[vertex as usize].iter().filter(|child| !except.contains(child)));
        }
        blocks
    }

    /// Groups blocks by the names that hold them, with the bytes of each group.
    ///
    /// If no group has half of the bytes, groups that share a name are joined.
    fn shared(&self, blocks: &[usize]) -> Vec<(HashSet<usize>, u64)> {
        let mut owners: HashMap<usize, Vec<u32>> = blocks.iter().map(|block| (*block, Vec::new())).collect();
        for (node, held) in (0..).zip(&self.blocks_of) {
            for block in held {
                if let Some(owners) = owners.get_mut(block) {
                    owners.push(node);
                }
            }
        }
        let mut by_owners: HashMap<Vec<u32>, u64> = HashMap::new();
        for (block, owners) in owners {
            *by_owners.entry(owners).or_default() += self.memory[block].bytes;
        }
        let total: u64 = by_owners.values().sum();
        let mut largest: Vec<(Vec<u32>, u64)> = by_owners.into_iter().collect();
        largest.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        let holders = self.references_to_nodes();
        let mut by_names: BTreeMap<Vec<usize>, u64> = BTreeMap::new();
        for (owners, bytes) in largest.into_iter().take(MAX_OWNERS) {
            let mut names: Vec<usize> = self.names_above(&holders, owners).into_iter().collect();
            names.sort_unstable();
            *by_names.entry(names).or_default() += bytes;
        }
        let is_clear = by_names.values().any(|bytes| bytes * 2 >= total);
        let groups = by_names.into_iter().map(|(names, bytes)| (names.into_iter().collect(), bytes));
        if is_clear { groups.collect() } else { joined(groups) }
    }

    /// For each node, the references to it that do not end with a call.
    fn references_to_nodes(&self) -> HashMap<u32, Vec<usize>> {
        let mut holders: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, edge) in self.graph.edges.iter().enumerate() {
            if !is_call(self.graph, edge.from) && self.tree.parents[edge.from as usize] != UNREACHED {
                holders.entry(edge.to).or_default().push(index);
            }
        }
        holders
    }

    /// A holder of these names.
    fn together(&self, names: &HashSet<usize>, bytes: u64) -> Holder {
        let releases = self.released_without(names);
        let mut paths = BTreeMap::new();
        for &name in names {
            let path = self.paths.to_edge(self.graph, name);
            let text: Vec<&str> = path.iter().map(|step| step.label.as_str()).collect();
            paths.entry(text.join(".")).or_insert(path);
        }
        let more = paths.len().saturating_sub(MAX_NAMES);
        let paths: Vec<Vec<PathStep>> = paths.into_values().take(MAX_NAMES).collect();
        Holder { paths, more, bytes, ..self.released(&releases, &HashSet::new()) }
    }

    /// Replaces names by the one name that leads to them, where its release frees hardly more: `history[0]` and `history[1]`
    /// become `history`, and the weights of a model the model. Groups with the same names then are one.
    fn gathered(&self, groups: Vec<(HashSet<usize>, u64)>) -> Vec<(HashSet<usize>, u64)> {
        let mut leading: HashMap<usize, usize> = HashMap::new();
        for (names, _) in joined(groups.iter().cloned()) {
            leading.extend(self.leading_names(names));
        }
        let mut by_names: BTreeMap<Vec<usize>, u64> = BTreeMap::new();
        for (names, bytes) in groups {
            let names: BTreeSet<usize> = names.iter().map(|name| *leading.get(name).unwrap_or(name)).collect();
            *by_names.entry(names.into_iter().collect()).or_default() += bytes;
        }
        by_names.into_iter().map(|(names, bytes)| (names.into_iter().collect(), bytes)).collect()
    }

    /// For the names that one name may replace, that one.
    fn leading_names(&self, mut names: HashSet<usize>) -> HashMap<usize, usize> {
        let freed = |names: &HashSet<usize>| -> u64 {
            let blocks = self.unshared_blocks(&self.released_without(names));
            blocks.into_iter().map(|block| self.memory[block].bytes).sum()
        };
        let limit = freed(&names) * GATHERED_PERCENT / 100;
        let mut leading = HashMap::new();
        for (above, below) in self.names_in_common(&names) {
            if below.is_subset(&names) {
                let shorter = names.difference(&below).copied().chain([above]).collect();
                if freed(&shorter) <= limit {
                    names = shorter;
                    leading.extend(below.into_iter().map(|name| (name, above)));
                }
            }
        }
        leading
    }

    /// References that each lead to several of these names alone, and those names. The nearest to the root come first.
    fn names_in_common(&self, names: &HashSet<usize>) -> Vec<(usize, HashSet<usize>)> {
        let mut led_to: HashMap<u32, HashSet<usize>> = HashMap::new();
        for &name in names {
            let mut vertex = self.graph.edges[name].from;
            while vertex != ROOT && vertex != UNREACHED {
                if self.edge(vertex).is_some_and(|edge| !edge.label.is_empty()) {
                    led_to.entry(vertex).or_default().insert(name);
                }
                vertex = self.tree.parents[vertex as usize];
            }
        }
        let ordered = self.tree.order.iter().filter_map(|vertex| Some((*vertex, led_to.remove(vertex)?)));
        let common = ordered.filter(|(_, names)| names.len() > 1).take(MAX_GATHERED);
        common.map(|(vertex, names)| (vertex as usize - self.graph.nodes.len(), names)).collect()
    }

    /// The references by which objects with names hold these nodes, directly or through tensors and autograd graphs.
    fn names_above(&self, holders: &HashMap<u32, Vec<usize>>, mut waiting: Vec<u32>) -> HashSet<usize> {
        let mut seen: HashSet<u32> = waiting.iter().copied().collect();
        let mut names = HashSet::new();
        while let Some(node) = waiting.pop() {
            for &index in holders.get(&node).into_iter().flatten() {
                let from = self.graph.edges[index].from;
                if self.holds_by_name(from) {
                    names.insert(index);
                } else if seen.insert(from) {
                    waiting.push(from);
                }
            }
        }
        names
    }

    /// The nodes that stay reachable without these references.
    fn released_without(&self, names: &HashSet<usize>) -> HashSet<u32> {
        let mut next: HashMap<u32, Vec<u32>> = HashMap::new();
        for (index, edge) in self.graph.edges.iter().enumerate() {
            if names.contains(&index) || is_call(self.graph, edge.to) {
                continue;
            }
            next.entry(edge.from).or_default().push(edge.to);
        }
        let mut kept = HashSet::from([ROOT]);
        let mut waiting = vec![ROOT];
        while let Some(node) = waiting.pop() {
            for &to in next.get(&node).into_iter().flatten() {
                if kept.insert(to) {
                    waiting.push(to);
                }
            }
        }
        let is_released = |node: &u32| self.tree.parents[*node as usize] != UNREACHED && !kept.contains(node);
        (0..self.graph.nodes.len() as u32).filter(is_released).collect()
    }

    /// The blocks that these nodes hold and no other node does.
    fn unshared_blocks(&self, nodes: &HashSet<u32>) -> HashSet<usize> {
        let is_reached = |node: &usize| self.tree.parents[*node] != UNREACHED;
        let others = (0..self.graph.nodes.len()).filter(|node| is_reached(node) && !nodes.contains(&(*node as u32)));
        let kept: HashSet<usize> = others.flat_map(|node| self.blocks_of[node].iter().copied()).collect();
        let held = nodes.iter().flat_map(|node| self.blocks_of[*node as usize].iter().copied());
        held.filter(|block| !kept.contains(block)).collect()
    }

    /// A holder without names, for the release of these nodes and of the blocks that no other node holds.
    fn released(&self, nodes: &HashSet<u32>, blocks: &HashSet<usize>) -> Holder {
        let unshared = self.unshared_blocks(nodes);
        let mut freed: HashMap<usize, bool> = HashMap::new();
        let (direct, own) = self.own_tensors(nodes);
        let items = direct.iter().map(|node| self.graph.nodes[*node as usize].items.max(1));
        let tensors = items.fold(0, u32::saturating_add);
        for &node in nodes {
            let is_saved = !own.contains(&node);
            for &block in self.blocks_of[node as usize].iter().filter(|block| unshared.contains(block)) {
                *freed.entry(block).or_insert(true) &= is_saved;
            }
        }
        for &block in blocks {
            freed.entry(block).or_insert(false);
        }
        let bytes = |only_saved: bool| {
            let counted = freed.iter().filter(|(_, is_saved)| !only_saved || **is_saved);
            counted.map(|(block, _)| self.memory[*block].bytes).sum()
        };
        Holder { releases: bytes(false), for_backward: bytes(true), blocks: freed.len(), tensors, ..Holder::default() }
    }

    /// Of these nodes, the tensors to which objects with names refer, and those with all that they are views of or have as
    /// gradients: what is not among them is kept for backward.
    fn own_tensors(&self, nodes: &HashSet<u32>) -> (HashSet<u32>, HashSet<u32>) {
        let mut parts: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut direct = HashSet::new();
        for edge in self.graph.edges.iter().filter(|edge| nodes.contains(&edge.to)) {
            let is_tensor = self.graph.nodes[edge.to as usize].kind == NodeKind::Tensor;
            if is_tensor && self.holds_by_name(edge.from) && !is_call(self.graph, edge.from) {
                direct.insert(edge.to);
            } else if matches!(edge.kind, EdgeKind::Base | EdgeKind::Gradient) {
                parts.entry(edge.from).or_default().push(edge.to);
            }
        }
        let mut own = direct.clone();
        let mut waiting: Vec<u32> = direct.iter().copied().collect();
        while let Some(node) = waiting.pop() {
            waiting.extend(parts.get(&node).into_iter().flatten().filter(|part| own.insert(**part)));
        }
        (direct, own)
    }

    /// The holder that is a node, or a name for one.
    fn holder(&self, vertex: u32) -> Holder {
        let dominated = self.dominated(vertex);
        let nodes: HashSet<u32> = dominated.iter().copied().filter(|vertex| self.node(*vertex).is_some()).collect();
        let first = self.graph.nodes.len() + self.graph.edges.len();
        let blocks = dominated.iter().filter_map(|vertex| (*vertex as usize).checked_sub(first)).collect();
        let path = match self.edge(vertex) {
            Some(_) => self.paths.to_edge(self.graph, vertex as usize - self.graph.nodes.len()),
            None => self.paths.to_node(self.graph, vertex),
        };
        let is_garbage = self.node(vertex).is_some_and(|node| node.kind == NodeKind::Garbage);
        let (mut released, mut keys) = (self.released(&nodes, &blocks), Vec::new());
        let (repeated, references) = self.repeated_keys(vertex, &dominated);
        if !repeated.is_empty() {
            // If the rest of what it holds is not in question, only the entries of these keys are released.
            let of_keys = self.released(&self.released_without(&references), &HashSet::new());
            if of_keys.releases * 100 < released.releases * FOLLOWED_PERCENT {
                (released, keys) = (of_keys, repeated);
            }
        }
        Holder {
            paths: vec![path],
            bytes: self.wanted[vertex as usize],
            keys,
            cycle: if is_garbage { self.cycle(&nodes) } else { None },
            collections: if is_garbage { self.collections(&nodes) } else { 0 },
            ..released
        }
    }

    /// Wanted bytes that the holder with these paths holds: one object or name, or several names together.
    pub(crate) fn wanted_by(&self, paths: &[Vec<PathStep>]) -> u64 {
        let ends: HashSet<usize> = paths.iter().flat_map(|path| self.references_at(path)).collect();
        if paths.len() == 1 {
            // Other references may lead to an object, but not to a name.
            let vertex = |index: usize| match self.graph.edges[index].to {
                to if self.holds_by_name(to) => to as usize,
                _ => self.graph.nodes.len() + index,
            };
            let vertices: HashSet<usize> = ends.into_iter().map(vertex).collect();
            return vertices.into_iter().map(|vertex| self.wanted[vertex]).sum();
        }
        let freed = self.unshared_blocks(&self.released_without(&ends));
        let freed = freed.into_iter().map(|block| self.memory[block]);
        freed.filter(|block| block.is_wanted).map(|block| block.bytes).sum()
    }

    /// The references with which a path from another search ends here.
    fn references_at(&self, path: &[PathStep]) -> Vec<usize> {
        let mut from = HashSet::from([ROOT]);
        let mut found = Vec::new();
        for step in path {
            let is_step = |edge: &Edge| {
                let to = &self.graph.nodes[edge.to as usize];
                let is_same = (edge.kind, &edge.label) == (step.reference, &step.label);
                is_same && (to.kind, &to.name) == (step.object.kind, &step.object.name) && from.contains(&edge.from)
            };
            found = (0..self.graph.edges.len()).filter(|index| is_step(&self.graph.edges[*index])).collect();
            from = found.iter().map(|index: &usize| self.graph.edges[*index].to).collect();
        }
        found
    }

    /// All vertices that a vertex dominates, and itself.
    fn dominated(&self, vertex: u32) -> Vec<u32> {
        let mut is_below = vec![false; self.tree.parents.len()];
        is_below[vertex as usize] = true;
        let mut found = vec![vertex];
        for &other in self.tree.order.iter().filter(|other| **other != ROOT && **other != vertex) {
            if is_below[self.tree.parents[other as usize] as usize] {
                is_below[other as usize] = true;
                found.push(other);
            }
        }
        found
    }

    /// Keys that occur together in several dictionaries below the vertex and hold most of its wanted bytes, with the
    /// references of these keys.
    fn repeated_keys(&self, vertex: u32, dominated: &[u32]) -> (Vec<String>, HashSet<usize>) {
        let mut by_dictionary: BTreeMap<u32, Vec<(&str, u64, usize)>> = BTreeMap::new();
        for &below in dominated {
            let is_key = |edge: &&Edge| {
                let is_of_dictionary = self.graph.nodes[edge.from as usize].kind == NodeKind::Mapping;
                is_of_dictionary && edge.kind == EdgeKind::Item && !edge.label.is_empty()
            };
            if let Some(edge) = self.edge(below).filter(is_key) {
                let (bytes, index) = (self.wanted[below as usize], below as usize - self.graph.nodes.len());
                by_dictionary.entry(edge.from).or_default().push((&edge.label, bytes, index));
            }
        }
        let mut by_keys: BTreeMap<Vec<&str>, (usize, u64, HashSet<usize>)> = BTreeMap::new();
        for mut entries in by_dictionary.into_values() {
            entries.retain(|(_, bytes, _)| *bytes > 0);
            entries.sort_unstable();
            let keys = entries.iter().map(|(key, ..)| *key).collect();
            let sums = by_keys.entry(keys).or_default();
            sums.0 += 1;
            sums.1 += entries.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
            sums.2.extend(entries.iter().map(|(.., index)| index));
        }
        let enough = |bytes: u64| bytes * 100 >= self.wanted[vertex as usize] * FOLLOWED_PERCENT;
        let repeated =
            by_keys.into_iter().filter(|(keys, (count, bytes, _))| keys.len() > 1 && *count > 1 && enough(*bytes));
        let (keys, (.., edges)) = repeated.max_by_key(|(keys, _)| keys.len()).unwrap_or_default();
        let mut keys: Vec<String> = keys.into_iter().map(str::to_owned).collect();
        keys.sort_by_key(|key| (key.len(), key.clone()));
        (keys, edges)
    }

    /// The most custom functions that follow each other in autograd graphs of these nodes, at least 1.
    fn collections(&self, nodes: &HashSet<u32>) -> u32 {
        let mut next: HashMap<u32, Vec<u32>> = HashMap::new();
        for edge in self.graph.edges.iter().filter(|edge| edge.kind == EdgeKind::Graph) {
            let is_of_graph = self.graph.nodes[edge.from as usize].kind != NodeKind::Tensor;
            if is_of_graph && nodes.contains(&edge.from) && nodes.contains(&edge.to) {
                next.entry(edge.from).or_default().push(edge.to);
            }
        }
        // Each node after all that follow it; 0 while it waits for them, so that a cycle ends.
        let mut depths: HashMap<u32, u32> = HashMap::new();
        for &start in nodes {
            let mut waiting = vec![(start, false)];
            while let Some((node, is_done)) = waiting.pop() {
                let following = next.get(&node).map_or(&[][..], Vec::as_slice);
                if is_done {
                    let below = following.iter().map(|to| depths.get(to).copied().unwrap_or(0)).max().unwrap_or(0);
                    let is_function = self.graph.nodes[node as usize].kind == NodeKind::Context;
                    depths.insert(node, below + u32::from(is_function));
                } else if let Entry::Vacant(unknown) = depths.entry(node) {
                    unknown.insert(0);
                    waiting.push((node, true));
                    waiting.extend(following.iter().map(|to| (*to, false)));
                }
            }
        }
        depths.into_values().max().unwrap_or(0).max(1)
    }

    /// The reference that most cycles of garbage contain and that a person can break.
    fn cycle(&self, nodes: &HashSet<u32>) -> Option<PathStep> {
        let mut counts: HashMap<(EdgeKind, &str, &str), (usize, usize)> = HashMap::new();
        for (index, edge) in self.graph.edges.iter().enumerate() {
            let from = &self.graph.nodes[edge.from as usize];
            let is_name = match edge.kind {
                EdgeKind::Closure => true,
                EdgeKind::Attribute => from.kind == NodeKind::Context,
                _ => false,
            };
            if is_name && nodes.contains(&edge.from) && nodes.contains(&edge.to) {
                counts.entry((edge.kind, &from.name, &edge.label)).or_insert((0, index)).0 += 1;
            }
        }
        let (_, index) = counts.into_values().max_by_key(|(count, index)| (*count, std::cmp::Reverse(*index)))?;
        let edge = &self.graph.edges[index];
        let object = &self.graph.nodes[edge.from as usize];
        Some(PathStep {
            reference: edge.kind,
            label: edge.label.clone(),
            stored_at: edge.line,
            object: without_addresses(object),
        })
    }
}
