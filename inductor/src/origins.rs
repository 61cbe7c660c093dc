//! Maps lines of a wrapper to operations.
//!
//! The comments name the node whose value a forward buffer holds. If a kernel was made from several nodes, the buffer
//! belongs to the node that the kernel's definition names for it, else to the launch's operation.
//!
//! Memory that a user-defined kernel fills belongs to the operation that allocated it, such as `torch.empty_like(x)`.
//!
//! If one kernel computes several values, a backward value can have two or more candidates. It then belongs to the
//! operation of the launches that read it, if that is a candidate.
//!
//! If candidates remain, the origin is their common part: the line, and the innermost module around all of them.

use rustc_hash::FxHashMap;

use crate::candidates::{Candidates, FoundCandidates, candidates};
use crate::dataflow::candidates_of_values;
use crate::graph::{Graph, Module, SourceFrame};
use crate::line_traces::LineTraces;
use crate::names::CommentNames;
use crate::wrapper::{Kind, Value, Wrapper};

/// Known facts about the operation of a wrapper's line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Lines of the program, outermost first. Empty: unknown.
    pub frames: Vec<SourceFrame>,
    /// Modules around it, outermost first.
    pub modules: Vec<Module>,
}

/// Origins of a wrapper's lines.
#[derive(Debug, Default)]
pub struct Origins {
    of_line: FxHashMap<u32, Origin>,
}

impl Origins {
    /// Returns the origin of the memory that a line allocates; `None` if unknown.
    pub fn at(&self, line: u32) -> Option<&Origin> {
        self.of_line.get(&line)
    }

    /// Returns the lines with an origin, in any order.
    pub fn lines(&self) -> impl Iterator<Item = (u32, &Origin)> {
        self.of_line.iter().map(|(line, origin)| (*line, origin))
    }
}

/// Determines the origins of the lines of a wrapper made from a graph.
///
/// - `forward`: the forward wrapper of the same graph, if `wrapper` is a backward.
/// - `traces`: Inductor's map of lines: the trace of the last node of a launch, valid from its line on.
pub fn origins(graph: &Graph, forward: Option<&Wrapper>, wrapper: &Wrapper, traces: &[(u32, Option<&str>)]) -> Origins {
    let names = CommentNames::new(graph, wrapper);
    let FoundCandidates { of_launches: found, between } =
        candidates(graph, &names, forward, wrapper, &LineTraces::new(graph, traces));
    let has_traces = traces.iter().any(|(_, trace)| trace.is_some());
    let of_values = if has_traces { None } else { candidates_of_values(graph, wrapper) };
    let known = LaunchFacts { graph, wrapper, names, found, between, of_values, readers: readers(wrapper) };
    let mut of_line = FxHashMap::default();
    // An allocation belongs to its first computed value. After a reuse, earlier values can exist only in name.
    let mut first_used: FxHashMap<usize, usize> = FxHashMap::default();
    for (value, made) in wrapper.values.iter().enumerate().filter(|(_, value)| value.first_launch.is_some()) {
        let first = first_used.entry(made.first_in_memory).or_insert(value);
        if made.first_launch < wrapper.values[*first].first_launch {
            *first = value;
        }
    }
    for (&line, allocated) in &wrapper.allocated {
        if let Some(&value) = first_used.get(allocated) {
            of_line.insert(line, known.of_value(value));
        }
    }
    for (&line, &launch) in &wrapper.launch_of_line {
        of_line.insert(line, known.of_launch(launch));
    }
    of_line.retain(|_, origin| !origin.frames.is_empty() || !origin.modules.is_empty());
    Origins { of_line }
}

/// Returns the launches that use each value.
fn readers(wrapper: &Wrapper) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); wrapper.values.len()];
    for (index, launch) in wrapper.launches.iter().enumerate() {
        for value in &launch.uses {
            readers[*value].push(index);
        }
    }
    readers
}

/// Facts about the launches of a wrapper.
struct LaunchFacts<'a> {
    graph: &'a Graph,
    wrapper: &'a Wrapper,
    names: CommentNames<'a>,
    /// Candidates of each launch.
    found: Vec<Candidates>,
    /// Operations between the neighbours of launches without other evidence.
    between: Vec<Candidates>,
    /// Candidates of each value, if neither names nor traces identify the launches.
    of_values: Option<Vec<Candidates>>,
    /// Launches that use each value.
    readers: Vec<Vec<usize>>,
}

