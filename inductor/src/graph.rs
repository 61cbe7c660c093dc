//! TorchDynamo's graph: operations of a program in execution order.

use rustc_hash::FxHashMap;
use serde::Deserialize;

/// A line of the program on the stack when an operation was traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFrame {
    pub file: String,
    pub line: u32,
    pub function: String,
}

/// A module that calls an operation.
#[derive(Clone, Debug, Eq, Deserialize)]
pub struct Module {
    /// Expression by which the traced function reaches it: `L['self'].blocks.3.mlp`.
    pub path: String,
    pub class: String,
    /// Address at trace time; 0: unknown.
    #[serde(default)]
    pub address: u64,
}

/// Modules are equal if their paths in their models are: models that differ in nothing else share code.
impl PartialEq for Module {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.class) == (&other.path, &other.class)
    }
}

/// Contents of a graph as memlab's agent writes them.
#[derive(Deserialize)]
struct Read {
    /// Stack traces in Python's format.
    traces: Vec<String>,
    /// Modules around an operation, outermost first.
    modules: Vec<Vec<Module>>,
    nodes: Vec<ReadNode>,
    /// Indices of the returned nodes, if known.
    #[serde(default)]
    results: Vec<usize>,
}

#[derive(Deserialize)]
struct ReadNode {
    name: String,
    /// True for an input of the graph.
    placeholder: bool,
    /// Indices into `traces` and `modules`.
    trace: Option<usize>,
    modules: Option<usize>,
    /// Indices of its argument nodes.
    inputs: Vec<usize>,
    /// For a call of a user-defined kernel: argument nodes by the kernel's parameters.
    #[serde(default)]
    parameters: FxHashMap<String, usize>,
}

/// An operation, or an input.
#[derive(Debug)]
pub(crate) struct Node {
    is_input: bool,
    parameters: FxHashMap<String, usize>,
    pub(crate) trace: Option<usize>,
    pub(crate) modules: Option<usize>,
    /// Nodes from which it is computed, all before it.
    inputs: Vec<usize>,
}

/// A graph.
#[derive(Debug, Default)]
pub struct Graph {
    traces: Vec<String>,
    modules: Vec<Vec<Module>>,
    nodes: Vec<Node>,
    by_name: FxHashMap<String, Vec<usize>>,
    /// Operations that use each input, by index.
    users_of_inputs: Vec<Vec<usize>>,
    results: Vec<usize>,
    /// Operations of a trace, in order.
    of_trace: FxHashMap<usize, Vec<usize>>,
}

