//! The call tree of a device: callers, their calls, and the bytes allocated below each call.
//!
//! Stacks share their outer frames. One pass therefore builds the tree: it looks up the call of each stack below that of its
//! parent, and caches it. The number of definitions bounds the work, even if a hostile trace makes them deep or cyclic.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::allocation_totals::AllocationTotals;
use super::code_origin::CodeOrigin;
use super::line::Line;
use super::scope::Scope;
use super::symbols::{Frame, MAX_STACK_DEPTH, Symbols};
use super::views::StackView;

/// One line, called along one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The line; `None`: no Python frame at all.
    pub line: Option<Arc<Line>>,
    /// Origin of the line's code; `None`: no Python frame at all.
    pub origin: Option<CodeOrigin>,
    /// Caller, as a smaller index into [`CallTree::calls`]; `None`: outermost.
    pub parent: Option<u32>,
    /// Indexes of the calls made from here, by bytes at the peak.
    pub children: Vec<u32>,
    /// Allocations of this line itself.
    pub own: AllocationTotals,
    /// Allocations of this line and all its calls: `own` and the `inclusive` of its children.
    pub inclusive: AllocationTotals,
}

impl Call {
    /// Returns true for code of the program.
    pub fn is_users(&self) -> bool {
        self.is_in(Scope::Users)
    }

    fn is_in(&self, scope: Scope) -> bool {
        self.origin.is_some_and(|origin| scope.shows(origin))
    }
}

/// Allocations of one line and everything it called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineCalls {
    /// The line.
    pub line: Arc<Line>,
    /// Sums over stacks. Each stack counts once, however often it contains the line.
    pub inclusive: AllocationTotals,
}

/// All Python stacks of a device, outermost calls first. See [`Model::calls`](super::Model::calls).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTree {
    /// Calls; a caller precedes its calls.
    pub calls: Vec<Call>,
    /// Outermost calls, by bytes at the peak.
    pub roots: Vec<u32>,
}

impl CallTree {
    pub(super) fn new(stacks: &[StackView], symbols: &Symbols) -> Self {
        let mut builder = TreeBuilder {
            symbols,
            tree: Self::default(),
            depths: Vec::new(),
            by_stack: HashMap::new(),
            by_line: HashMap::new(),
        };
        for stack in stacks {
            let call = match builder.call_of(stack.stack) {
                Some(call) => call,
                None => builder.call(None, None),
            };
            builder.tree.calls[call as usize].own.add(&stack.into());
        }
        let mut tree = builder.tree;
        tree.sum_up();
        tree
    }

    /// Returns the tree with the lines of `scope` only.
    ///
    /// Allocations of library code count at the line that called it; without such a line, at the line that [`CodeOrigin`]
    /// ranks best.
    pub fn in_scope(&self, scope: Scope) -> Self {
        let mut tree = Self::default();
        let rank = |call: &Call| call.origin.map(|origin| scope.rank(origin));
        // The new index of each call (`None`: no line of the scope is around it), and the call that represents it.
        let mut became: Vec<(Option<u32>, u32)> = Vec::with_capacity(self.calls.len());
        let mut known: HashMap<(Option<u32>, Option<Arc<Line>>), u32> = HashMap::new();
        let mut place = |tree: &mut Self, around: Option<u32>, call: &Call| {
            let key = (around, call.line.clone());
            *known.entry(key).or_insert_with(|| tree.push(around, call.line.as_ref(), call.origin))
        };
        for (index, call) in (0..).zip(&self.calls) {
            let (around, outer) = call.parent.map_or((None, index), |parent| became[parent as usize]);
            let stands = if rank(&self.calls[outer as usize]) < rank(call) { outer } else { index };
            let new = if call.is_in(scope) { Some(place(&mut tree, around, call)) } else { around };
            became.push((new, stands));
            if call.own != AllocationTotals::default() {
                let place = new.unwrap_or_else(|| place(&mut tree, None, &self.calls[stands as usize]));
                tree.calls[place as usize].own.add(&call.own);
            }
        }
        tree.sum_up();
        tree
    }

    /// Returns the sum of all calls.
    pub fn total(&self) -> AllocationTotals {
        let mut total = AllocationTotals::default();
        self.roots.iter().for_each(|root| total.add(&self.calls[*root as usize].inclusive));
        total
    }

