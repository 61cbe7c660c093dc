//! Rows of the lines: a table whose rows open to their callers, or the call tree from the outermost call down.

use std::collections::HashMap;
use std::sync::Arc;

use memlab_trace::{AllocationTotals, CallTree, Line, LineView};

use super::item::{LineItem, LineKey};
use super::state::LinesScreen;
use crate::context::Context;
use memlab_base::text::NO_LINE;
use memlab_follow::snapshot::{Calls, LineFigures};

/// Rows below this depth do not open: only malicious traces nest this deep.
const MAX_DEPTH: usize = 256;

impl LinesScreen {
    /// Rows of the table: the lines that pass the filter, sorted, each with its opened callers.
    pub fn items(&self, context: &Context) -> Vec<LineItem> {
        let Some(device) = context.device() else { return Vec::new() };
        if let (true, Some(calls)) = (self.is_tree, &device.calls) {
            return self.tree_items(calls, context);
        }
        let mut whole: Vec<LineItem> = device
            .lines
            .iter()
            .map(|row| self.item(vec![row.own.line.clone()], row.clone(), context))
            .filter(|item| context.filter.passes(item))
            .collect();
        whole.sort_by(|a, b| self.table.compare(a, b, context.moment));
        let Some(calls) = &device.calls else { return whole };
        let mut items = Vec::with_capacity(whole.len());
        for mut item in whole {
            let nodes: Vec<(u32, u32)> = match item.line() {
                Some(line) => calls.of(line).iter().map(|node| (*node, *node)).collect(),
                None => Vec::new(),
            };
            let has_callers = nodes.iter().any(|(_, node)| calls.tree.calls[*node as usize].parent.is_some());
            let is_open = self.toggled.contains(&item.key);
            item.is_open = has_callers.then_some(is_open);
            let (key, growth) = (item.key.clone(), item.figures.growth_per_step);
            items.push(item);
            if is_open {
                let counted = nodes.into_iter().filter(|(node, _)| !context.inclusive || calls.is_outermost(*node));
                self.push_callers(&calls.tree, &counted.collect::<Vec<_>>(), (&key, growth), &mut items, context);
            }
        }
        items
    }

    /// Appends the callers below a row.
    ///
    /// `nodes`: the calls that hold the bytes, with the caller reached from each; `growth`: growth of the row.
    fn push_callers(
        &self,
        calls: &CallTree,
        nodes: &[(u32, u32)],
        (key, growth): (&LineKey, Option<f64>),
        items: &mut Vec<LineItem>,
        context: &Context,
    ) {
        /// Memory allocated through one caller, and the calls through it.
        type CallerTotals = (AllocationTotals, Vec<(u32, u32)>);
        let mut callers: HashMap<&Arc<Line>, CallerTotals> = HashMap::new();
        for (holder, node) in nodes {
            let Some(parent) = calls.calls[*node as usize].parent else { continue };
            let Some(line) = &calls.calls[parent as usize].line else { continue };
            let (held, below) = callers.entry(line).or_default();
            let holder_call = &calls.calls[*holder as usize];
            held.add(if context.inclusive { &holder_call.inclusive } else { &holder_call.own });
            below.push((*holder, parent));
        }
        callers.retain(|_, (held, _)| *held != AllocationTotals::default());
        // With several callers, it is unknown which one makes the line grow.
        let growth = growth.filter(|growth| *growth == 0.0 || callers.len() == 1);
        let mut rows: Vec<_> = callers
            .into_iter()
            .map(|(line, (held, below))| {
                let mut key = key.clone();
                key.push(Some(line.clone()));
                (self.item(key, figures(&held, &held, growth), context), below)
            })
            .collect();
        rows.sort_by(|(a, _), (b, _)| self.table.compare(a, b, context.moment));
        for (mut item, below) in rows {
            let is_open = self.toggled.contains(&item.key);
            let has_callers = item.key.len() < MAX_DEPTH
                && below.iter().any(|(_, node)| calls.calls[*node as usize].parent.is_some());
            item.is_open = has_callers.then_some(is_open);
            let key = item.key.clone();
            items.push(item);
            if is_open {
                self.push_callers(calls, &below, (&key, growth), items, context);
            }
        }
    }