impl Graph {
    /// Parses `{"traces": […], "modules": [[{"path", "class", "address"}, …], …], "nodes": [{"name", "placeholder",
    /// "trace", "modules", "inputs"}, …], "results": […]}`.
    ///
    /// Errors name the unexpected part.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        let Read { traces, modules, nodes: read, results } = serde_json::from_slice(json)?;
        let mut graph = Self { traces, modules, ..Self::default() };
        let mut input_of = FxHashMap::default();
        for (index, node) in read.into_iter().enumerate() {
            for input in &node.inputs {
                if let Some(users) = input_of.get(input).and_then(|input: &usize| graph.users_of_inputs.get_mut(*input))
                {
                    users.push(index);
                }
            }
            let trace = node.trace.filter(|trace| *trace < graph.traces.len());
            let modules = node.modules.filter(|modules| *modules < graph.modules.len());
            if node.placeholder {
                input_of.insert(index, graph.users_of_inputs.len());
                graph.users_of_inputs.push(Vec::new());
            } else {
                graph.by_name.entry(node.name.clone()).or_default().push(index);
                if let Some(trace) = trace {
                    graph.of_trace.entry(trace).or_default().push(index);
                }
            }
            let ReadNode { placeholder: is_input, mut inputs, parameters, .. } = node;
            inputs.retain(|input| *input < index);
            graph.nodes.push(Node { is_input, parameters, trace, modules, inputs });
        }
        graph.results = results;
        graph.results.retain(|result| *result < graph.nodes.len());
        Ok(graph)
    }

    /// Returns the operation of this name, if it is unique.
    pub(crate) fn operation(&self, name: &str) -> Option<usize> {
        match self.operations_called(name) {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// Returns the operations of this name, in order.
    ///
    /// Bodies of operations, such as checkpointed ones, have separate names.
    pub(crate) fn operations_called(&self, name: &str) -> &[usize] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Iterates over all operations, in order.
    pub(crate) fn operations(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().enumerate().filter(|(_, node)| !node.is_input).map(|(index, _)| index)
    }

    /// Returns the number of nodes: operations and inputs.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn is_input(&self, node: usize) -> bool {
        self.nodes[node].is_input
    }

    /// Returns the nodes from which one is computed, all before it.
    pub(crate) fn inputs_of(&self, node: usize) -> &[usize] {
        &self.nodes[node].inputs
    }

    /// Returns the nodes that the graph returns; empty if unknown.
    pub(crate) fn results(&self) -> &[usize] {
        &self.results
    }

    /// Returns the operations with this trace, in order.
    pub(crate) fn of_trace(&self, trace: usize) -> &[usize] {
        self.of_trace.get(&trace).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn trace_of(&self, node: usize) -> Option<usize> {
        self.nodes.get(node)?.trace
    }

    /// Returns the modules around an operation, outermost first.
    pub(crate) fn modules_of(&self, node: usize) -> &[Module] {
        self.nodes.get(node).and_then(|node| self.modules.get(node.modules?)).map_or(&[], Vec::as_slice)
    }

    /// Returns true if the traces or modules of the operations differ.
    pub(crate) fn is_ambiguous(&self, operations: &[usize]) -> bool {
        let Some((first, rest)) = operations.split_first() else { return false };
        rest.iter().any(|node| {
            self.modules_of(*node) != self.modules_of(*first) || self.trace_of(*node) != self.trace_of(*first)
        })
    }

    /// Returns the operation whose result a call of a user-defined kernel takes as this parameter.
    pub(crate) fn parameter_of(&self, call: usize, parameter: &str) -> Option<usize> {
        let taken = *self.nodes.get(call)?.parameters.get(parameter)?;
        self.nodes.get(taken).is_some_and(|node| !node.is_input).then_some(taken)
    }

    /// Returns the operations that use the input at this index.
    ///
    /// Returns none if they are too many to identify a launch that reads it, such as the users of a mask shared by all
    /// layers.
    pub(crate) fn users_of_input(&self, input: usize) -> &[usize] {
        const MAX_USERS: usize = 256;
        self.users_of_inputs.get(input).filter(|users| users.len() <= MAX_USERS).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of inputs.
    pub(crate) fn inputs(&self) -> usize {
        self.users_of_inputs.len()
    }

    pub(crate) fn traces(&self) -> &[String] {
        &self.traces
    }

    /// Returns the lines of a trace, outermost first.
    pub(crate) fn frames(&self, trace: usize) -> Vec<SourceFrame> {
        self.traces.get(trace).map(|trace| frames(trace).collect()).unwrap_or_default()
    }
}

/// Parses the frames of a stack trace in Python's format, outermost first.
fn frames(trace: &str) -> impl Iterator<Item = SourceFrame> {
    trace.lines().filter_map(|text| {
        let (file, rest) = text.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
        let (line, function) = rest.split_once(", in ").unwrap_or((rest, "?"));
        let line = line.trim_end().parse().ok()?;
        Some(SourceFrame { file: file.to_owned(), line, function: function.trim_end().to_owned() })
    })
}

/// Removes line numbers from a trace: they change when other lines of the file do.
pub(crate) fn without_line_numbers(trace: &str) -> String {
    let mut result = String::with_capacity(trace.len());
    for text in trace.lines() {
        match text.split_once("\", line ").and_then(|(file, rest)| Some((file, rest.split_once(',')?.1))) {
            Some((file, rest)) if text.trim_start().starts_with("File \"") => {
                result.push_str(file);
                result.push_str("\",");
                result.push_str(rest);
            }
            _ => result.push_str(text),
        }
        result.push('\n');
    }
    result
}