    /// Returns the allocations of each line of `scope` and everything it called, by bytes at the peak.
    ///
    /// A line that occurs several times in a stack, as in recursion, counts once.
    pub fn lines_inclusive(&self, scope: Scope) -> Vec<LineCalls> {
        let mut sums: HashMap<&Arc<Line>, AllocationTotals> = HashMap::new();
        // Depth first, without recursion: each call is visited a second time, to leave it, after all calls below it.
        let mut to_do: Vec<(u32, bool)> = self.roots.iter().map(|root| (*root, true)).collect();
        let mut around: HashSet<&Arc<Line>> = HashSet::new();
        while let Some((index, enters)) = to_do.pop() {
            let call = &self.calls[index as usize];
            let line = call.line.as_ref().filter(|_| call.is_in(scope));
            if !enters {
                line.map(|line| around.remove(line));
                continue;
            }
            if let Some(line) = line
                && around.insert(line)
            {
                sums.entry(line).or_default().add(&call.inclusive);
                to_do.push((index, false));
            }
            to_do.extend(call.children.iter().map(|child| (*child, true)));
        }
        let mut lines: Vec<LineCalls> =
            sums.into_iter().map(|(line, inclusive)| LineCalls { line: line.clone(), inclusive }).collect();
        lines.sort_by(|a, b| {
            let most = |line: &LineCalls| Reverse((line.inclusive.live_bytes_at_peak, line.inclusive.allocated_bytes));
            most(a).cmp(&most(b)).then_with(|| a.line.cmp(&b.line))
        });
        lines
    }

    fn push(&mut self, parent: Option<u32>, line: Option<&Arc<Line>>, origin: Option<CodeOrigin>) -> u32 {
        let index = self.calls.len() as u32;
        self.calls.push(Call { line: line.cloned(), origin, parent, ..Call::default() });
        match parent {
            Some(parent) => self.calls[parent as usize].children.push(index),
            None => self.roots.push(index),
        }
        index
    }

    /// Fills in `inclusive` and sorts the children.
    fn sum_up(&mut self) {
        for index in (0..self.calls.len()).rev() {
            let Call { own, parent, .. } = self.calls[index];
            self.calls[index].inclusive.add(&own);
            let inclusive = self.calls[index].inclusive;
            if let Some(parent) = parent {
                self.calls[parent as usize].inclusive.add(&inclusive);
            }
        }
        let calls = &self.calls;
        let most = |index: &u32| {
            let call = &calls[*index as usize];
            (Reverse((call.inclusive.live_bytes_at_peak, call.inclusive.allocated_bytes)), call.line.clone())
        };
        self.roots.sort_by_cached_key(most);
        let mut children: Vec<Vec<u32>> = calls.iter().map(|call| call.children.clone()).collect();
        children
            .iter_mut()
            .filter(|children| children.len() > 1)
            .for_each(|children| children.sort_by_cached_key(most));
        std::iter::zip(&mut self.calls, children).for_each(|(call, children)| call.children = children);
    }
}

/// A call tree under construction.
struct TreeBuilder<'s> {
    symbols: &'s Symbols,
    tree: CallTree,
    /// Depth of each call, from 0.
    depths: Vec<u32>,
    /// Call of each stack seen; `None`: a stack without frames.
    by_stack: HashMap<u32, Option<u32>>,
    by_line: HashMap<(Option<u32>, Option<Arc<Line>>), u32>,
}

