//! The operations that lines of a wrapper stand for.
//!
//! **Forward.** The name of the node whose value a buffer holds is in the comments, and it is a name of TorchDynamo's graph. Of
//! a kernel that was made from several nodes, the buffer belongs to the one whose value it holds if the kernel's definition says
//! so, and otherwise to the last.
//!
//! **Backward.** AOTAutograd makes its nodes itself, and the comments have their names, which TorchDynamo does not know. But
//! Inductor remembers for each launch the stack trace of the last node, and the nodes of backward have those of the operations
//! of forward that they belong to. So the trace says the line. A line in a loop stands for an operation of each turn of the
//! loop, with the same trace: *candidates*. Which of them it is follows, in this order, from
//!
//! 1. what the launch has to do with: nodes of forward in its comment, values that forward kept and that it reads, inputs that it
//!    reads, and inputs (such as weights) whose gradients it computes,
//! 2. the order: backward runs against the order of forward. A value lies in that order between those it is computed from and
//!    those computed from it.
//!
//! A value of which two or more candidates remain, because one kernel computes several, belongs to that of the launches that read
//! it, if it is one of them.
//!
//! If candidates remain, the origin is what they have in common: the line, and the innermost module around all of them.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::{Graph, Module, SourceFrame, without_line_numbers};
use crate::renamed::renamed;
use crate::scan::number;
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
    let search = Search::new(graph, forward, wrapper, line_traces(graph, traces));
    let found = search.candidates();
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
            of_line.insert(line, search.of_value(value, &found));
        }
    }
    for (&line, &launch) in &wrapper.launch_of_line {
        of_line.insert(line, search.origin(&found[launch]));
    }
    of_line.retain(|_, origin| !origin.frames.is_empty() || !origin.modules.is_empty());
    Origins { of_line }
}

/// For lines from one on, a trace of the graph. Lines of the program may have moved since the wrapper was made and cached: then
/// a trace is the graph's that differs in numbers of lines only, if there is just one.
fn line_traces(graph: &Graph, traces: &[(u32, Option<&str>)]) -> Vec<(u32, Option<usize>)> {
    let exact: FxHashMap<&str, usize> =
        (0..).zip(graph.traces()).map(|(index, trace)| (trace.as_str(), index)).collect();
    let is_current = traces.iter().filter_map(|(_, trace)| *trace).all(|trace| exact.contains_key(trace));
    let mut moved: FxHashMap<String, Option<usize>> = FxHashMap::default();
    if !is_current {
        for (index, trace) in graph.traces().iter().enumerate() {
            moved.entry(without_line_numbers(trace)).and_modify(|known| *known = None).or_insert(Some(index));
        }
    }
    let find = |trace: &str| {
        if is_current { exact.get(trace).copied() } else { moved.get(&without_line_numbers(trace)).copied().flatten() }
    };
    let mut found: Vec<_> = traces.iter().map(|(line, trace)| (*line, trace.and_then(find))).collect();
    found.sort_by_key(|(line, _)| *line);
    found
}

/// Operations that a launch may stand for, in the order of the graph.
type Candidates = Vec<usize>;

/// For each launch, others whose operations its operation is not before, or not behind.
struct Bounds {
    not_before: Vec<Vec<usize>>,
    not_behind: Vec<Vec<usize>>,
}

