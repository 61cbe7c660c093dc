//! Stories about small graphs, and a comparison with brute force on random ones.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use crate::{
    Edge, EdgeKind, Explanation, HeapGraph, Memory, NativeOwner, Node, NodeKind, ROOT, bytes_held, explain, reduced,
};

/// A graph in the making.
struct Maker(HeapGraph);

impl Maker {
    fn new() -> Self {
        Self(HeapGraph::new())
    }

    fn node(&mut self, kind: NodeKind, name: &str) -> u32 {
        self.0.nodes.push(Node { kind, name: name.into(), ..Node::default() });
        self.0.nodes.len() as u32 - 1
    }

    /// A tensor with its memory at this address.
    fn tensor(&mut self, address: u64) -> u32 {
        let tensor = self.node(NodeKind::Tensor, "Tensor");
        self.0.nodes[tensor as usize].memory.push(address);
        tensor
    }

    fn edge(&mut self, from: u32, to: u32, kind: EdgeKind, label: &str) {
        self.0.edges.push(Edge { from, to, kind, label: label.into(), line: 0 });
    }

    /// The variables of `__main__`.
    fn main(&mut self) -> u32 {
        let main = self.node(NodeKind::Module, "__main__");
        self.edge(ROOT, main, EdgeKind::Unnamed, "");
        main
    }
}

/// Explains blocks of 100 bytes at these addresses; those from `wanted` on are in question.
fn explained(graph: &HeapGraph, addresses: &[u64], wanted: u64) -> Explanation {
    explain(graph, &blocks(addresses, wanted), |address| addresses.iter().position(|known| *known == address))
}

/// The bytes in question that each holder holds in a graph.
fn held(graph: &HeapGraph, addresses: &[u64], wanted: u64, found: &Explanation) -> Vec<u64> {
    let find = |address| addresses.iter().position(|known| *known == address);
    bytes_held(graph, &blocks(addresses, wanted), find, &found.holders.iter().collect::<Vec<_>>())
}

fn blocks(addresses: &[u64], wanted: u64) -> Vec<Memory> {
    let owner = |address: u64| if address > 1 << 20 { NativeOwner::Library } else { NativeOwner::Unknown };
    let block = |&address| Memory { block: address, bytes: 100, is_wanted: address >= wanted, owner: owner(address) };
    addresses.iter().map(block).collect()
}

fn labels(explanation: &Explanation) -> Vec<Vec<Vec<&str>>> {
    fn of_path(path: &[crate::PathStep]) -> Vec<&str> {
        path.iter().map(|step| step.label.as_str()).filter(|label| !label.is_empty()).collect()
    }
    explanation.holders.iter().map(|holder| holder.paths.iter().map(|path| of_path(path)).collect()).collect()
}

#[test]
fn a_list_of_losses_is_the_holder_and_not_its_elements() {
    // GIVEN a list with three losses, each of which keeps a graph with one saved tensor
    let mut made = Maker::new();
    let main = made.main();
    let list = made.node(NodeKind::Sequence, "list");
    made.edge(main, list, EdgeKind::Global, "history");
    let mut addresses = Vec::new();
    for address in 1..=3 {
        let (loss, node, saved) =
            (made.tensor(address), made.node(NodeKind::Autograd, "Mul"), made.tensor(10 + address));
        made.edge(list, loss, EdgeKind::Item, "");
        made.edge(loss, node, EdgeKind::Graph, "");
        made.edge(node, saved, EdgeKind::Saved, "");
        addresses.extend([address, 10 + address]);
    }
    // WHEN asking for all of it
    let found = explained(&made.0, &addresses, 0);
    // THEN the list holds it, and half of what its release frees was saved for backward
    assert_eq!(labels(&found), [[["history"]]]);
    let holder = &found.holders[0];
    assert_eq!(
        (holder.bytes, holder.releases, holder.for_backward, holder.tensors, holder.blocks),
        (600, 600, 300, 3, 6)
    );
}

