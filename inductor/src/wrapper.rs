//! Parses the parts of a wrapper that determine the operation of each allocation.
//!
//! ```text
//! # Topologically Sorted Source Nodes: [linear, gelu], Original ATen: [aten._unsafe_view, aten.gelu]
//! # Source node to ATen node mapping:
//! #   gelu => add_2, erf, mul_2
//! #   linear => view_1
//! # Graph fragment:
//! #   return %mul_2
//! triton_poi_fused_gelu_1 = async_compile.triton('triton_poi_fused_gelu_1', '''
//! def triton_poi_fused_gelu_1(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
//! ''', device_str='cuda')
//!
//! def call(args):
//!     primals_1, primals_2 = args
//!     buf0 = empty_strided_cuda((2048, 1024), (1024, 1), torch.float32)
//!     # Topologically Sorted Source Nodes: [linear, gelu], Original ATen: [aten._unsafe_view, aten.gelu]
//!     triton_poi_fused_gelu_1.run(primals_2, buf0, 2097152, stream=stream0)
//!     return (buf0, primals_1, )
//! ```
//!
//! A kernel is defined once and may be launched for other operations too. The definition names the nodes of each
//! output.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::kernel::{Kernel, source_nodes};
use crate::scan::{arguments, assignment, names};

/// Pass that a wrapper computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Forward, which keeps values for backward.
    Forward,
    Backward,
    /// Without backward.
    #[default]
    Inference,
}

/// TorchDynamo's name of a node that runs a user-defined kernel.
const KERNEL_OF_PROGRAM: &str = "triton_kernel_wrapper_mutation";

/// A line that computes.
#[derive(Debug, Default)]
pub(crate) struct Launch {
    pub(crate) line: u32,
    /// Source nodes, in the order of the graph.
    pub(crate) sources: Vec<String>,
    /// Names among them that are certainly nodes of TorchDynamo's graph.
    pub(crate) known: FxHashSet<String>,
    /// Values that it reads and writes.
    pub(crate) uses: Vec<usize>,
    /// Source node of a value that it writes, where known.
    source_of: FxHashMap<usize, usize>,
    /// For a user-defined kernel: its parameters, by the values passed at launch.
    pub(crate) parameters: FxHashMap<usize, String>,
}

impl Launch {
    /// Returns the index of the source node that computes a value: by default the last that the kernel was made from.
    pub(crate) fn source_of(&self, value: usize) -> Option<usize> {
        let last = self.sources.len().checked_sub(1)?;
        Some(self.source_of.get(&value).copied().or_else(|| self.last_source()).unwrap_or(last).min(last))
    }

    /// Returns the index of the last source node that can compute a value.
    ///
    /// Comments of launches that read the output of a user-defined kernel also name its call.
    fn last_source(&self) -> Option<usize> {
        self.sources.iter().rposition(|source| self.can_compute(source))
    }

    /// Returns true if a source node of this name can be its source.
    pub(crate) fn can_compute(&self, source: &str) -> bool {
        !self.parameters.is_empty() || !source.starts_with(KERNEL_OF_PROGRAM)
    }
}

/// Content of memory, under one or several names, until the memory is reused.
#[derive(Debug, Default)]
pub(crate) struct Value {
    /// Name, if it is an argument of the wrapper.
    pub(crate) argument: Option<String>,
    /// First launch that uses it. That launch computes it unless it is an argument.
    pub(crate) first_launch: Option<usize>,
    /// Previous value in the same memory.
    before: Option<usize>,
    /// First value in the same memory.
    pub(crate) first_in_memory: usize,
}

/// A wrapper.
#[derive(Debug, Default)]
pub struct Wrapper {
    kind: Kind,
    pub(crate) launches: Vec<Launch>,
    pub(crate) values: Vec<Value>,
    /// First value in the memory that each line allocates.
    pub(crate) allocated: FxHashMap<u32, usize>,
    /// Launch of each line.
    pub(crate) launch_of_line: FxHashMap<u32, usize>,
    /// Arguments, in calling order.
    pub(crate) arguments: Vec<String>,
    /// Returned values, by position.
    pub(crate) results: Vec<Option<usize>>,
    /// Source nodes of each node of AOTAutograd's graph that kernels name.
    pub(crate) source_of_node: FxHashMap<String, String>,
    /// Values of variables.
    names: FxHashMap<String, usize>,
    /// Kernel definitions, by name.
    kernels: FxHashMap<String, Kernel>,
}

