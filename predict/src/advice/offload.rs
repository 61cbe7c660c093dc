//! Model of `memlab.offload_activations` (`python/memlab/_activations/offloaded_forward.py`): when each block is on the
//! GPU.

use std::collections::VecDeque;

use crate::plan::Event;
use memlab_trace::record::Phase;

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Span};

/// A forward and its backward.
#[derive(Default)]
struct Pass {
    /// Bytes to move before the first block may stay.
    first_bytes: u64,
    moved_bytes: u64,
    stays: Vec<u32>,
    stays_bytes: u64,
    /// Blocks being copied to the host, still on the GPU.
    leaving: VecDeque<u32>,
    /// Blocks on the host, with the event after which each left the GPU.
    gone: Vec<(u32, usize)>,
    /// Blocks that are back on the GPU.
    back: Vec<u32>,
    is_backward: bool,
}

/// Offloaded blocks.
pub(crate) struct Offloaded {
    pub change: Change,
    /// Bytes copied to the host.
    pub leaving: u64,
    /// Bytes copied back. Blocks still leaving when backward begins are on the GPU, and are not copied back.
    pub returning: u64,
}

/// Offloads the blocks of `is_kept` within a budget.
///
/// The earliest blocks of a forward leave, the latest stay. Beside those that stay, one block has room; while fewer stay,
/// copies in flight take the rest of the budget.
pub(crate) fn offloaded(lifetimes: &BlockLifetimes<'_>, is_kept: &[bool], budget: u64, largest: u64) -> Offloaded {
    let keep = budget.saturating_sub(largest);
    let totals = totals(lifetimes, is_kept);
    let mut totals = totals.iter().map(|total| total.saturating_sub(keep));
    let new_pass = |first_bytes: Option<u64>| Pass { first_bytes: first_bytes.unwrap_or(0), ..Pass::default() };
    let mut pass = new_pass(totals.next());
    let mut change = Change::default();
    let mut moved_bytes = 0;
    // Backward reads a block after the previous one is free.
    let mut last_free = 0;
    for (at, event) in lifetimes.recording.events.iter().enumerate() {
        match *event {
            Event::Allocate(id) if is_kept[id as usize] => {
                let size = lifetimes.size(id);
                if pass.moved_bytes >= pass.first_bytes && pass.stays_bytes + size <= keep {
                    pass.stays.push(id);
                    pass.stays_bytes += size;
                } else {
                    pass.leaving.push_back(id);
                    pass.moved_bytes += size;
                }
                pass.evict(lifetimes, budget.saturating_sub(pass.stays_bytes), at + 1);
            }
            Event::Allocate(id) => {
                let begins = lifetimes.recording.allocations[id as usize].flags.phase() == Phase::Backward;
                if begins && !pass.is_over() && !pass.is_backward {
                    pass.is_backward = true;
                    last_free = at;
                    pass.reload(lifetimes, budget, at, &mut change);
                }
            }
            Event::Free(id) | Event::FreeRequested(id) if is_kept[id as usize] => {
                if let Some(index) = pass.gone.iter().position(|(gone, _)| *gone == id) {
                    let (id, until) = pass.gone.remove(index);
                    change.moved.push(away(lifetimes, id, until, last_free));
                } else {
                    pass.forget(lifetimes, id);
                }
                pass.reload(lifetimes, budget, at, &mut change);
                last_free = at;
                if pass.is_over() {
                    moved_bytes += pass.moved_bytes;
                    pass = new_pass(totals.next());
                }
            }
            _ => {}
        }
    }
    let returning = change.moved.iter().map(|(id, _)| lifetimes.size(*id)).sum();
    Offloaded { change, leaving: moved_bytes + pass.moved_bytes, returning }
}

impl Pass {
    fn evict(&mut self, lifetimes: &BlockLifetimes<'_>, most: u64, at: usize) {
        while self.leaving.iter().map(|id| lifetimes.size(*id)).sum::<u64>() > most {
            self.gone.extend(self.leaving.pop_front().map(|id| (id, at)));
        }
    }

