//! Which requests of two recordings are the same.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlab_trace::Line;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

use crate::plan::recording::{Allocation, Event, Recording};

/// Comparing long orders with many differences takes long and matches little.
const MATCHING_TIMEOUT: Duration = Duration::from_secs(5);
/// Allocations of both that compare within a second in any case. No deadline ends their comparison: the plan of a small
/// program must not depend on the load of the machine.
const SMALL_COMPARISON: usize = 20_000;

/// For each allocation of `high`, the same one of `low`.
pub(crate) struct Matching {
    pub counterparts: Vec<Option<u32>>,
    /// Whether both have the same events in the same order.
    pub is_same_order: bool,
}

pub(crate) fn matched(low: &Recording, high: &Recording) -> Matching {
    if has_same_order(low, high) {
        let counterparts = (0..high.allocations.len() as u32).map(Some).collect();
        return Matching { counterparts, is_same_order: true };
    }
    let shared = files(low).intersection(&files(high)).cloned().collect();
    let (ours, theirs) = (Keys::new(&shared).of(low), Keys::new(&shared).of(high));
    let deadline = (ours.len() + theirs.len() > SMALL_COMPARISON).then(|| Instant::now() + MATCHING_TIMEOUT);
    let mut counterparts = vec![None; high.allocations.len()];
    for operation in capture_diff_slices_deadline(Algorithm::Myers, &ours, &theirs, deadline) {
        if let DiffOp::Equal { old_index, new_index, len } = operation {
            for offset in 0..len {
                counterparts[new_index + offset] = Some((old_index + offset) as u32);
            }
        }
    }
    Matching { counterparts, is_same_order: false }
}

/// Frees between two allocations are sorted, so equal runs have equal events.
fn has_same_order(low: &Recording, high: &Recording) -> bool {
    // What follows the last step, if no part of the program is meant to, is where it was ended.
    let last = |recording: &Recording| {
        let end = recording.events.len();
        if recording.has_parts_after_steps() { end } else { recording.steps.last().copied().unwrap_or(end) }
    };
    let (ours, theirs): (&[Event], &[Event]) = (&low.events[..last(low)], &high.events[..last(high)]);
    ours == theirs
        && low.allocations.len() == high.allocations.len()
        && std::iter::zip(&low.allocations, &high.allocations).all(|(a, b)| a.place == b.place)
}

/// The source files on the stacks of a recording's allocations.
fn files(recording: &Recording) -> FxHashSet<Arc<str>> {
    let stacks: FxHashSet<u32> = recording.allocations.iter().map(|allocation| allocation.stack).collect();
    stacks.iter().flat_map(|stack| recording.model.frames(*stack)).map(|line| line.file.clone()).collect()
}

/// Where allocations were asked for, as numbers that are equal in both recordings.
struct Keys<'f> {
    /// Source files of both. `torch.compile` writes code anew for each batch, into files named by what is in them: neither
    /// these names nor lines in them are equal.
    shared: &'f FxHashSet<Arc<str>>,
    by_stack: FxHashMap<u32, u64>,
    by_layer: FxHashMap<u32, u64>,
}

impl<'f> Keys<'f> {
    fn new(shared: &'f FxHashSet<Arc<str>>) -> Keys<'f> {
        Keys { shared, by_stack: FxHashMap::default(), by_layer: FxHashMap::default() }
    }

    fn of(&mut self, recording: &Recording) -> Vec<u64> {
        recording.allocations.iter().map(|allocation| self.key(recording, allocation)).collect()
    }

    fn key(&mut self, recording: &Recording, allocation: &Allocation) -> u64 {
        let Allocation { stack, layer, place, flags, .. } = *allocation;
        let shared = self.shared;
        let lines = *self.by_stack.entry(stack).or_insert_with(|| {
            let mut hasher = FxHasher::default();
            for line in recording.model.frames(stack) {
                let Line { file, line, .. } = &*line;
                shared.contains(file).then_some((file, line)).hash(&mut hasher);
            }
            hasher.finish()
        });
        let name = *self.by_layer.entry(layer).or_insert_with(|| {
            let mut hasher = FxHasher::default();
            recording.model.layer_name(layer).hash(&mut hasher);
            hasher.finish()
        });
        let mut hasher = FxHasher::default();
        (lines, name, place, flags.0).hash(&mut hasher);
        hasher.finish()
    }
}