struct Search<'a> {
    graph: &'a Graph,
    forward: Option<&'a Wrapper>,
    wrapper: &'a Wrapper,
    traces: Vec<(u32, Option<usize>)>,
    /// What names that the graph no longer has stand for.
    renamed: FxHashMap<&'a str, usize>,
    /// For each launch, the results whose values it computes.
    results: Vec<Vec<usize>>,
    /// For each value, the launches that use it.
    readers: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn new(
        graph: &'a Graph,
        forward: Option<&'a Wrapper>,
        wrapper: &'a Wrapper,
        traces: Vec<(u32, Option<usize>)>,
    ) -> Self {
        // In backward, a name that is not the graph's is as a rule one of AOTAutograd's.
        let is_backward = wrapper.kind() == Kind::Backward;
        let renamed = if is_backward { FxHashMap::default() } else { renamed(graph, wrapper) };
        let mut results = vec![Vec::new(); wrapper.launches.len()];
        for (position, value) in wrapper.results.iter().enumerate() {
            if let Some(launch) = value.and_then(|value| wrapper.values[value].first_launch) {
                results[launch].push(position);
            }
        }
        let mut readers = vec![Vec::new(); wrapper.values.len()];
        for (index, launch) in wrapper.launches.iter().enumerate() {
            for value in &launch.uses {
                readers[*value].push(index);
            }
        }
        Self { graph, forward, wrapper, traces, renamed, results, readers }
    }

    fn candidates(&self) -> Vec<Candidates> {
        let launches = 0..self.wrapper.launches.len();
        if self.wrapper.kind() != Kind::Backward {
            let mut found: Vec<Candidates> = Vec::new();
            for launch in launches {
                let of_launch = self.last_named(launch).unwrap_or_else(|| self.of_early_backward(launch, &found));
                found.push(of_launch);
            }
            self.narrow_by_order(&mut found);
            return found;
        }
        let mut found: Vec<_> = launches.map(|launch| self.of_backward(launch)).collect();
        self.narrow_by_order(&mut found);
        found
    }

    /// The operations with the trace that Inductor remembers for a launch.
    fn traced(&self, launch: usize) -> Option<Candidates> {
        let line = self.wrapper.launches[launch].line;
        let next = self.traces.partition_point(|(start, _)| *start <= line);
        let (_, trace) = self.traces.get(next.checked_sub(1)?)?;
        Some(self.graph.of_trace((*trace)?).to_vec())
    }

    /// The last node in the comment that the graph has. Without an answer if a later one was certainly the graph's: an operation
    /// whose name has changed is not the one before it.
    fn last_named(&self, launch: usize) -> Option<Candidates> {
        let made = &self.wrapper.launches[launch];
        let sources = &made.sources;
        if sources.last().is_some_and(|last| made.known.contains(last) && self.named(launch, last).is_none()) {
            return None;
        }
        sources.iter().rev().map(|name| self.called(launch, name)).find(|nodes| !nodes.is_empty())
    }

    /// The nodes of the graph that a name in a comment may stand for: those that use an input which the launch reads, or all.
    fn called(&self, launch: usize, name: &str) -> Candidates {
        if let Some(node) = self.named(launch, name) {
            return vec![node];
        }
        let nodes = self.graph.operations_called(name);
        if nodes.is_empty() || self.may_be_of_backward(launch, name) {
            return Vec::new();
        }
        let made = &self.wrapper.launches[launch];
        let arguments = made.uses.iter().filter_map(|value| self.wrapper.values[*value].argument.as_ref());
        let users: FxHashSet<usize> = arguments
            .filter_map(|argument| self.input(argument))
            .flat_map(|input| few(self.graph.users_of_input(input)))
            .copied()
            .collect();
        let using: Candidates = nodes.iter().copied().filter(|node| users.contains(node)).collect();
        if using.is_empty() { nodes.to_vec() } else { using }
    }

    /// The node of the graph that a name in a comment stands for. Names of AOTAutograd's own nodes can be the same by chance.
    fn named(&self, launch: usize, name: &str) -> Option<usize> {
        let Some(node) = self.graph.operation(name) else {
            let node = self.renamed.get(name).copied(); // Only of names that the graph does not have.
            return node.filter(|_| self.is_of_torchdynamo(launch, name));
        };
        (!self.may_be_of_backward(launch, name)).then_some(node)
    }

    /// Whether a name in a comment may be one that AOTAutograd gave to a node of backward.
    fn may_be_of_backward(&self, launch: usize, name: &str) -> bool {
        let is_certain = self.wrapper.launches[launch].known.contains(name);
        self.wrapper.kind() == Kind::Backward && !is_certain && is_name_of_aten(name)
    }

    /// Whether a name that the graph does not have was one of TorchDynamo's, as far as can be told.
    fn is_of_torchdynamo(&self, launch: usize, name: &str) -> bool {
        self.wrapper.launches[launch].known.contains(name) || !is_name_of_aten(name)
    }

    fn of_backward(&self, launch: usize) -> Candidates {
        self.narrowed(launch, &self.evidence(launch)).or_else(|| self.last_named(launch)).unwrap_or_else(|| {
            let mut known: Candidates = self.evidence(launch).into_iter().collect();
            known.sort_unstable();
            known
        })
    }

    /// A part of backward that was moved into forward works on what forward has computed.
    fn of_early_backward(&self, launch: usize, found: &[Candidates]) -> Candidates {
        let writers =
            self.wrapper.launches[launch].uses.iter().filter_map(|value| self.wrapper.values[*value].first_launch);
        let evidence =
            writers.filter(|writer| *writer != launch).filter_map(|writer| found.get(writer)).flatten().copied();
        self.narrowed(launch, &evidence.collect()).unwrap_or_default()
    }

    /// The operations with the launch's trace, if there are any: those that are in the evidence, or all.
    fn narrowed(&self, launch: usize, evidence: &FxHashSet<usize>) -> Option<Candidates> {
        let traced = self.traced(launch).filter(|traced| !traced.is_empty())?;
        let narrowed: Candidates = traced.iter().copied().filter(|node| evidence.contains(node)).collect();
        Some(if narrowed.is_empty() { traced } else { narrowed })
    }

    /// The operations of forward that have to do with a launch of backward.
    fn evidence(&self, launch: usize) -> FxHashSet<usize> {
        let made = &self.wrapper.launches[launch];
        let mut found: FxHashSet<usize> = made.sources.iter().filter_map(|name| self.named(launch, name)).collect();
        for argument in made.uses.iter().filter_map(|value| self.wrapper.values[*value].argument.as_ref()) {
            if let Some(input) = self.input(argument) {
                found.extend(few(self.graph.users_of_input(input)));
            } else if let Some(source) = self.forward.and_then(|forward| forward.source_of_node.get(argument)) {
                found.extend(self.graph.operation(source));
            }
        }
        for result in &self.results[launch] {
            found.extend(few(self.users_of_gradient(*result)));
        }
        found
    }

    /// The number of the graph's input that is an argument of the wrapper.
    fn input(&self, argument: &str) -> Option<usize> {
        number(argument, "primals_")?.checked_sub(1)
    }

    /// The operations that use the input whose gradient is the result of this number.
    fn users_of_gradient(&self, result: usize) -> &[usize] {
        let is_gradient = self.wrapper.kind() == Kind::Backward && self.wrapper.results.len() == self.graph.inputs();
        if is_gradient { self.graph.users_of_input(result) } else { &[] }
    }

    /// Leaves out candidates that lie on the wrong side of what a launch is computed from, or of what is computed from it.
    fn narrow_by_order(&self, found: &mut [Candidates]) {
        let Bounds { not_before, not_behind } = self.bounds();
        // Each pass narrows, or is the last but one. Their direction alternates, as bounds come from both sides.
        let mut order: Vec<usize> = (0..found.len()).collect();
        let mut unchanged = 0;
        while unchanged < 2 {
            let mut changed = false;
            for &launch in &order {
                if !self.is_ambiguous(&found[launch]) {
                    continue;
                }
                let least = not_before[launch].iter().filter_map(|other| found[*other].first()).max().copied();
                let most = not_behind[launch].iter().filter_map(|other| found[*other].last()).min().copied();
                let narrowed: Candidates = found[launch]
                    .iter()
                    .copied()
                    .filter(|node| least.is_none_or(|least| *node >= least) && most.is_none_or(|most| *node <= most))
                    .collect();
                if !narrowed.is_empty() && narrowed.len() < found[launch].len() {
                    found[launch] = narrowed;
                    changed = true;
                }
            }
            unchanged = if changed { 0 } else { unchanged + 1 };
            order.reverse();
        }
    }

    /// Between which others each launch is in the order of the graph. What runs forward, also again in backward, is before what
    /// reads its values; what runs backward is behind it.
    fn bounds(&self) -> Bounds {
        let launches = &self.wrapper.launches;
        let is_backward = self.wrapper.kind() == Kind::Backward;
        let runs_forward: Vec<bool> =
            (0..launches.len()).map(|launch| !is_backward || self.has_forward_only(launch)).collect();
        // Before PyTorch 2.11, comments leave out the nodes of backward: then nothing says what runs forward again.
        let is_known = !is_backward
            || launches
                .iter()
                .flat_map(|launch| &launch.sources)
                .any(|name| self.graph.operations_called(name).is_empty());
        // Of a kernel with several results, nothing says that the last of its operations is before what reads the first.
        let mut results = vec![0; launches.len()];
        for launch in
            self.wrapper.values.iter().filter(|value| value.argument.is_none()).filter_map(|value| value.first_launch)
        {
            results[launch] += 1;
        }
        let mut bounds =
            Bounds { not_before: vec![Vec::new(); launches.len()], not_behind: vec![Vec::new(); launches.len()] };
        for (reader, launch) in launches.iter().enumerate() {
            for value in &launch.uses {
                let Value { argument: None, first_launch: Some(writer), .. } = &self.wrapper.values[*value] else {
                    continue;
                };
                let forward = (runs_forward[*writer], runs_forward[reader]);
                let says_nothing = match forward {
                    (true, _) => !is_known || results[*writer] > 1,
                    (false, true) => true,
                    (false, false) => false,
                };
                if *writer == reader || says_nothing {
                    continue;
                }
                let (first, second) = if forward.0 { (*writer, reader) } else { (reader, *writer) };
                bounds.not_behind[first].push(second);
                bounds.not_before[second].push(first);
            }
        }
        bounds
    }

    /// Whether all nodes that a launch was made from are of forward.
    fn has_forward_only(&self, launch: usize) -> bool {
        let sources = &self.wrapper.launches[launch].sources;
        !sources.is_empty() && sources.iter().all(|name| !self.called(launch, name).is_empty())
    }

    /// Whether candidates differ in what is shown of them.
    fn is_ambiguous(&self, candidates: &[usize]) -> bool {
        let Some((first, rest)) = candidates.split_first() else { return false };
        rest.iter().any(|node| {
            self.graph.modules_of(*node) != self.graph.modules_of(*first)
                || self.graph.trace_of(*node) != self.graph.trace_of(*first)
        })
    }

    /// The origin of a value. `found`: what each launch may stand for.
    fn of_value(&self, value: usize, found: &[Candidates]) -> Origin {
        let computed = &self.wrapper.values[value];
        let candidates = computed.first_launch.map_or(&[][..], |launch| &found[launch]);
        if self.wrapper.kind() == Kind::Backward {
            if self.is_ambiguous(candidates)
                && let Some(node) = self.of_readers(value, found).filter(|node| candidates.contains(node))
            {
                return self.origin(&[node]);
            }
        } else if let Some(launch) = computed.first_launch
            && let made = &self.wrapper.launches[launch]
            && let Some(source) = made.source_of(value).map(|source| &made.sources[source])
        {
            if let Some(node) = self.named(launch, source) {
                return self.origin(&[node]);
            }
            if made.sources.last() != Some(source) && self.graph.operations_called(source).len() > 1 {
                return self.origin(&self.called(launch, source));
            }
            // An operation whose name has changed: none of the others that the kernel was made from.
            if made.known.contains(source) && made.sources.last() != Some(source) {
                return Origin::default();
            }
        }
        self.origin(candidates)
    }

    /// The operation of the launches that read a value, if it is the same for all.
    fn of_readers(&self, value: usize, found: &[Candidates]) -> Option<usize> {
        let computed = self.wrapper.values[value].first_launch;
        let others = self.readers[value].iter().filter(|launch| Some(**launch) != computed);
        let mut readers = others.map(|launch| &found[*launch]);
        let first = *readers.next().filter(|candidates| !self.is_ambiguous(candidates))?.first()?;
        readers.all(|candidates| !self.is_ambiguous(candidates) && candidates.first() == Some(&first)).then_some(first)
    }

    /// What candidates have in common.
    fn origin(&self, candidates: &[usize]) -> Origin {
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

/// The most operations of an input that say something of a launch that reads it: a mask that all layers use does not.
const MAX_USERS: usize = 256;

fn few(users: &[usize]) -> &[usize] {
    if users.len() > MAX_USERS { &[] } else { users }
}

/// Whether a node of AOTAutograd's can have this name: it is called after an operation of ATen, with a number.
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
