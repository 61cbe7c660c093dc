//! *Candidates*: the operations that each launch of a wrapper may stand for.
//!
//! **Forward.** The last node that a kernel was made from. Bodies of operations can contain nodes of the same name. The
//! trace that Inductor records for the launch then selects the node, see below.
//!
//! **Backward.** AOTAutograd makes its own nodes. The comments contain their names, which TorchDynamo does not know.
//! But Inductor records for each launch the stack trace of the last node, and backward nodes have the traces of their
//! forward operations. The trace therefore determines the line. A line in a loop has one operation per iteration, all
//! with the same trace. The following evidence selects among them, in this order:
//!
//! 1. the evidence of the launch: forward nodes in its comment, values kept by forward that it reads, inputs that it
//!    reads (also values that forward computed from inputs alone, such as a weight in half precision), and inputs whose
//!    gradients it computes,
//! 2. the order of the graph.
//!
//! Without a recorded trace, as in partitions (for CUDA graphs), the candidates are the operations of the evidence.
//! Without evidence, they are the operations between those it is computed from and those computed from it.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::Graph;
use crate::line_traces::LineTraces;
use crate::names::CommentNames;
use crate::order::Order;
use crate::wrapper::{Kind, Wrapper};

/// Operations that a launch may stand for, in the order of the graph.
pub(crate) type Candidates = Vec<usize>;

pub(crate) struct FoundCandidates {
    /// Candidates of each launch.
    pub(crate) of_launches: Vec<Candidates>,
    /// Possible operations of each launch without candidates, in the order of the graph.
    pub(crate) between: Vec<Candidates>,
}

/// Returns the candidates of each launch of a wrapper.
///
/// - `forward`: the forward wrapper of the same graph, if `wrapper` is a backward.
pub(crate) fn candidates(
    graph: &Graph,
    names: &CommentNames,
    forward: Option<&Wrapper>,
    wrapper: &Wrapper,
    traces: &LineTraces,
) -> FoundCandidates {
    let kept = forward.map(|forward| kept(graph, forward, wrapper)).unwrap_or_default();
    let search = Search { graph, names, forward, wrapper, traces, kept, results: results(wrapper) };
    let mut found: Vec<Candidates> = Vec::new();
    for launch in 0..wrapper.launches.len() {
        let of_launch = if wrapper.kind() == Kind::Backward {
            search.of_backward(launch)
        } else {
            let named = names.last_operations(launch);
            named.map_or_else(|| search.of_early_backward(launch, &found), |named| search.matching(launch, named))
        };
        found.push(of_launch);
    }
    let order = Order::new(graph, names, wrapper);
    order.narrow(graph, &mut found);
    let between = match wrapper.kind() {
        Kind::Backward => order.between(graph, &found),
        Kind::Forward | Kind::Inference => vec![Vec::new(); found.len()],
    };
    FoundCandidates { of_launches: found, between }
}

/// Returns the positions of the results that each launch computes.
fn results(wrapper: &Wrapper) -> Vec<Vec<usize>> {
    let mut results = vec![Vec::new(); wrapper.launches.len()];
    for (position, value) in wrapper.results.iter().enumerate() {
        if let Some(launch) = value.and_then(|value| wrapper.values[value].first_launch) {
            results[launch].push(position);
        }
    }
    results
}

/// Returns the forward operations behind each kept value, by the argument of backward.
///
/// These are the operations for which forward computed the value from inputs alone, or the users of a kept input.
/// (Values computed from other values are weaker evidence: an operation of a loop keeps the output of the previous
/// iteration.)
fn kept<'a>(graph: &Graph, forward: &Wrapper, backward: &'a Wrapper) -> FxHashMap<&'a str, Vec<usize>> {
    let arguments = backward.arguments.iter().map(String::as_str);
    let arguments: Vec<&str> = arguments.filter(|name| !name.starts_with("tangents_")).collect();
    let Some(first) = forward.results.len().checked_sub(arguments.len()) else { return FxHashMap::default() };
    let pairs = || arguments.iter().copied().zip(&forward.results[first..]);
    let is_input = |value: &Option<usize>| value.and_then(|value| forward.values[value].argument.as_deref());
    if pairs().any(|(name, value)| name.starts_with("primals_") && is_input(value) != Some(name)) {
        return FxHashMap::default(); // The order differs, as with changing shapes.
    }
    let names = CommentNames::new(graph, forward);
    let of_inputs = |launch: &usize| {
        let others = forward.launches[*launch].uses.iter().map(|value| &forward.values[*value]);
        others.filter(|value| value.first_launch != Some(*launch)).all(|value| value.argument.is_some())
    };
    let made = pairs().filter_map(|(name, value)| {
        if let Some(input) = is_input(value) {
            return Some((name, names.users_of_argument(input)?.to_vec())); // For example, a transposed weight.
        }
        let launch = forward.values[(*value)?].first_launch.filter(of_inputs)?;
        Some((name, names.last_operations(launch)?))
    });
    made.collect()
}