#[test]
fn names_that_hold_memory_together_are_promised_together() {
    // GIVEN two variables whose graphs share a saved tensor, and a third variable that holds another
    let mut made = Maker::new();
    let main = made.main();
    let shared = made.node(NodeKind::Autograd, "Shared");
    let saved = made.tensor(7);
    made.edge(shared, saved, EdgeKind::Saved, "");
    for (address, name) in [(1, "hidden"), (2, "loss")] {
        let tensor = made.tensor(address);
        made.edge(main, tensor, EdgeKind::Global, name);
        made.edge(tensor, shared, EdgeKind::Graph, "");
    }
    let other = made.tensor(3);
    made.edge(main, other, EdgeKind::Global, "other");
    // WHEN asking for the saved tensor
    let found = explained(&made.0, &[1, 2, 3, 7], 7);
    // THEN both names are named, and their release frees their own tensors, too
    assert_eq!(labels(&found), [[["hidden"], ["loss"]]]);
    assert_eq!((found.holders[0].bytes, found.holders[0].releases), (100, 300));
}

#[test]
fn calls_that_are_about_to_return_hold_nothing() {
    // GIVEN a variable, and a frame of PyTorch that refers to the same tensor
    let mut made = Maker::new();
    let main = made.main();
    let call = made.node(NodeKind::Call, "backward");
    made.edge(ROOT, call, EdgeKind::Unnamed, "");
    let tensor = made.tensor(1);
    made.edge(call, tensor, EdgeKind::Local, "self");
    made.edge(main, tensor, EdgeKind::Global, "loss");
    let temporary = made.tensor(2);
    made.edge(call, temporary, EdgeKind::Local, "x");
    // WHEN asking for both, THEN the variable holds the first, and nothing that stays holds the second
    let found = explained(&made.0, &[1, 2], 0);
    assert_eq!(labels(&found), [[["loss"]]]);
    assert_eq!((found.holders[0].releases, found.unreached), (100, 100));
}

#[test]
fn names_within_a_longer_list_of_names_are_not_told_apart() {
    // GIVEN memory that two variables hold, and more that these and a third hold
    let mut made = Maker::new();
    let main = made.main();
    let tensors: Vec<u32> = (1..=3).map(|address| made.tensor(address)).collect();
    for (tensor, name) in tensors.iter().zip(["energy", "forces", "loss"]) {
        made.edge(main, *tensor, EdgeKind::Global, name);
    }
    for (address, from) in [(7, 1), (8, 0)] {
        let (node, saved) = (made.node(NodeKind::Autograd, "Mul"), made.tensor(address));
        made.edge(node, saved, EdgeKind::Saved, "");
        tensors[from..].iter().for_each(|tensor| made.edge(*tensor, node, EdgeKind::Graph, ""));
    }
    // WHEN asking for both, THEN the three are one holder of both
    let found = explained(&made.0, &[1, 2, 3, 7, 8], 7);
    assert_eq!(labels(&found), [[["energy"], ["forces"], ["loss"]]]);
    assert_eq!((found.holders[0].bytes, found.holders[0].releases), (200, 500));
}

#[test]
fn names_to_which_one_name_leads_are_replaced_by_it() {
    // GIVEN a graph that saved a model's two weights, two losses of it in a list, and two tensors of an object with more
    let mut made = Maker::new();
    let main = made.main();
    let [model, losses, trainer] = [
        (NodeKind::Object, "Net", "model"),
        (NodeKind::Sequence, "list", "losses"),
        (NodeKind::Object, "Trainer", "trainer"),
    ]
    .map(|(kind, class, name)| {
        let node = made.node(kind, class);
        made.edge(main, node, EdgeKind::Global, name);
        node
    });
    let node = made.node(NodeKind::Autograd, "Mul");
    for (number, name) in (0..).zip(["energy", "force"]) {
        let (weight, loss, state) = (made.tensor(1 + number), made.tensor(11 + number), made.tensor(21 + number));
        made.edge(model, weight, EdgeKind::Attribute, name);
        made.edge(losses, loss, EdgeKind::Item, &number.to_string());
        made.edge(trainer, state, EdgeKind::Attribute, name);
        made.edge(node, weight, EdgeKind::Saved, "");
        for from in [loss, state] {
            made.edge(from, node, EdgeKind::Graph, "");
        }
    }
    let large = made.tensor(41);
    made.edge(trainer, large, EdgeKind::Attribute, "large");
    // WHEN asking for the weights
    let addresses = [1, 2, 11, 12, 21, 22, 41];
    let memory =
        addresses.map(|block| Memory { block, bytes: 100, is_wanted: block < 10, owner: NativeOwner::Unknown });
    let found = explain(&made.0, &memory, |address| addresses.iter().position(|known| *known == address));
    // THEN the model and the list are named as a whole, but not the object whose release would free more
    let shared = [vec!["losses"], vec!["model"], vec!["trainer", "energy"], vec!["trainer", "force"]];
    assert_eq!(labels(&found), [shared]);
    assert_eq!((found.holders[0].bytes, found.holders[0].releases), (200, 600));
}

