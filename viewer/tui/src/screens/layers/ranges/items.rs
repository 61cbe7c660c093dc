//! Rows of the ranges, as a tree of nested ranges.

use super::RangeTable;
use super::item::RangeItem;
use crate::context::Context;
use memlab_base::ranges::{self, RangeNode};

impl RangeTable {
    /// Rows of the tree. With a filter, the ranges that pass it, flat and by full name.
    pub(super) fn items(&self, context: &Context) -> Vec<RangeItem> {
        let Some(device) = context.device() else { return Vec::new() };
        let nodes = ranges::nodes(&device.ranges);
        if !context.filter.is_empty() {
            let items = nodes.into_iter().map(|node| RangeItem::new(node, 0, context.moment));
            let mut items: Vec<RangeItem> = items.filter(|item| context.filter.passes(item)).collect();
            items.sort_by(|a, b| self.table.compare(a, b, context.moment));
            return items;
        }
        let mut items = Vec::new();
        self.push(&nodes, 0, context, &mut items);
        items
    }

    /// Appends the ranges at `depth`, each followed by those inside it. `nodes`: each range before those inside it.
    fn push(&self, nodes: &[RangeNode], depth: usize, context: &Context, items: &mut Vec<RangeItem>) {
        let mut level: Vec<(RangeItem, &[RangeNode])> = Vec::new();
        let mut rest = nodes;
        while let Some((node, after)) = rest.split_first() {
            let inside = after.iter().take_while(|other| other.path().len() > depth + 1).count();
            let (inside, after) = after.split_at(inside);
            level.push((RangeItem::new(node.clone(), depth as u16, context.moment), inside));
            rest = after;
        }
        level.sort_by(|(a, _), (b, _)| self.table.compare(a, b, context.moment));
        for (mut item, inside) in level {
            let is_open = !self.closed.contains(item.path());
            item.is_open = (!inside.is_empty()).then_some(is_open);
            items.push(item);
            if is_open {
                self.push(inside, depth + 1, context, items);
            }
        }
    }
}
