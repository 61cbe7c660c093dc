//! The call tree for a screen: the position of each line, and the growth of each call.

use std::collections::HashMap;
use std::sync::Arc;

use memlab_trace::{Call, CallTree, GrowthView, Line};

/// The most calls visited to compute growth, for all lines together.
///
/// Only malicious traces need more.
const MAX_VISITED_CALLS: usize = 1 << 22;

/// The call tree of the user's lines, with an index by line.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// The tree.
    pub tree: CallTree,
    by_line: HashMap<Arc<Line>, Vec<u32>>,
    growth: Vec<Option<f64>>,
}

impl Calls {
    /// Indexes a tree, and computes the growth of its calls from that of its lines.
    pub fn new(tree: CallTree, growth: &[GrowthView]) -> Self {
        let mut by_line: HashMap<Arc<Line>, Vec<u32>> = HashMap::new();
        for (index, call) in (0..).zip(&tree.calls) {
            if let Some(line) = &call.line {
                by_line.entry(line.clone()).or_default().push(index);
            }
        }
        let mut calls = Self { tree, by_line, growth: Vec::new() };
        calls.growth = calls.growth_of_calls(growth);
        calls
    }

    /// Returns the same tree with the growth of another part of the run.
    pub fn with_growth(&self, growth: &[GrowthView]) -> Self {
        Self::new(self.tree.clone(), growth)
    }

    /// Returns the calls of a line.
    pub fn of(&self, line: &Arc<Line>) -> &[u32] {
        self.by_line.get(line).map_or(&[], Vec::as_slice)
    }

    /// Returns true if no call around this one has the same line.
    pub fn is_outermost(&self, call: u32) -> bool {
        let line = &self.tree.calls[call as usize].line;
        !self.around(call).any(|parent| self.tree.calls[parent as usize].line == *line)
    }

    /// Growth per step of a call and everything below it.
    ///
    /// `None`: a growing line below it is also reached through other calls, and the growing path is unknown.
    pub fn growth(&self, call: u32) -> Option<f64> {
        self.growth.get(call as usize).copied().flatten()
    }

    /// The calls around a call, innermost first.
    fn around(&self, call: u32) -> impl Iterator<Item = u32> {
        let calls = &self.tree.calls;
        std::iter::successors(calls[call as usize].parent, |parent| calls[*parent as usize].parent)
    }

    /// Growth is known by line.
    ///
    /// It counts for the innermost call that contains all of the line's holders, and for the calls around it.
    fn growth_of_calls(&self, growth: &[GrowthView]) -> Vec<Option<f64>> {
        let calls = &self.tree.calls;
        let mut sums = vec![Some(0.0); calls.len()];
        let mut steps = 0;
        for view in growth.iter().filter(|view| view.bytes_per_step != 0.0) {
            let holders = self.holders(view.line.as_ref());
            // Number of the holders below each call.
            let mut through: HashMap<u32, usize> = HashMap::new();
            for holder in &holders {
                for call in std::iter::once(*holder).chain(self.around(*holder)) {
                    *through.entry(call).or_default() += 1;
                    steps += 1;
                    if steps > MAX_VISITED_CALLS {
                        return vec![None; calls.len()];
                    }
                }
            }
            // Callers precede the calls they made, so the last call with all holders is the innermost.
            let meeting = through.iter().filter(|(_, count)| **count == holders.len()).map(|(call, _)| *call).max();
            for (call, count) in through {
                let sum = &mut sums[call as usize];
                *sum = sum.filter(|_| count == holders.len());
            }
            if let Some(meeting) = meeting {
                for call in std::iter::once(meeting).chain(self.around(meeting)) {
                    let sum = &mut sums[call as usize];
                    *sum = sum.map(|sum| sum + view.bytes_per_step);
                }
            }
        }
        sums
    }

    /// Calls of a line that hold memory, else those that ever held any.
    fn holders(&self, line: Option<&Arc<Line>>) -> Vec<u32> {
        let calls = &self.tree.calls;
        let of_line: Vec<u32> = match line {
            Some(line) => self.of(line).to_vec(),
            None => (0..calls.len() as u32).filter(|call| calls[*call as usize].line.is_none()).collect(),
        };
        let holding = |holds: fn(&Call) -> bool| -> Vec<u32> {
            of_line.iter().copied().filter(|call| holds(&calls[*call as usize])).collect()
        };
        let live = holding(|call| call.own.live_bytes > 0);
        if live.is_empty() { holding(|call| call.own.allocations > 0) } else { live }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlab_trace::AllocationTotals;

    /// Builds a tree: each call's line, its parent, and the bytes that it holds itself.
    fn tree(calls: &[(u32, Option<u32>, u64)]) -> CallTree {
        let call = |(number, parent, bytes): &(u32, Option<u32>, u64)| Call {
            line: Some(line(*number)),
            parent: *parent,
            own: AllocationTotals { live_bytes: *bytes, allocations: 1, ..AllocationTotals::default() },
            ..Call::default()
        };
        CallTree { calls: calls.iter().map(call).collect(), roots: vec![0] }
    }

    fn line(number: u32) -> Arc<Line> {
        Arc::new(Line { file: "/train.py".into(), line: Some(number), function: "main".into() })
    }

    fn grows(number: u32, bytes_per_step: f64) -> GrowthView {
        let line = Some(line(number));
        GrowthView { line, from_step: 0, to_step: 9, from_bytes: 0, to_bytes: 9, bytes_per_step, is_steady: true }
    }

    #[test]
    fn growth_counts_from_the_call_on_that_has_all_of_it() {
        // GIVEN line 1, which calls lines 2 and 3; both call line 9, and only line 3 calls line 8
        let calls =
            [(1, None, 0), (2, Some(0), 0), (9, Some(1), 10), (3, Some(0), 0), (9, Some(3), 20), (8, Some(3), 5)];
        // WHEN both grow
        let calls = Calls::new(tree(&calls), &[grows(9, 30.0), grows(8, 4.0)]);
        // THEN growth is shown for calls where it is certain, and unknown for the others
        let growth: Vec<_> = (0..6).map(|call| calls.growth(call)).collect();
        assert_eq!(growth, [Some(34.0), None, None, None, None, Some(4.0)]);
        // AND if only one of the calls still holds memory, the growth belongs to it
        let calls = [(1, None, 0), (9, Some(0), 10), (3, Some(0), 0), (9, Some(2), 0)];
        let calls = Calls::new(tree(&calls), &[grows(9, 30.0)]);
        let growth: Vec<_> = (0..4).map(|call| calls.growth(call)).collect();
        assert_eq!(growth, [Some(30.0), Some(30.0), Some(0.0), Some(0.0)]);
    }
}