#[test]
fn memory_without_an_object_is_autocasts_if_it_is_on() {
    // GIVEN a variable, a block that no object leads to, and autocast's sign
    let mut made = Maker::new();
    let main = made.main();
    let tensor = made.tensor(1);
    made.edge(main, tensor, EdgeKind::Global, "weight");
    for name in ["autocast", ""] {
        let mut graph = Maker(made.0.clone());
        let native = graph.node(NodeKind::Native, name);
        graph.edge(ROOT, native, EdgeKind::Unnamed, "");
        // WHEN asking for all, in a reduced graph, too
        for graph in [graph.0.clone(), reduced(&graph.0)] {
            let found = explained(&graph, &[1, 2], 0);
            // THEN the block is autocast's, but not a library's; AND without a sign it is nobody's
            assert_eq!(explained(&graph, &[1, (1 << 20) + 1], 0).unreached, 100);
            let released: Vec<(&str, u64)> = found.holders.iter().map(|held| (held.kind(), held.releases)).collect();
            if name.is_empty() {
                assert_eq!((released.as_slice(), found.unreached), (&[("variable", 100)][..], 100));
            } else {
                assert_eq!(found.unreached, 0);
                assert!(released.contains(&("autocast cache", 100)), "{released:?}");
            }
        }
    }
}

#[test]
fn buckets_without_an_object_are_ddps() {
    // GIVEN a gradient that lies in one bucket, another bucket without an object, and one more block without an object
    let mut made = Maker::new();
    let main = made.main();
    let gradient = made.tensor(1);
    made.edge(main, gradient, EdgeKind::Global, "gradient");
    let owners = [NativeOwner::Ddp, NativeOwner::Ddp, NativeOwner::Unknown];
    let memory: Vec<Memory> =
        (1..).zip(owners).map(|(block, owner)| Memory { block, bytes: 100, is_wanted: true, owner }).collect();
    // WHEN asking for all
    let found = explain(&made.0, &memory, |address| (address as usize).checked_sub(1));
    // THEN the variable holds the first, the buckets' owner the second, and the third has no holder
    let mut held: Vec<(&str, u64)> = found.holders.iter().map(|holder| (holder.kind(), holder.releases)).collect();
    held.sort_unstable();
    assert_eq!((held, found.unreached), (vec![("DDP buckets", 100), ("variable", 100)], 100));
}

#[test]
fn custom_functions_that_follow_each_other_take_a_collection_each() {
    // GIVEN garbage: two custom functions in a row, each with its output as an attribute
    let mut made = Maker::new();
    let garbage = made.node(NodeKind::Garbage, "");
    made.edge(ROOT, garbage, EdgeKind::Unnamed, "");
    let mut before = None;
    for address in [1, 2] {
        let (function, output) = (made.node(NodeKind::Context, "TanhBackward"), made.tensor(address));
        made.edge(garbage, function, EdgeKind::Unnamed, "");
        made.edge(function, output, EdgeKind::Attribute, "result");
        made.edge(output, function, EdgeKind::Graph, "");
        if let Some(before) = before.replace(function) {
            made.edge(function, before, EdgeKind::Graph, "");
        }
    }
    // THEN all is promised, after two collections
    let found = explained(&made.0, &[1, 2], 0);
    let holder = &found.holders[0];
    assert_eq!((holder.kind(), holder.releases, holder.collections), ("garbage", 200, 2));
}

