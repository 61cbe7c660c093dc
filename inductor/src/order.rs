//! Narrows candidates by the order of the graph.
//!
//! Backward runs in the reverse order of forward. In that order, a value lies between those it is computed from and
//! those computed from it.

use crate::graph::Graph;
use crate::names::CommentNames;
use crate::wrapper::{Kind, Value, Wrapper};

/// For each launch, the launches whose operations its operation does not precede, or does not follow.
pub(crate) struct Order {
    not_before: Vec<Vec<usize>>,
    not_behind: Vec<Vec<usize>>,
}

impl Order {
    /// Determines the neighbours of each launch in the order of the graph.
    ///
    /// Code that runs forward, also recomputation in backward, precedes the readers of its values. Code that runs
    /// backward follows them.
    pub(crate) fn new(graph: &Graph, names: &CommentNames, wrapper: &Wrapper) -> Self {
        let launches = &wrapper.launches;
        let is_backward = wrapper.kind() == Kind::Backward;
        let runs_forward: Vec<bool> =
            (0..launches.len()).map(|launch| !is_backward || names.are_of_forward(launch)).collect();
        // Before PyTorch 2.11, comments omit the nodes of backward, so recomputation is not recognizable.
        let is_known = !is_backward
            || launches.iter().flat_map(|launch| &launch.sources).any(|name| graph.operations_called(name).is_empty());
        // For a kernel with several results, the last of its operations need not precede the readers of the first.
        let mut results = vec![0; launches.len()];
        for launch in
            wrapper.values.iter().filter(|value| value.argument.is_none()).filter_map(|value| value.first_launch)
        {
            results[launch] += 1;
        }
        let mut order =
            Self { not_before: vec![Vec::new(); launches.len()], not_behind: vec![Vec::new(); launches.len()] };
        for (reader, launch) in launches.iter().enumerate() {
            for value in &launch.uses {
                let Value { argument: None, first_launch: Some(writer), .. } = &wrapper.values[*value] else {
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
                order.not_behind[first].push(second);
                order.not_before[second].push(first);
            }
        }
        order
    }

    /// Removes candidates on the wrong side of the launches that a launch reads from, or of its readers.
    pub(crate) fn narrow(&self, graph: &Graph, found: &mut [Vec<usize>]) {
        let Self { not_before, not_behind } = self;
        until_settled(found.len(), |launch| {
            if !graph.is_ambiguous(&found[launch]) {
                return false;
            }
            let least = not_before[launch].iter().filter_map(|other| found[*other].first()).max().copied();
            let most = not_behind[launch].iter().filter_map(|other| found[*other].last()).min().copied();
            let narrowed: Vec<usize> = found[launch]
                .iter()
                .copied()
                .filter(|node| least.is_none_or(|least| *node >= least) && most.is_none_or(|most| *node <= most))
                .collect();
            let narrows = !narrowed.is_empty() && narrowed.len() < found[launch].len();
            if narrows {
                found[launch] = narrowed;
            }
            narrows
        });
    }

    /// Returns, for launches without other evidence, the operations between those they are computed from and those
    /// computed from them.
    ///
    /// Both must be known.
    pub(crate) fn between(&self, graph: &Graph, found: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let least = bounds(&self.not_before, |launch| found[launch].first().copied(), usize::max);
        let most = bounds(&self.not_behind, |launch| found[launch].last().copied(), usize::min);
        let between = |launch: usize| {
            let (least, most) = (least[launch]?, most[launch]?);
            Some(graph.operations().filter(|node| (least..=most).contains(node)).collect())
        };
        let is_unknown = |launch: &usize| found[*launch].is_empty();
        (0..found.len()).map(|launch| Some(launch).filter(is_unknown).and_then(between).unwrap_or_default()).collect()
    }
}

/// Returns the tightest bound that the known launches in `others` set on each launch, also through unknown ones.
fn bounds(
    others: &[Vec<usize>],
    known: impl Fn(usize) -> Option<usize>,
    tighter: fn(usize, usize) -> usize,
) -> Vec<Option<usize>> {
    let mut bounds = vec![None; others.len()];
    until_settled(others.len(), |launch| {
        let of_others = others[launch].iter().filter_map(|&other| known(other).or(bounds[other]));
        let bound = of_others.reduce(tighter);
        let is_new = bound != bounds[launch];
        bounds[launch] = bound;
        is_new
    });
    bounds
}

/// Visits the launches in alternating directions, because bounds come from both sides, until two passes change nothing.
///
/// `visit` returns true if it changed something. Each change must narrow a bound.
fn until_settled(launches: usize, mut visit: impl FnMut(usize) -> bool) {
    let mut order: Vec<usize> = (0..launches).collect();
    let mut unchanged = 0;
    while unchanged < 2 {
        let mut changed = false;
        for &launch in &order {
            changed |= visit(launch);
        }
        unchanged = if changed { 0 } else { unchanged + 1 };
        order.reverse();
    }
}