impl LaunchFacts<'_> {
    /// Returns the origin of memory that a call itself allocates, its workspace or its result: the origin of the value
    /// that it computes.
    fn of_launch(&self, launch: usize) -> Origin {
        let is_computed = |value: &Value| value.argument.is_none() && value.first_launch == Some(launch);
        let mut computed = (0..).zip(&self.wrapper.values).filter(|(_, value)| is_computed(value));
        match (computed.next(), computed.next()) {
            (Some((value, _)), None) => self.of_value(value),
            _ => self.in_common(self.remaining(launch)),
        }
    }

    /// Returns the origin of a value.
    fn of_value(&self, value: usize) -> Origin {
        if let Some(of_values) = &self.of_values {
            return self.in_common(&of_values[value]);
        }
        let computed = &self.wrapper.values[value];
        let candidates = computed.first_launch.map_or(&[][..], |launch| &self.found[launch]);
        if let Some(makers) = self.makers(value) {
            return self.in_common(&makers);
        }
        if self.wrapper.kind() == Kind::Backward {
            if self.graph.is_ambiguous(candidates)
                && let Some(node) = self.of_readers(value).filter(|node| candidates.contains(node))
            {
                return self.in_common(&[node]);
            }
        } else if let Some(launch) = computed.first_launch
            && let made = &self.wrapper.launches[launch]
            && let Some(source) = made.source_of(value).map(|source| &made.sources[source])
        {
            if let Some(node) = self.names.operation(launch, source) {
                return self.in_common(&[node]);
            }
            if made.sources.last() != Some(source) && self.graph.operations_called(source).len() > 1 {
                return self.in_common(&self.names.operations(launch, source));
            }
            // An operation whose name has changed: none of the kernel's other source nodes.
            if made.known.contains(source) && made.sources.last() != Some(source) {
                return Origin::default();
            }
        }
        self.in_common(computed.first_launch.map_or(&[][..], |launch| self.remaining(launch)))
    }

    fn remaining(&self, launch: usize) -> &[usize] {
        let found = &self.found[launch];
        if found.is_empty() { &self.between[launch] } else { found }
    }

    /// Returns the operations that allocated the memory which a user-defined kernel fills.
    fn makers(&self, value: usize) -> Option<Vec<usize>> {
        let launch = self.wrapper.values[value].first_launch?;
        let parameter = self.wrapper.launches[launch].parameters.get(&value)?;
        let calls = self.found[launch].iter();
        let makers: Option<Vec<usize>> = calls.map(|call| self.graph.parameter_of(*call, parameter)).collect();
        makers.filter(|makers| !makers.is_empty())
    }

    /// Returns the operation of the launches that read a value, if all have the same.
    fn of_readers(&self, value: usize) -> Option<usize> {
        let computed = self.wrapper.values[value].first_launch;
        let others = self.readers[value].iter().filter(|launch| Some(**launch) != computed);
        let mut readers = others.map(|launch| &self.found[*launch]);
        let first = *readers.next().filter(|candidates| !self.graph.is_ambiguous(candidates))?.first()?;
        readers
            .all(|candidates| !self.graph.is_ambiguous(candidates) && candidates.first() == Some(&first))
            .then_some(first)
    }

    /// Returns the common part of candidates.
    fn in_common(&self, candidates: &[usize]) -> Origin {
        let Some((first, rest)) = candidates.split_first() else { return Origin::default() };
        let mut origin = Origin {
            frames: self.graph.trace_of(*first).map(|trace| self.graph.frames(trace)).unwrap_or_default(),
            modules: self.graph.modules_of(*first).to_vec(),
        };
        for node in rest {
            let modules = self.graph.modules_of(*node);
            let shared = origin.modules.iter().zip(modules).take_while(|(one, other)| one == other).count();
            origin.modules.truncate(shared);
            if self.graph.trace_of(*node) != self.graph.trace_of(*first) {
                let frames = self.graph.trace_of(*node).map(|trace| self.graph.frames(trace)).unwrap_or_default();
                let shared = origin.frames.iter().zip(&frames).take_while(|(one, other)| one == other).count();
                origin.frames.truncate(shared);
            }
        }
        origin
    }
}
