//! The search for a free block (`get_free_block`).

use super::state::State;
use crate::blocks::BlockId;
use crate::free_blocks::{Cursor, FreeBlocks};

impl State {
    /// Takes the free block that fits best, if one may be used.
    pub fn find(&mut self, lane: u32, size: u64) -> Option<BlockId> {
        if self.collects_garbage() {
            *self.searches(lane) += 1;
        }
        let free = &self.lane(lane).free;
        let mut cursor = free.best_fit(size)?;
        if self.blocks[free.at(cursor)].expandable.is_some() {
            cursor = self.prefer_holes(free, cursor);
        }
        let id = free.at(cursor);
        let found = self.blocks[id].size;
        let limit = self.settings.max_split_size;
        let is_allowed = if size < limit {
            found < limit
        } else {
            found < size.saturating_add(self.settings.max_non_split_rounding)
        };
        if !is_allowed {
            return None;
        }
        self.lane_mut(lane).free.remove_at(cursor);
        Some(id)
    }

    /// The last block of an expandable segment counts as being as large as it can grow. A larger block that cannot grow is
    /// therefore taken before it.
    fn prefer_holes(&self, free: &FreeBlocks, first: Cursor) -> Cursor {
        let can_grow_to = |cursor: Cursor| {
            let block = &self.blocks[free.at(cursor)];
            let next = block.next.some().map(|next| &self.blocks[next]);
            block.size + next.filter(|next| !next.is_mapped).map_or(0, |next| next.size)
        };
        let mut chosen = first;
        while self.blocks[free.at(chosen)].expandable.is_some()
            && let Some(next) = free.after(chosen)
            && can_grow_to(next) < can_grow_to(chosen)
        {
            chosen = next;
        }
        chosen
    }
}
