//! The graph: objects that lead to memory, and the references between them.

use serde::{Deserialize, Serialize};

/// The virtual root: holds everything that a program can reach.
///
/// It is node 0 of every graph.
pub const ROOT: u32 = 0;

/// Kind of a node, as far as a person or a cure needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// The virtual root.
    #[default]
    Root,
    /// The variables of a module.
    Module,
    /// A frame that runs.
    Frame,
    /// A frame of PyTorch or of Python's library inside of which no other code runs: what only it holds is released when the
    /// call returns.
    Call,
    /// A class.
    Class,
    /// Objects that only C or C++ holds: nothing that Python's collector tracks refers to them. The name is `autocast` if
    /// autocast's weight cache is in use, or `ipc` if tensors were sent to another process. Memory that no object leads to
    /// is then theirs.
    Native,
    /// Objects that only the garbage collector frees.
    Garbage,
    /// A list, tuple, set or deque.
    Sequence,
    /// A dictionary.
    Mapping,
    /// A function. Its closure and its default values are its references.
    Function,
    /// A `functools` cache.
    Cache,
    /// An exception.
    Exception,
    /// A traceback of an exception, or a frame that it keeps.
    Traceback,
    /// A generator or coroutine.
    Generator,
    /// An object of a class that has no kind here.
    Object,
    /// A tensor or a storage.
    Tensor,
    /// A node of an autograd graph.
    Autograd,
    /// The `ctx` of a custom autograd function.
    Context,
}

impl NodeKind {
    /// Returns true if a person can act on such an object: it is no inner part of a tensor or an autograd graph.
    #[must_use]
    pub const fn is_container(self) -> bool {
        !matches!(self, Self::Root | Self::Tensor | Self::Autograd)
    }
}

/// An object that leads to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its kind.
    pub kind: NodeKind,
    /// Name of a module, class or function; else the name of its class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// File of a frame, function or class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Current line of a frame; first line of a function. 0: unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
    /// Number of elements of a container; of a node into which others were folded, the tensors among them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub items: u32,
    /// Addresses of the device memory that it holds itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<u64>,
}

/// Kind of a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// By C or C++ alone, or in a way that has no name.
    #[default]
    Unnamed,
    /// A local variable of a frame.
    Local,
    /// A variable of a module.
    Global,
    /// An attribute of an object or class.
    Attribute,
    /// An element: the label is its key or its position.
    Item,
    /// A variable that a function shares with the function around it.
    Closure,
    /// A tensor's `grad_fn`, or the next node of an autograd graph.
    Graph,
    /// A tensor saved for backward.
    Saved,
    /// The tensor of which another is a view.
    Base,
    /// The gradient of a tensor.
    Gradient,
}

/// A reference from one object to another.
///
/// In JSON it is an array of its fields in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u32, u32, EdgeKind, String, u32)", into = "(u32, u32, EdgeKind, String, u32)")]
pub struct Edge {
    /// The object that refers.
    pub from: u32,
    /// The object referred to.
    pub to: u32,
    /// The kind of reference.
    pub kind: EdgeKind,
    /// Name of the variable or attribute, or key of the element. Empty: it has none that may be written.
    pub label: String,
    /// Line that stores it, if a search of the source found one. 0: unknown.
    pub line: u32,
}

impl From<(u32, u32, EdgeKind, String, u32)> for Edge {
    fn from((from, to, kind, label, line): (u32, u32, EdgeKind, String, u32)) -> Self {
        Self { from, to, kind, label, line }
    }
}

impl From<Edge> for (u32, u32, EdgeKind, String, u32) {
    fn from(edge: Edge) -> Self {
        (edge.from, edge.to, edge.kind, edge.label, edge.line)
    }
}

/// Objects that lead to memory, and their references. Node 0 is the virtual root.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeapGraph {
    /// The objects; their indices are what edges contain.
    pub nodes: Vec<Node>,
    /// The references.
    pub edges: Vec<Edge>,
}

impl HeapGraph {
    /// Returns a graph with the virtual root only.
    #[must_use]
    pub fn new() -> Self {
        Self { nodes: vec![Node::default()], edges: Vec::new() }
    }

    /// Returns true if every edge joins two nodes of the graph, and node 0 is the root: what a trace contains may be
    /// anything.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let count = self.nodes.len();
        let is_node = |index: u32| (index as usize) < count;
        self.nodes.first().is_some_and(|root| root.kind == NodeKind::Root)
            && self.edges.iter().all(|edge| is_node(edge.from) && is_node(edge.to) && edge.to != ROOT)
    }
}

/// Name of the node with buckets of `DistributedDataParallel`.
pub(crate) const DDP: &str = "ddp";

impl Node {
    /// Returns true if it is in C++, and a sign shows its name.
    #[must_use]
    pub fn is_native_by_sign(&self) -> bool {
        self.kind == NodeKind::Native && !self.name.is_empty()
    }

    /// Returns true if memory that no object leads to is this node's.
    #[must_use]
    pub fn holds_the_rest(&self) -> bool {
        self.is_native_by_sign() && self.name != DDP
    }
}

/// Finds the nodes from which one of these ends can be reached, in a graph of `count` nodes.
///
/// # Panics
///
/// If an edge or an end is no node.
#[must_use]
pub fn leading_to(
    count: usize,
    edges: impl Iterator<Item = (u32, u32)> + Clone,
    ends: impl Iterator<Item = u32>,
) -> Vec<bool> {
    // The nodes that lead to each node, one list after the other.
    let mut starts = vec![0_usize; count + 1];
    for (_, to) in edges.clone() {
        starts[to as usize + 1] += 1;
    }
    for index in 0..count {
        starts[index + 1] += starts[index];
    }
    let mut next = starts.clone();
    let mut sources = vec![0_u32; starts[count]];
    for (from, to) in edges {
        sources[next[to as usize]] = from;
        next[to as usize] += 1;
    }
    let mut leads = vec![false; count];
    let mut waiting: Vec<u32> = ends.filter(|end| !std::mem::replace(&mut leads[*end as usize], true)).collect();
    while let Some(node) = waiting.pop() {
        for &from in &sources[starts[node as usize]..starts[node as usize + 1]] {
            if !std::mem::replace(&mut leads[from as usize], true) {
                waiting.push(from);
            }
        }
    }
    leads
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}