#[test]
fn keys_that_repeat_below_a_model_are_named() {
    // GIVEN a model with two layers, each with a dictionary of adapters
    let mut made = Maker::new();
    let main = made.main();
    let model = made.node(NodeKind::Object, "Net");
    made.edge(main, model, EdgeKind::Global, "net");
    let mut addresses = Vec::new();
    for layer in 0..2 {
        let adapters = made.node(NodeKind::Mapping, "dict");
        made.edge(model, adapters, EdgeKind::Attribute, &format!("layer{layer}"));
        for task in 0..3 {
            let address = 1 + 10 * layer + task;
            let tensor = made.tensor(address);
            made.edge(adapters, tensor, EdgeKind::Item, &format!("task{task}"));
            addresses.push(address);
        }
    }
    // WHEN asking for all but the first task of each layer
    let wanted = |address: u64| address % 10 > 1;
    let memory: Vec<Memory> = addresses
        .iter()
        .map(|&block| Memory { block, bytes: 100, is_wanted: wanted(block), owner: NativeOwner::Unknown })
        .collect();
    let found = explain(&made.0, &memory, |address| addresses.iter().position(|known| *known == address));
    // THEN one holder is named with these tasks, if the layers are not named one by one
    let keys: BTreeSet<&str> = found.holders.iter().flat_map(|holder| holder.keys.iter().map(String::as_str)).collect();
    assert!(keys.is_empty() || keys == BTreeSet::from(["task1", "task2"]), "{keys:?}");
    assert_eq!(found.holders.iter().map(|holder| holder.bytes).sum::<u64>(), 400);
}

/// The bytes that stay reachable without some references.
#[test]
fn a_holder_is_found_again_at_another_search() {
    // GIVEN a list of one tensor, and the same list with two more beside another variable
    let with = |tensors: std::ops::Range<u64>| {
        let mut made = Maker::new();
        let main = made.main();
        let (other, list) = (made.tensor(9), made.node(NodeKind::Sequence, "list"));
        made.edge(main, other, EdgeKind::Global, "weight");
        made.edge(main, list, EdgeKind::Global, "history");
        for address in tensors {
            let tensor = made.tensor(address);
            made.edge(list, tensor, EdgeKind::Item, "");
        }
        made.0
    };
    let (early, late) = (with(1..2), with(1..4));
    // WHEN the holders of the later search are looked up in the earlier one
    let addresses = [1, 2, 3, 9];
    let found = explained(&late, &addresses, 1);
    // THEN each has its bytes of that moment
    assert_eq!(labels(&found), [[["history"]], [["weight"]]]);
    assert_eq!(held(&early, &addresses, 1, &found), [100, 100]);
    // AND a name that the other search lacks holds nothing there
    assert_eq!(held(&HeapGraph::new(), &addresses, 1, &found), [0, 0]);
}

fn reachable(graph: &HeapGraph, without: impl Fn(&Edge) -> bool) -> BTreeSet<u64> {
    let mut next: HashMap<u32, Vec<u32>> = HashMap::new();
    for edge in graph.edges.iter().filter(|edge| !without(edge)) {
        next.entry(edge.from).or_default().push(edge.to);
    }
    let mut seen = BTreeSet::from([ROOT]);
    let mut waiting = vec![ROOT];
    while let Some(node) = waiting.pop() {
        waiting.extend(next.get(&node).into_iter().flatten().filter(|node| seen.insert(**node)));
    }
    seen.iter().flat_map(|node| graph.nodes[*node as usize].memory.iter().copied()).collect()
}