/// Position of the parser.
#[derive(Default)]
struct Position<'a> {
    /// Kernel whose quoted text the parser is in.
    quoted: Option<Option<&'a str>>,
    /// Kernel that the preceding comments describe.
    described: Kernel,
    /// Indentation of the function.
    function: Option<usize>,
    /// True for the function that is called from outside. It calls the partitions, with arguments in another order.
    is_entry: bool,
    /// Source nodes of the next launch.
    sources: Option<Vec<String>>,
}

impl Wrapper {
    /// Parses the source of a wrapper.
    pub fn parse(source: &str) -> Self {
        let mut wrapper = Self::default();
        let mut position = Position::default();
        for (line, text) in (1..).zip(source.lines()) {
            let trimmed = text.trim_start();
            if position.quoted.is_some() {
                wrapper.quoted(trimmed, &mut position);
                continue;
            }
            let indentation = text.len() - trimmed.len();
            if position.function.is_some_and(|function| indentation <= function && !trimmed.is_empty()) {
                position.function = None;
            }
            if let Some(signature) = trimmed.strip_prefix("def ") {
                let name = signature.split('(').next().unwrap_or_default();
                let computes =
                    !["__init__", "recursively_apply_fns", "get_args", "benchmark_compiled_module"].contains(&name);
                position.function = computes.then_some(indentation);
                position.is_entry = name == "call";
            } else if position.function.is_some() {
                wrapper.statement(line, trimmed, &mut position);
            } else {
                wrapper.definition(trimmed, &mut position);
            }
        }
        wrapper
    }

