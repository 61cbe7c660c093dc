//! The operations that lines of a wrapper stand for.
//!
//! The name of the node whose value a buffer of forward holds is in the comments. Of a kernel that was made from several nodes,
//! the buffer belongs to the one whose value it holds if the kernel's definition says so, and otherwise to what the launch stands
//! for.
//!
//! What a kernel that the program wrote fills belongs to the operation that made it, such as `torch.empty_like(x)`.
//!
//! A value of backward of which two or more candidates remain, because one kernel computes several, belongs to that of the
//! launches that read it, if it is one of them.
//!
//! If candidates remain, the origin is what they have in common: the line, and the innermost module around all of them.

use rustc_hash::FxHashMap;

use crate::candidates::{Candidates, FoundCandidates, candidates};
use crate::dataflow::candidates_of_values;
use crate::graph::{Graph, Module, SourceFrame};
use crate::line_traces::LineTraces;
use crate::names::CommentNames;
use crate::wrapper::{Kind, Value, Wrapper};

/// What is known of the operation that a line of a wrapper stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The program's lines, the outermost first. Empty: unknown.
    pub frames: Vec<SourceFrame>,
    /// The modules around it, the outermost first.
    pub modules: Vec<Module>,
}

/// The origins of a wrapper's lines.
#[derive(Debug, Default)]
pub struct Origins {
    of_line: FxHashMap<u32, Origin>,
}

impl Origins {
    /// The origin of what is allocated in a line; `None` if nothing is known of it.
    pub fn at(&self, line: u32) -> Option<&Origin> {
        self.of_line.get(&line)
    }

    /// The lines that have an origin, in any order.
    pub fn lines(&self) -> impl Iterator<Item = (u32, &Origin)> {
        self.of_line.iter().map(|(line, origin)| (*line, origin))
    }
}

/// Determines the origins of the lines of a wrapper that was made from a graph.
///
/// - `forward`: the wrapper of the same graph's forward, for one of backward.
/// - `traces`: Inductor's map of lines: from a line on, the trace of the last node that a launch was made from.
pub fn origins(graph: &Graph, forward: Option<&Wrapper>, wrapper: &Wrapper, traces: &[(u32, Option<&str>)]) -> Origins {
    let names = CommentNames::new(graph, wrapper);
    let FoundCandidates { of_launches: found, between } =
        candidates(graph, &names, forward, wrapper, &LineTraces::new(graph, traces));
    let has_traces = traces.iter().any(|(_, trace)| trace.is_some());
    let of_values = if has_traces { None } else { candidates_of_values(graph, wrapper) };
    let known = LaunchFacts { graph, wrapper, names, found, between, of_values, readers: readers(wrapper) };
    let mut of_line = FxHashMap::default();
    // An allocation belongs to the first value in it, which can be one that is there after a reuse only in name.
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

/// For each value, the launches that use it.
fn readers(wrapper: &Wrapper) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); wrapper.values.len()];
    for (index, launch) in wrapper.launches.iter().enumerate() {
        for value in &launch.uses {
            readers[*value].push(index);
        }
    }
    readers
}

/// What is known of the launches of a wrapper.
struct LaunchFacts<'a> {
    graph: &'a Graph,
    wrapper: &'a Wrapper,
    names: CommentNames<'a>,
    /// What each launch may stand for.
    found: Vec<Candidates>,
    /// What a launch lies between of which nothing else is known.
    between: Vec<Candidates>,
    /// What each value may hold, where nothing names what a launch stands for.
    of_values: Option<Vec<Candidates>>,
    /// For each value, the launches that use it.
    readers: Vec<Vec<usize>>,
}

impl LaunchFacts<'_> {
    /// The origin of what a call allocates itself: its workspace, or its result. It is that of the value it computes.
    fn of_launch(&self, launch: usize) -> Origin {
        let is_computed = |value: &Value| value.argument.is_none() && value.first_launch == Some(launch);
        let mut computed = (0..).zip(&self.wrapper.values).filter(|(_, value)| is_computed(value));
        match (computed.next(), computed.next()) {
            (Some((value, _)), None) => self.of_value(value),
            _ => self.in_common(self.remaining(launch)),
        }
    }

    /// The origin of a value.
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
            // An operation whose name has changed: none of the others that the kernel was made from.
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

    /// The operations that made the memory which a kernel that the program wrote fills.
    fn makers(&self, value: usize) -> Option<Vec<usize>> {
        let launch = self.wrapper.values[value].first_launch?;
        let parameter = self.wrapper.launches[launch].parameters.get(&value)?;
        let calls = self.found[launch].iter();
        let makers: Option<Vec<usize>> = calls.map(|call| self.graph.parameter_of(*call, parameter)).collect();
        makers.filter(|makers| !makers.is_empty())
    }

    /// The operation of the launches that read a value, if it is the same for all.
    fn of_readers(&self, value: usize) -> Option<usize> {
        let computed = self.wrapper.values[value].first_launch;
        let others = self.readers[value].iter().filter(|launch| Some(**launch) != computed);
        let mut readers = others.map(|launch| &self.found[*launch]);
        let first = *readers.next().filter(|candidates| !self.graph.is_ambiguous(candidates))?.first()?;
        readers
            .all(|candidates| !self.graph.is_ambiguous(candidates) && candidates.first() == Some(&first))
            .then_some(first)
    }

    /// What candidates have in common.
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