impl TreeBuilder<'_> {
    /// Returns the call of a stack's innermost frame.
    ///
    /// Skips undefined frames, and ends a cycle where it was entered.
    fn call_of(&mut self, stack: u32) -> Option<u32> {
        let mut climbed = Vec::new();
        let mut at = stack;
        let mut call = loop {
            if let Some(call) = self.by_stack.get(&at) {
                break *call;
            }
            let Some(node) = self.symbols.stacks.get(&at).filter(|_| at != 0) else { break None };
            // This also ends a cycle.
            self.by_stack.insert(at, None);
            climbed.push(*node);
            at = node.parent;
        };
        for node in climbed.into_iter().rev() {
            if let Some(frame) = self.symbols.frames.get(&node.frame) {
                for frame in self.symbols.stood_for(frame) {
                    call = Some(self.call(call, Some(frame)));
                }
            }
            self.by_stack.insert(node.stack, call);
        }
        call
    }

    /// Returns the call of a line from `parent`, and adds it if it is new.
    fn call(&mut self, parent: Option<u32>, frame: Option<&Frame>) -> u32 {
        let tree = &mut self.tree;
        // Calls below the depth limit restart at the outermost level.
        let parent = parent.filter(|parent| (self.depths[*parent as usize] as usize) < MAX_STACK_DEPTH - 1);
        let key = (parent, frame.map(|frame| frame.line.clone()));
        *self.by_line.entry(key).or_insert_with(|| {
            self.depths.push(parent.map_or(0, |parent| self.depths[parent as usize] + 1));
            tree.push(parent, frame.map(|frame| &frame.line), frame.map(|frame| frame.origin))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Model, decode_line};

    const NAMES: &str = r#"{"software":"torch","version":"2.15.0","root":"/venv/lib/python3.11/site-packages/torch"}
{"frame":1,"file":"/gpt/train.py","line":10,"function":"main"}
{"frame":2,"file":"/gpt/model.py","line":20,"function":"walk"}
{"frame":3,"file":"/venv/lib/python3.11/site-packages/torch/nn/linear.py","line":30,"function":"Linear.forward"}
{"frame":4,"file":"/gpt/model.py","line":40,"function":"leaf"}
{"stack":1,"parent":0,"frame":1}
{"stack":2,"parent":1,"frame":2}
{"stack":3,"parent":2,"frame":3}
{"stack":4,"parent":3,"frame":2}
{"stack":5,"parent":4,"frame":4}"#;

    fn model(more: &[String]) -> Model {
        let mut model = Model::new();
        for line in NAMES.lines().chain(more.iter().map(String::as_str)) {
            model.apply(decode_line(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}")));
        }
        model
    }

    fn blocks(sizes: &[(u32, u64)]) -> Vec<String> {
        let block = |(index, (stack, bytes)): (usize, &(u32, u64))| {
            format!(r#"["a",{index},1,0,{},{bytes},{stack},0,0]"#, (index + 1) << 30)
        };
        sizes.iter().enumerate().map(block).collect()
    }

    fn shown(tree: &CallTree) -> Vec<(Option<u32>, Option<u32>, u64, u64)> {
        let line = |call: &Call| call.line.as_ref().and_then(|line| line.line);
        tree.calls
            .iter()
            .map(|call| (line(call), call.parent, call.own.live_bytes, call.inclusive.live_bytes_at_peak))
            .collect()
    }

    #[test]
    fn callers_include_what_they_call() {
        // GIVEN blocks of main, of its calls, and of no Python line
        let model = model(&blocks(&[(1, 100), (3, 20), (0, 7), (5, 3), (3, 1)]));
        // WHEN the calls are requested
        let tree = model.calls(0);
        // THEN each has its own bytes and those of all calls below it
        let expected = [
            (None, None, 7, 7),
            (Some(10), None, 100, 124),
            (Some(20), Some(1), 0, 24),
            (Some(30), Some(2), 21, 24),
            (Some(20), Some(3), 0, 3),
            (Some(40), Some(4), 3, 3),
        ];
        assert_eq!(shown(&tree), expected);
        assert_eq!(tree.roots, [1, 0], "the larger first");
        assert_eq!(tree.total().allocations, 5);
        // AND a line that calls itself counts once
        let lines: Vec<_> =
            tree.lines_inclusive(Scope::Users).iter().map(|line| (line.line.line, line.inclusive.live_bytes)).collect();
        assert_eq!(lines, [(Some(10), 124), (Some(20), 24), (Some(40), 3)]);
    }

    #[test]
    fn library_calls_go_to_the_line_that_made_them() {
        // GIVEN blocks of a library's frame between the user's, and of a library without a calling user line
        let mut more = vec![r#"{"stack":9,"parent":0,"frame":3}"#.to_owned()];
        more.extend(blocks(&[(3, 20), (5, 3), (9, 4)]));
        // WHEN only the user's lines are requested
        let tree = model(&more).calls(0).in_scope(Scope::Users);
        let expected = [
            (Some(10), None, 0, 23),
            (Some(20), Some(0), 20, 23),
            (Some(20), Some(1), 0, 3),
            (Some(40), Some(2), 3, 3),
            (Some(30), None, 4, 4),
        ];
        assert_eq!(shown(&tree), expected);
        assert_eq!(tree.calls[4].origin, Some(CodeOrigin::Torch));
    }

    #[test]
    fn a_peak_that_is_past_is_still_known() {
        let mut more = blocks(&[(1, 64), (2, 32)]);
        more.push(format!(r#"["f",9,1,0,{}]"#, 1_u64 << 30));
        let tree = model(&more).calls(0);
        let main = &tree.calls[0];
        assert_eq!((main.inclusive.live_bytes, main.inclusive.live_bytes_at_peak), (32, 96));
    }

    #[test]
    fn loops_and_gaps_end_somewhere() {
        // GIVEN stacks that are their own callers, that call in a circle, and that use undefined ids
        let mut more: Vec<String> = [
            r#"{"stack":20,"parent":20,"frame":1}"#,
            r#"{"stack":21,"parent":22,"frame":1}"#,
            r#"{"stack":22,"parent":21,"frame":2}"#,
            r#"{"stack":23,"parent":99,"frame":77}"#,
        ]
        .map(str::to_owned)
        .to_vec();
        more.extend(blocks(&[(20, 1), (21, 2), (22, 4), (23, 8), (99, 16)]));
        // THEN nothing hangs and nothing is lost
        let tree = model(&more).calls(0);
        assert_eq!(tree.total().live_bytes, 31);
        let unknown = tree.calls.iter().find(|call| call.line.is_none()).unwrap();
        assert_eq!(unknown.own.live_bytes, 24);
    }

    #[test]
    fn a_stack_may_be_as_deep_as_it_likes() {
        // GIVEN a chain of a hundred thousand calls, with a block at every thousandth
        let deep = 100_000_u32;
        let stack = |id: u32| format!(r#"{{"stack":{},"parent":{},"frame":{}}}"#, id + 10, id + 9, 1 + id % 4);
        let mut more: Vec<String> = (0..deep).map(stack).collect();
        more.extend(blocks(&(0..deep).step_by(1000).map(|id| (id + 10, 1)).collect::<Vec<_>>()));
        let tree = model(&more).calls(0);
        // THEN it is walked without recursion
        assert_eq!(tree.total().live_bytes, 100);
        assert_eq!(tree.lines_inclusive(Scope::Users)[0].inclusive.live_bytes, 100);
        assert_eq!(tree.in_scope(Scope::Users).total(), tree.total());
    }

    proptest! {
        #[test]
        fn sums_hold_whatever_the_stacks_are(
            stacks in prop::collection::vec((0_u32..24, 0_u32..24, 0_u32..6), 0..40),
            sizes in prop::collection::vec((0_u32..24, 0_u64..1 << 44), 0..40),
            freed in prop::collection::vec(0_usize..40, 0..20),
        ) {
            let define = |(stack, parent, frame): &(u32, u32, u32)| {
                format!(r#"{{"stack":{stack},"parent":{parent},"frame":{frame}}}"#)
            };
            let mut more: Vec<String> = stacks.iter().map(define).collect();
            more.extend(blocks(&sizes));
            more.extend(freed.iter().map(|index| format!(r#"["f",90,1,0,{}]"#, (index + 1) << 30)));
            let model = model(&more);
            let mut total = AllocationTotals::default();
            model.stacks(0).iter().for_each(|stack| total.add(&stack.into()));
            let full = model.calls(0);
            for tree in [&full.in_scope(Scope::Users), &full] {
                let mut own = AllocationTotals::default();
                tree.calls.iter().for_each(|call| own.add(&call.own));
                prop_assert_eq!(own, total);
                prop_assert_eq!(tree.total(), total);
                for (index, call) in tree.calls.iter().enumerate() {
                    let mut inclusive = call.own;
                    call.children.iter().for_each(|child| inclusive.add(&tree.calls[*child as usize].inclusive));
                    prop_assert_eq!(inclusive, call.inclusive);
                    prop_assert!(call.parent.is_none_or(|parent| (parent as usize) < index));
                    prop_assert!(call.children.iter().all(|child| tree.calls[*child as usize].parent == Some(index as u32)));
                }
                for line in tree.lines_inclusive(Scope::Users) {
                    prop_assert!(line.inclusive.live_bytes_at_peak <= total.live_bytes_at_peak);
                }
            }
            for scope in [Scope::Users, Scope::Libraries] {
                prop_assert_eq!(full.lines_inclusive(scope), full.in_scope(scope).lines_inclusive(scope));
                prop_assert_eq!(full.in_scope(scope).total(), total);
            }
        }
    }

    #[test]
    fn implausibly_deep_stacks_are_cut() {
        // GIVEN a chain of ten thousand calls, with a block at every tenth
        const DEPTH: u32 = 10_000;
        let mut lines: Vec<String> =
            (6..=DEPTH).map(|stack| format!(r#"{{"stack":{stack},"parent":{},"frame":2}}"#, stack - 1)).collect();
        lines.extend(blocks(&(1..=DEPTH / 10).map(|tenth| (tenth * 10, 1)).collect::<Vec<_>>()));
        let model = model(&lines);
        // WHEN its stacks are read THEN each has its innermost calls, and the number of cut stacks is known
        assert_eq!(model.frames(DEPTH).len(), MAX_STACK_DEPTH);
        assert_eq!(model.frames(500).len(), 500);
        assert_eq!(model.deep_stacks(), DEPTH as usize - MAX_STACK_DEPTH);
        // AND the tree is no deeper, and sums to the total
        let tree = model.calls(0);
        let mut depths: Vec<usize> = Vec::new();
        for call in &tree.calls {
            depths.push(call.parent.map_or(1, |parent| depths[parent as usize] + 1));
        }
        assert!(depths.iter().all(|depth| *depth <= MAX_STACK_DEPTH));
        assert_eq!(tree.total().live_bytes, u64::from(DEPTH / 10));
    }
}
