//! Maps lines of a wrapper to operations through the traces that Inductor records.

use rustc_hash::FxHashMap;

use crate::graph::{Graph, without_line_numbers};

/// Traces of the graph, each valid from its line on.
pub(crate) struct LineTraces {
    /// Index into the graph's traces, sorted by first line.
    from: Vec<(u32, Option<usize>)>,
}

impl LineTraces {
    /// Matches Inductor's traces to the graph's.
    ///
    /// Lines of the program may have moved since the wrapper was made and cached. A trace then matches the graph's only
    /// trace that differs in nothing but line numbers.
    pub(crate) fn new(graph: &Graph, traces: &[(u32, Option<&str>)]) -> Self {
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
            if is_current {
                exact.get(trace).copied()
            } else {
                moved.get(&without_line_numbers(trace)).copied().flatten()
            }
        };
        let mut from: Vec<_> = traces.iter().map(|(line, trace)| (*line, trace.and_then(find))).collect();
        from.sort_by_key(|(line, _)| *line);
        Self { from }
    }

    /// Returns the operations with the trace of a line.
    pub(crate) fn operations<'a>(&self, graph: &'a Graph, line: u32) -> Option<&'a [usize]> {
        let next = self.from.partition_point(|(start, _)| *start <= line);
        let (_, trace) = self.from.get(next.checked_sub(1)?)?;
        Some(graph.of_trace((*trace)?))
    }
}