    /// Loads the block that backward needs next, beside the one that it reads now: the latest made.
    fn reload(&mut self, lifetimes: &BlockLifetimes<'_>, budget: u64, at: usize, change: &mut Change) {
        let most = budget.saturating_sub(self.stays_bytes).max(1);
        loop {
            let here = self.stays.iter().chain(&self.leaving).chain(&self.back);
            let read_now = here.copied().max();
            let ahead = self.leaving.iter().chain(&self.back).filter(|id| Some(**id) != read_now);
            if ahead.map(|id| lifetimes.size(*id)).sum::<u64>() >= most {
                return;
            }
            let Some((id, until)) = self.gone.pop() else { return };
            change.moved.push(away(lifetimes, id, until, at));
            self.back.push(id);
        }
    }

    fn forget(&mut self, lifetimes: &BlockLifetimes<'_>, id: u32) {
        if let Some(index) = self.stays.iter().position(|there| *there == id) {
            self.stays.remove(index);
            self.stays_bytes -= lifetimes.size(id);
        }
        self.leaving.retain(|there| *there != id);
        self.back.retain(|there| *there != id);
    }

    fn is_over(&self) -> bool {
        self.stays.is_empty() && self.leaving.is_empty() && self.gone.is_empty() && self.back.is_empty()
    }
}

/// Returns the lifetime of a block that is absent between two events.
fn away(lifetimes: &BlockLifetimes<'_>, id: u32, until: usize, again: usize) -> (u32, Vec<Span>) {
    let Span { from, to } = lifetimes.spans[id as usize];
    (id, vec![Span { from, to: until }, Span { from: again.max(until), to }])
}

/// Returns the bytes of each pass. A pass ends when none of its blocks is live.
fn totals(lifetimes: &BlockLifetimes<'_>, is_kept: &[bool]) -> Vec<u64> {
    let mut totals = vec![0];
    let mut count = 0;
    for event in &lifetimes.recording.events {
        match *event {
            Event::Allocate(id) if is_kept[id as usize] => {
                count += 1;
                *totals.last_mut().unwrap_or(&mut 0) += lifetimes.size(id);
            }
            Event::Free(id) | Event::FreeRequested(id) if is_kept[id as usize] => {
                count -= 1;
                if count == 0 {
                    totals.push(0);
                }
            }
            _ => {}
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use crate::plan::{Allocation, Recording, Stages};
    use memlab_trace::Category;
    use memlab_trace::record::Flags;

    use super::*;

    fn recording(sizes: &[u64], events: Vec<Event>) -> Recording {
        let allocation = |&size| Allocation {
            size,
            place: 0,
            stack: 0,
            layer: 0,
            owner: 0,
            category: Category::Activation,
            flags: Flags(0),
        };
        Recording {
            device: 0,
            allocations: sizes.iter().map(allocation).collect(),
            events,
            places: Vec::new(),
            steps: Vec::new(),
            passes: Vec::new(),
            stages: Stages::default(),
            has_requested_sizes: true,
            ran_out_of_memory: false,
            outside: 0,
            read_backs: Vec::new(),
            model: memlab_trace::Model::default(),
        }
    }

    #[test]
    fn a_pass_has_the_bytes_of_all_blocks_until_none_is_left() {
        use Event::{Allocate, Free};
        // GIVEN a forward that keeps two blocks until its backward, one that keeps a single block, and a block outside
        // both
        let events = vec![Allocate(0), Allocate(1), Free(1), Allocate(3), Free(0), Allocate(2), Free(2)];
        let recording = recording(&[3, 5, 7, 11], events);
        // THEN each pass has the sum of its blocks
        assert_eq!(totals(&BlockLifetimes::new(&recording), &[true, true, true, false]), [8, 7, 0]);
    }
}
