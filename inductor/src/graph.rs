//! TorchDynamo's graph: the operations of a program, in the order in which it runs them.

use rustc_hash::FxHashMap;
use serde::Deserialize;

/// A line of the program that was running when an operation was traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFrame {
    pub file: String,
    pub line: u32,
    pub function: String,
}

/// A module whose call an operation is part of.
#[derive(Clone, Debug, Eq, Deserialize)]
pub struct Module {
    /// How the traced function reaches it: `L['self'].blocks.3.mlp`.
    pub path: String,
    pub class: String,
    /// Where it was when it was traced; 0: unknown.
    #[serde(default)]
    pub address: u64,
}

/// Modules are equal if they have the same place in their models: code is shared by models that differ in nothing else.
impl PartialEq for Module {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.class) == (&other.path, &other.class)
    }
}

/// What memlab's agent reads of a graph.
#[derive(Deserialize)]
struct Read {
    /// Stack traces as Python prints them.
    traces: Vec<String>,
    /// Modules around an operation, the outermost first.
    modules: Vec<Vec<Module>>,
    nodes: Vec<ReadNode>,
    /// Indices of the nodes that it returns, if they are known.
    #[serde(default)]
    results: Vec<usize>,
}

#[derive(Deserialize)]
struct ReadNode {
    name: String,
    /// An input of the graph.
    placeholder: bool,
    /// Indices into `traces` and `modules`.
    trace: Option<usize>,
    modules: Option<usize>,
    /// Indices of the nodes that it takes as arguments.
    inputs: Vec<usize>,
    /// Of a call of a kernel that the program wrote: the nodes that it takes, by the kernel's parameters.
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
    /// The nodes it is computed from, all before it.
    inputs: Vec<usize>,
}

/// A graph.
#[derive(Debug, Default)]
pub struct Graph {
    traces: Vec<String>,
    modules: Vec<Vec<Module>>,
    nodes: Vec<Node>,
    by_name: FxHashMap<String, Vec<usize>>,
    /// For each input in order, the operations that use it.
    users_of_inputs: Vec<Vec<usize>>,
    results: Vec<usize>,
    /// The operations of a trace, in order.
    of_trace: FxHashMap<usize, Vec<usize>>,
}

impl Graph {
    /// Reads `{"traces": […], "modules": [[{"path", "class", "address"}, …], …], "nodes": [{"name", "placeholder", "trace", "modules",
    /// "inputs"}, …], "results": […]}`. Errors say what is not as expected.
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

    /// The operation of this name, if there is only one.
    pub(crate) fn operation(&self, name: &str) -> Option<usize> {
        match self.operations_called(name) {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// The operations of this name, in order. Bodies of operations, such as what is checkpointed, have names of their own.
    pub(crate) fn operations_called(&self, name: &str) -> &[usize] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// All operations, in order.
    pub(crate) fn operations(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().enumerate().filter(|(_, node)| !node.is_input).map(|(index, _)| index)
    }

    /// How many nodes there are: operations and inputs.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn is_input(&self, node: usize) -> bool {
        self.nodes[node].is_input
    }

    /// The nodes that one is computed from, all before it.
    pub(crate) fn inputs_of(&self, node: usize) -> &[usize] {
        &self.nodes[node].inputs
    }

    /// The nodes that the graph returns; none if they are not known.
    pub(crate) fn results(&self) -> &[usize] {
        &self.results
    }

    /// The operations with this trace, in order.
    pub(crate) fn of_trace(&self, trace: usize) -> &[usize] {
        self.of_trace.get(&trace).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn trace_of(&self, node: usize) -> Option<usize> {
        self.nodes.get(node)?.trace
    }

    /// The modules around an operation, the outermost first.
    pub(crate) fn modules_of(&self, node: usize) -> &[Module] {
        self.nodes.get(node).and_then(|node| self.modules.get(node.modules?)).map_or(&[], Vec::as_slice)
    }

    /// Whether operations differ in what is shown of them.
    pub(crate) fn is_ambiguous(&self, operations: &[usize]) -> bool {
        let Some((first, rest)) = operations.split_first() else { return false };
        rest.iter().any(|node| {
            self.modules_of(*node) != self.modules_of(*first) || self.trace_of(*node) != self.trace_of(*first)
        })
    }

    /// The operation whose result a call of a kernel that the program wrote takes as this parameter.
    pub(crate) fn parameter_of(&self, call: usize, parameter: &str) -> Option<usize> {
        let taken = *self.nodes.get(call)?.parameters.get(parameter)?;
        self.nodes.get(taken).is_some_and(|node| !node.is_input).then_some(taken)
    }

    /// The operations that use the input of this number, if they are few enough to say something of a launch that reads it: a
    /// mask that all layers use does not.
    pub(crate) fn users_of_input(&self, input: usize) -> &[usize] {
        const MAX_USERS: usize = 256;
        self.users_of_inputs.get(input).filter(|users| users.len() <= MAX_USERS).map_or(&[], Vec::as_slice)
    }

    /// How many inputs there are.
    pub(crate) fn inputs(&self) -> usize {
        self.users_of_inputs.len()
    }

    pub(crate) fn traces(&self) -> &[String] {
        &self.traces
    }

    /// The lines of a trace, the outermost first.
    pub(crate) fn frames(&self, trace: usize) -> Vec<SourceFrame> {
        self.traces.get(trace).map(|trace| frames(trace).collect()).unwrap_or_default()
    }
}

/// The frames of a stack trace as Python prints it, the outermost first.
fn frames(trace: &str) -> impl Iterator<Item = SourceFrame> {
    trace.lines().filter_map(|text| {
        let (file, rest) = text.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
        let (line, function) = rest.split_once(", in ").unwrap_or((rest, "?"));
        let line = line.trim_end().parse().ok()?;
        Some(SourceFrame { file: file.to_owned(), line, function: function.trim_end().to_owned() })
    })
}

/// A trace without what changes when other lines of the file change: the numbers of lines.
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