fn random_graph() -> impl Strategy<Value = HeapGraph> {
    const KINDS: [NodeKind; 6] = [
        NodeKind::Sequence,
        NodeKind::Mapping,
        NodeKind::Object,
        NodeKind::Tensor,
        NodeKind::Tensor,
        NodeKind::Autograd,
    ];
    let node = (0..KINDS.len(), proptest::option::of(1_u64..12));
    (proptest::collection::vec(node, 1..14), proptest::collection::vec((0_u32..15, 0_u32..15), 1..40)).prop_map(
        |(nodes, edges)| {
            let mut made = Maker::new();
            let main = made.main();
            for (kind, address) in nodes {
                let node = made.node(KINDS[kind], "x");
                let has_memory = KINDS[kind] == NodeKind::Tensor;
                made.0.nodes[node as usize].memory.extend(address.filter(|_| has_memory));
            }
            let count = made.0.nodes.len() as u32;
            for (number, (from, to)) in edges.into_iter().enumerate() {
                let (from, to) = (main + from % (count - 1), main + 1 + to % (count - 2).max(1));
                if to < count {
                    let is_inner = !made.0.nodes[from as usize].kind.is_container();
                    let kind = if is_inner { EdgeKind::Saved } else { EdgeKind::Attribute };
                    // Every reference has another name, so that a path identifies it.
                    made.edge(from, to, kind, &format!("e{number}"));
                }
            }
            made.0
        },
    )
}

/// Checks against brute force on `graph` that each promise is what the release of the named references, or of the object
/// they end in, frees.
fn check(graph: &HeapGraph, found: &Explanation) -> Result<(), TestCaseError> {
    let before = reachable(graph, |_| false);
    let reached: u64 = before.iter().filter(|address| **address >= 6).map(|_| 100).sum();
    // Unreached bytes are counted apart, and no byte is held twice.
    prop_assert_eq!(found.unreached, 600 - reached);
    let held = found.holders.iter().map(|holder| holder.bytes).sum::<u64>();
    prop_assert!(held <= reached, "{} of {}: {:?}", held, reached, found);
    for holder in found.holders.iter().filter(|holder| holder.more == 0) {
        let names: BTreeSet<&str> =
            holder.paths.iter().filter_map(|path| path.last()).map(|step| step.label.as_str()).collect();
        let target = holder.paths[0].last().map(|step| step.label.as_str()).unwrap_or_default();
        let object = graph.edges.iter().find(|edge| edge.label == target).map(|edge| edge.to);
        let freed = |after: BTreeSet<u64>| 100 * before.difference(&after).count() as u64;
        let by_name = freed(reachable(graph, |edge| names.contains(edge.label.as_str())));
        let by_object = freed(reachable(graph, |edge| Some(edge.to) == object));
        prop_assert!(
            holder.releases == by_name || holder.paths.len() == 1 && holder.releases == by_object,
            "promised {}, freed {} without the names {:?}, {} without the object",
            holder.releases,
            by_name,
            names,
            by_object
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn promises_are_those_of_brute_force(graph in random_graph()) {
        // GIVEN a random graph, of whose blocks those from address 6 on are in question
        let addresses: Vec<u64> = (1..12).collect();
        // WHEN the holders are found, THEN each promise is exact
        check(&graph, &explained(&graph, &addresses, 6))?;
    }

    #[test]
    fn a_holder_holds_its_bytes_at_its_own_search(graph in random_graph()) {
        // GIVEN the holders in a random graph; WHEN they are looked up in it by name
        let addresses: Vec<u64> = (1..12).collect();
        let found = explained(&graph, &addresses, 6);
        // THEN each holds what it was found to hold, and several names also what one of them holds alone
        let holders = found.holders.iter().zip(held(&graph, &addresses, 6, &found));
        for (holder, held) in holders.filter(|(holder, _)| holder.more == 0) {
            prop_assert!(held == holder.bytes || holder.paths.len() > 1 && held > holder.bytes, "{} of {:?}", held, holder);
        }
    }

    #[test]
    fn a_reduced_graph_makes_promises_that_hold(graph in random_graph()) {
        // GIVEN a random graph
        let addresses: Vec<u64> = (1..12).collect();
        // WHEN it is reduced
        let small = reduced(&graph);
        // THEN it is valid and no larger, and its promises are exact for the whole graph
        prop_assert!(small.is_valid() && small.nodes.len() <= graph.nodes.len());
        check(&graph, &explained(&small, &addresses, 6))?;
    }
}
