//! Maps names in a wrapper's comments to operations.
//!
//! In forward, a name belongs to TorchDynamo's graph, or did when the wrapper was made and cached. In backward,
//! AOTAutograd makes its own nodes, whose names can equal TorchDynamo's by coincidence.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::Graph;
use crate::renamed::renamed;
use crate::scan::number;
use crate::wrapper::{Kind, Wrapper};

/// Names in the comments of a wrapper.
pub(crate) struct CommentNames<'a> {
    graph: &'a Graph,
    wrapper: &'a Wrapper,
    /// Operations of names that the graph no longer has.
    renamed: FxHashMap<&'a str, usize>,
}

impl<'a> CommentNames<'a> {
    pub(crate) fn new(graph: &'a Graph, wrapper: &'a Wrapper) -> Self {
        // In backward, a name that the graph lacks is usually AOTAutograd's.
        let is_backward = wrapper.kind() == Kind::Backward;
        let renamed = if is_backward { FxHashMap::default() } else { renamed(graph, wrapper) };
        Self { graph, wrapper, renamed }
    }

    /// Returns the graph's node for a name in a comment. AOTAutograd's nodes can have the same name by coincidence.
    pub(crate) fn operation(&self, launch: usize, name: &str) -> Option<usize> {
        let Some(node) = self.graph.operation(name) else {
            let node = self.renamed.get(name).copied(); // Only names that the graph lacks.
            return node.filter(|_| self.is_of_torchdynamo(launch, name));
        };
        (!self.may_be_of_backward(launch, name)).then_some(node)
    }

    /// Returns the graph's possible nodes for a name in a comment.
    ///
    /// Prefers those that use an input which the launch reads, or the result of another node in the comment; else
    /// returns all.
    pub(crate) fn operations(&self, launch: usize, name: &str) -> Vec<usize> {
        if let Some(node) = self.operation(launch, name) {
            return vec![node];
        }
        let nodes = self.graph.operations_called(name);
        if nodes.is_empty() || self.may_be_of_backward(launch, name) {
            return Vec::new();
        }
        let made = &self.wrapper.launches[launch];
        let arguments = made.uses.iter().filter_map(|value| self.wrapper.values[*value].argument.as_ref());
        let users: FxHashSet<usize> =
            arguments.filter_map(|argument| self.users_of_argument(argument)).flatten().copied().collect();
        let others: FxHashSet<usize> = made.sources.iter().filter_map(|other| self.operation(launch, other)).collect();
        let is_near = |node: &usize| {
            users.contains(node) || self.graph.inputs_of(*node).iter().any(|argument| others.contains(argument))
        };
        let using: Vec<usize> = nodes.iter().copied().filter(is_near).collect();
        if using.is_empty() { nodes.to_vec() } else { using }
    }

    /// Returns the last node in the comment that the graph has.
    ///
    /// Returns `None` if a later node was certainly the graph's: an operation whose name has changed is not the one
    /// before it.
    pub(crate) fn last_operations(&self, launch: usize) -> Option<Vec<usize>> {
        let made = &self.wrapper.launches[launch];
        let sources = &made.sources;
        if sources.last().is_some_and(|last| made.known.contains(last) && self.operations(launch, last).is_empty()) {
            return None;
        }
        let able = sources.iter().rev().filter(|name| made.can_compute(name));
        able.map(|name| self.operations(launch, name)).find(|nodes| !nodes.is_empty())
    }

    /// Returns true if all source nodes of a launch belong to forward.
    pub(crate) fn are_of_forward(&self, launch: usize) -> bool {
        let sources = &self.wrapper.launches[launch].sources;
        !sources.is_empty() && sources.iter().all(|name| !self.operations(launch, name).is_empty())
    }

    /// Returns the operations that use the graph's input for this argument of the wrapper; `None` if it is not an
    /// input.
    pub(crate) fn users_of_argument(&self, argument: &str) -> Option<&'a [usize]> {
        let input = number(argument, "primals_")?.checked_sub(1)?;
        Some(self.graph.users_of_input(input))
    }

    /// Returns true if AOTAutograd may have given a name in a comment to a backward node.
    fn may_be_of_backward(&self, launch: usize, name: &str) -> bool {
        let is_certain = self.wrapper.launches[launch].known.contains(name);
        self.wrapper.kind() == Kind::Backward && !is_certain && is_name_of_aten(name)
    }

    /// Returns true if a name that the graph lacks was probably TorchDynamo's.
    fn is_of_torchdynamo(&self, launch: usize, name: &str) -> bool {
        self.wrapper.launches[launch].known.contains(name) || !is_name_of_aten(name)
    }
}

/// Returns true if a node of AOTAutograd can have this name: an ATen operation with a number.
fn is_name_of_aten(name: &str) -> bool {
    const NAMES: [&str; 24] = [
        "add",
        "amax",
        "bmm",
        "cat",
        "clone",
        "convert_element_type",
        "convolution_backward",
        "div",
        "exp",
        "expand",
        "full",
        "full_default",
        "getitem",
        "mm",
        "mul",
        "neg",
        "permute",
        "select",
        "slice",
        "squeeze",
        "sub",
        "sum",
        "unsqueeze",
        "view",
    ];
    let base = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).trim_end_matches('_');
    NAMES.contains(&base)
}