struct Search<'a> {
    graph: &'a Graph,
    names: &'a CommentNames<'a>,
    forward: Option<&'a Wrapper>,
    wrapper: &'a Wrapper,
    traces: &'a LineTraces,
    /// Operations for which forward computed its kept values from inputs alone.
    kept: FxHashMap<&'a str, Vec<usize>>,
    /// Positions of the results that each launch computes.
    results: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn of_backward(&self, launch: usize) -> Candidates {
        let evidence = self.evidence(launch);
        self.narrowed(launch, &evidence).or_else(|| self.names.last_operations(launch)).unwrap_or_else(|| {
            let mut known: Candidates = evidence.into_iter().collect();
            known.sort_unstable();
            known
        })
    }

    /// Selects among several operations of the same name: those with the launch's trace, or all.
    ///
    /// Of calls of a user-defined kernel, selects those that take the values that the launch reads.
    fn matching(&self, launch: usize, named: Candidates) -> Candidates {
        if named.len() == 1 {
            return named;
        }
        let made = &self.wrapper.launches[launch];
        let traced = self.traces.operations(self.graph, made.line).unwrap_or_default();
        let named = those(named, |node| traced.contains(&node));
        let read: Vec<(&str, Vec<usize>)> = (made.parameters.iter())
            .filter_map(|(value, parameter)| {
                let writer = self.wrapper.values[*value].first_launch.filter(|writer| *writer < launch)?;
                let sources = self.wrapper.launches[writer].sources.iter();
                Some((parameter.as_str(), sources.flat_map(|source| self.names.operations(writer, source)).collect()))
            })
            .collect();
        those(named, |call| {
            let takes = |(parameter, makers): &(&str, Vec<usize>)| {
                self.graph.parameter_of(call, parameter).is_none_or(|taken| makers.contains(&taken))
            };
            read.iter().all(takes)
        })
    }

    /// Returns the candidates of a part of backward that was moved into forward: it reads values that forward computed.
    fn of_early_backward(&self, launch: usize, found: &[Candidates]) -> Candidates {
        let writers =
            self.wrapper.launches[launch].uses.iter().filter_map(|value| self.wrapper.values[*value].first_launch);
        let evidence =
            writers.filter(|writer| *writer != launch).filter_map(|writer| found.get(writer)).flatten().copied();
        self.narrowed(launch, &evidence.collect()).unwrap_or_default()
    }

    /// Returns the operations with the launch's trace, if any: those in the evidence, or all.
    fn narrowed(&self, launch: usize, evidence: &FxHashSet<usize>) -> Option<Candidates> {
        let line = self.wrapper.launches[launch].line;
        let traced = self.traces.operations(self.graph, line).filter(|traced| !traced.is_empty())?;
        let narrowed: Candidates = traced.iter().copied().filter(|node| evidence.contains(node)).collect();
        Some(if narrowed.is_empty() { traced.to_vec() } else { narrowed })
    }

    /// Returns the forward operations related to a launch of backward.
    fn evidence(&self, launch: usize) -> FxHashSet<usize> {
        let made = &self.wrapper.launches[launch];
        let mut found = FxHashSet::default();
        for name in &made.sources {
            match self.names.operation(launch, name) {
                None if made.known.contains(name) => found.extend(self.names.operations(launch, name)),
                only => found.extend(only),
            }
        }
        for argument in made.uses.iter().filter_map(|value| self.wrapper.values[*value].argument.as_ref()) {
            if let Some(users) = self.names.users_of_argument(argument) {
                found.extend(users);
            } else if let Some(source) = self.forward.and_then(|forward| forward.source_of_node.get(argument)) {
                found.extend(self.graph.operation(source));
            } else if let Some(operations) = self.kept.get(argument.as_str()) {
                found.extend(operations);
            }
        }
        for result in &self.results[launch] {
            found.extend(self.users_of_gradient(*result));
        }
        found
    }

    /// Returns the operations that use the input whose gradient is the result at this position.
    fn users_of_gradient(&self, result: usize) -> &[usize] {
        let is_gradient = self.wrapper.kind() == Kind::Backward && self.wrapper.results.len() == self.graph.inputs();
        if is_gradient { self.graph.users_of_input(result) } else { &[] }
    }
}

/// Returns the candidates that satisfy `is_true`, or all if none does.
fn those(candidates: Candidates, is_true: impl Fn(usize) -> bool) -> Candidates {
    let found: Candidates = candidates.iter().copied().filter(|node| is_true(*node)).collect();
    if found.is_empty() { candidates } else { found }
}