    /// Rows of the call tree. With a filter, the calls that pass it and their callers.
    fn tree_items(&self, calls: &Calls, context: &Context) -> Vec<LineItem> {
        let passes = (!context.filter.is_empty()).then(|| self.passing(calls, context));
        let mut items = Vec::new();
        let mut to_do = self.call_items(&calls.tree.roots, calls, &LineKey::new(), passes.as_deref(), context);
        while let Some((index, mut item)) = to_do.pop() {
            let children = &calls.tree.calls[index as usize].children;
            let is_open = self.toggled.contains(&item.key) != self.starts_open(&item, context);
            let opens = !children.is_empty() && item.key.len() < MAX_DEPTH;
            item.is_open = opens.then_some(is_open);
            if opens && is_open {
                to_do.extend(self.call_items(children, calls, &item.key, passes.as_deref(), context));
            }
            items.push(item);
        }
        items
    }

    /// True for calls that start open: the outermost ones, and the results of a filter.
    pub(super) fn starts_open(&self, item: &LineItem, context: &Context) -> bool {
        self.is_tree && (item.depth < 2 || !context.filter.is_empty())
    }

    /// For each call, true if it or a call below it passes the filter.
    fn passing(&self, calls: &Calls, context: &Context) -> Vec<bool> {
        let calls_in_order = &calls.tree.calls;
        let mut passes = vec![false; calls_in_order.len()];
        for (index, call) in calls_in_order.iter().enumerate().rev() {
            passes[index] |= context.filter.passes(&self.call_item(index as u32, calls, LineKey::new(), context));
            if let (true, Some(parent)) = (passes[index], call.parent) {
                passes[parent as usize] = true;
            }
        }
        passes
    }

    /// Calls made from the same place, sorted, the first one last.
    fn call_items(
        &self,
        made: &[u32],
        calls: &Calls,
        around: &LineKey,
        passes: Option<&[bool]>,
        context: &Context,
    ) -> Vec<(u32, LineItem)> {
        let shown = made.iter().filter(|index| passes.is_none_or(|passes| passes[**index as usize]));
        let mut items: Vec<(u32, LineItem)> =
            shown.map(|index| (*index, self.call_item(*index, calls, around.clone(), context))).collect();
        items.sort_by(|(_, a), (_, b)| self.table.compare(b, a, context.moment));
        items
    }

    fn call_item(&self, index: u32, calls: &Calls, mut key: LineKey, context: &Context) -> LineItem {
        let call = &calls.tree.calls[index as usize];
        key.push(call.line.clone());
        self.item(key, figures(&call.own, &call.inclusive, calls.growth(index)), context)
    }

    fn item(&self, key: LineKey, figures: LineFigures, context: &Context) -> LineItem {
        let place = match key.last().and_then(Option::as_ref) {
            _ if context.filter.is_empty() => String::new(), // Only filters read it.
            Some(line) => format!("{}:{}", line.file, line.line.unwrap_or(0)),
            None => NO_LINE.to_owned(),
        };
        let relations = context.device().and_then(|device| device.relations.as_ref());
        let related = match context.filter.asks_for_relations() {
            true => relations.and_then(|relations| relations.of_line(key.last().and_then(Option::as_ref))),
            false => None,
        };
        let inclusive = context.inclusive || self.is_tree;
        let is_whole = key.len() == 1 && !self.is_tree;
        let times = context.device().and_then(|device| device.times.as_ref()).filter(|_| is_whole);
        let time = times.map(|times| times.of_line(key.last().and_then(Option::as_ref)));
        LineItem {
            depth: (key.len() - 1).min(100) as u16,
            key,
            is_open: None,
            figures,
            time,
            place,
            related,
            inclusive,
            is_whole,
        }
    }
}

fn figures(own: &AllocationTotals, inclusive: &AllocationTotals, growth_per_step: Option<f64>) -> LineFigures {
    LineFigures {
        own: LineView {
            allocations: own.allocations,
            allocated_bytes: own.allocated_bytes,
            live_bytes: own.live_bytes,
            live_blocks: own.live_blocks,
            live_bytes_at_peak: own.live_bytes_at_peak,
            ..LineView::default()
        },
        inclusive: Some(*inclusive),
        growth_per_step,
        ..LineFigures::default()
    }
}