    /// Returns the pass that the wrapper computes.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Parses a line outside of functions and quotes.
    fn definition<'a>(&mut self, text: &'a str, position: &mut Position<'a>) {
        if let Some(comment) = text.strip_prefix('#') {
            if comment.starts_with(" AOT ID") {
                self.kind = if comment.contains("_backward'") {
                    Kind::Backward
                } else if comment.contains("_forward'") {
                    Kind::Forward
                } else {
                    Kind::Inference
                };
            }
            position.described.describe(comment);
            return;
        }
        let name = assignment(text).filter(|(_, value)| value.starts_with("async_compile.")).map(|(name, _)| name);
        if let Some(name) = name {
            let kernel = std::mem::take(&mut position.described);
            for (node, source) in &kernel.source_of {
                self.source_of_node.insert(node.clone(), kernel.sources[*source].clone());
            }
            self.kernels.entry(name.to_owned()).or_insert(kernel);
        }
        if text.matches("'''").count() % 2 == 1 {
            position.quoted = Some(name);
        }
    }

    /// Parses a line of a kernel.
    fn quoted(&mut self, text: &str, position: &mut Position) {
        let name = position.quoted.flatten().unwrap_or_default();
        if text.matches("'''").count() % 2 == 1 {
            position.quoted = None;
            return;
        }
        if let Some(kernel) = self.kernels.get_mut(name) {
            kernel.describe_compilation(text);
        }
        if let Some(signature) = text.strip_prefix("def ")
            && let Some((function, parameters)) = signature.split_once('(')
            && function == name
            && let Some(kernel) = self.kernels.get_mut(function)
        {
            for (index, parameter) in arguments(parameters).enumerate() {
                let in_place = parameter.starts_with("in_out_ptr");
                if in_place {
                    kernel.in_place.push(index);
                }
                if in_place || parameter.starts_with("out_ptr") {
                    kernel.written.push(index);
                }
            }
        }
    }

    /// Parses a line of a function.
    fn statement(&mut self, line: u32, text: &str, position: &mut Position) {
        if let Some(comment) = text.strip_prefix('#') {
            if let Some(sources) = source_nodes(comment) {
                position.sources = Some(sources);
            }
            return;
        }
        if let Some(results) = text.strip_prefix("return (") {
            self.results = arguments(results).map(|result| self.value_in(result)).collect();
            return;
        }
        const IGNORED: [&str; 8] =
            ["del ", "with ", "assert", "args.clear", "raw_stream", "stream", "torch.cuda.set_device", "return"];
        if IGNORED.iter().any(|ignored| text.starts_with(ignored)) {
            return;
        }
        let Some((target, value)) = assignment(text) else {
            if text.contains('(') {
                self.launch(line, text, None, position);
            }
            return;
        };
        if value == "args" || value.starts_with("args[") {
            for name in target.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                if position.is_entry {
                    self.arguments.push(name.to_owned());
                }
                if !self.names.contains_key(name) {
                    self.new_value(name, Value { argument: Some(name.to_owned()), ..Value::default() });
                }
            }
        } else if value.starts_with("empty") || value.starts_with("torch.empty") {
            let value = self.new_value(target, Value::default());
            self.allocated.insert(line, value);
        } else if let Some(viewed) = self.viewed(value) {
            if value.ends_with("# reuse") {
                self.new_value(target, Value { before: Some(viewed), ..Value::default() });
            } else {
                self.names.insert(target.to_owned(), viewed);
            }
        } else if value.contains('(')
            && !value.starts_with("copy_if_misaligned(")
            && !value.starts_with("get_raw_stream(")
        {
            self.launch(line, value, Some(target), position);
        }
    }

    fn new_value(&mut self, name: &str, mut value: Value) -> usize {
        value.first_in_memory = value.before.map_or(self.values.len(), |before| self.values[before].first_in_memory);
        self.values.push(value);
        self.names.insert(name.to_owned(), self.values.len() - 1);
        self.values.len() - 1
    }

    /// Returns the value that an expression only views in another form: `buf1`, `buf1[0]`, `reinterpret_tensor(buf1,
    /// …)`.
    fn viewed(&self, value: &str) -> Option<usize> {
        let value = value.split(';').next().unwrap_or_default();
        let value = value.split("  #").next().unwrap_or_default().trim();
        if let Some(inner) =
            value.strip_prefix("reinterpret_tensor(").or_else(|| value.strip_prefix("alloc_from_pool("))
        {
            return self.value_in(arguments(inner).next()?);
        }
        let (name, index) = value.split_once('[').unwrap_or((value, "]"));
        index.ends_with(']').then(|| self.names.get(name.trim()).copied()).flatten()
    }

    fn value_in(&self, expression: &str) -> Option<usize> {
        names(expression).find_map(|name| self.names.get(name).copied())
    }

    fn launch(&mut self, line: u32, text: &str, target: Option<&str>, position: &mut Position) {
        let Some(sources) = position.sources.take() else {
            // For example, the result of a subgraph.
            if let Some(target) = target {
                self.new_value(target, Value::default());
            }
            return;
        };
        let number = self.launches.len();
        let mut uses: Vec<usize> = names(text).filter_map(|name| self.names.get(name).copied()).collect();
        let mut launch = Launch { line, sources, ..Launch::default() };
        if let Some((name, call)) = text.split_once(".run(")
            && let Some(kernel) = self.kernels.get_mut(name)
        {
            let parameters: Vec<(&str, Option<usize>)> = arguments(call)
                .map(|argument| {
                    let name = names(argument).find(|name| self.names.contains_key(*name)).unwrap_or_default();
                    (name, self.names.get(name).copied())
                })
                .collect();
            let in_place = kernel.in_place.iter().filter_map(|parameter| parameters.get(*parameter)?.1);
            uses.extend(in_place.filter_map(|value| self.values[value].before));
            if kernel.is_of_program {
                let tensors: Vec<usize> = parameters.iter().filter_map(|(_, value)| *value).collect();
                if tensors.len() == kernel.tensors.len() {
                    launch.parameters = tensors.into_iter().zip(kernel.tensors.iter().cloned()).collect();
                }
            }
            kernel.match_outputs(&parameters);
            launch.known = kernel.known_among(&launch.sources);
            if kernel.sources.len() == launch.sources.len() {
                launch.source_of = kernel
                    .source_of_parameter
                    .iter()
                    .filter_map(|(parameter, source)| Some((parameters.get(*parameter)?.1?, *source)))
                    .collect();
            }
        }
        if let Some(target) = target {
            // The call itself allocates its memory.
            for name in target.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                uses.push(self.new_value(name, Value::default()));
            }
        }
        for value in &uses {
            self.values[*value].first_launch.get_or_insert(number);
        }
        uses.sort_unstable();
        uses.dedup();
        launch.uses = uses;
        self.launch_of_line.insert(line, number);
        self.launches.push(launch);
    }
}
