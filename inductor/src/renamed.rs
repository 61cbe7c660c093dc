//! Resolves names in a wrapper's comments that the graph no longer has.
//!
//! Nodes are named after variables. After a variable is renamed, the cache of FX graphs still has the wrapper with the
//! old name. Its operation lies between those of known names: within a comment, which lists names in graph order, and
//! along the data, from the launches that compute its inputs to those that read its result. The name belongs to the one
//! operation in that range that no comment names. If several remain, the name stays unresolved.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::graph::Graph;
use crate::wrapper::Wrapper;

/// Returns the operations of unknown names.
pub(crate) fn renamed<'a>(graph: &Graph, wrapper: &'a Wrapper) -> FxHashMap<&'a str, usize> {
    let launches = &wrapper.launches;
    let names = || launches.iter().flat_map(|launch| &launch.sources).map(String::as_str);
    let mut bounds: FxHashMap<&str, Bounds> =
        names().filter(|name| graph.operations_called(name).is_empty()).map(|name| (name, Bounds::default())).collect();
    if bounds.is_empty() {
        return FxHashMap::default();
    }
    for launch in launches {
        let mut before = None;
        for name in &launch.sources {
            match (graph.operation(name), bounds.get_mut(name.as_str())) {
                (Some(node), _) => before = before.max(Some(node)),
                (None, Some(bounds)) => bounds.after(before),
                (None, None) => {}
            }
        }
        let mut after: Option<usize> = None;
        for name in launch.sources.iter().rev() {
            match (graph.operation(name), bounds.get_mut(name.as_str())) {
                (Some(node), _) => after = Some(after.map_or(node, |after| after.min(node))),
                (None, Some(bounds)) => bounds.before(after),
                (None, None) => {}
            }
        }
    }
    for (reader, launch) in launches.iter().enumerate() {
        for value in &launch.uses {
            let Some(writer) = wrapper.values[*value].first_launch.filter(|writer| *writer != reader) else { continue };
            // Values that a kernel reads and writes may belong to any node in its comment.
            let (Some(written), Some(read)) = (launches.get(writer), launch.sources.last()) else { continue };
            if let (Some(first), Some(bounds)) = (written.sources.first(), bounds.get_mut(read.as_str())) {
                bounds.after(graph.operation(first));
            }
            if let Some(bounds) = written.sources.last().and_then(|name| bounds.get_mut(name.as_str())) {
                bounds.before(graph.operation(read));
            }
        }
    }
    let named: FxHashSet<usize> = names().flat_map(|name| graph.operations_called(name)).copied().collect();
    let unnamed: Vec<usize> = graph.operations().filter(|node| !named.contains(node)).collect();
    let mut found: FxHashMap<&str, usize> = FxHashMap::default();
    let mut claims: FxHashMap<usize, usize> = FxHashMap::default();
    for (name, bounds) in bounds {
        if let Some(node) = bounds.only(&unnamed) {
            *claims.entry(node).or_default() += 1;
            found.insert(name, node);
        }
    }
    found.retain(|_, node| claims.get(node) == Some(&1));
    found
}

/// Known operations around a name.
#[derive(Default)]
struct Bounds {
    lower: Option<usize>,
    upper: Option<usize>,
}

impl Bounds {
    fn after(&mut self, node: Option<usize>) {
        self.lower = self.lower.max(node);
    }

    fn before(&mut self, node: Option<usize>) {
        self.upper = self.upper.into_iter().chain(node).min();
    }

    /// Returns the only one of these operations within the bounds.
    fn only(&self, sorted: &[usize]) -> Option<usize> {
        let (lower, upper) = (self.lower?, self.upper?);
        let next = sorted.partition_point(|node| *node <= lower);
        let mut between = sorted[next..].iter().take_while(|node| **node < upper);
        between.next().copied().filter(|_| between.next().is_none())
    }
}
