//! Matches equal requests of two recordings.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlab_trace::Line;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

use crate::plan::recording::{Allocation, Event, Recording};

/// Limit on the comparison time: long sequences with many differences take long and match little.
const MATCHING_TIMEOUT: Duration = Duration::from_secs(5);
/// Total number of allocations that always compare within a second.
///
/// No deadline ends their comparison: the plan of a small program must not depend on the load of the machine.
const SMALL_COMPARISON: usize = 20_000;

/// The equal allocation of `low` for each allocation of `high`.
pub(crate) struct Matching {
    pub counterparts: Vec<Option<u32>>,
    /// True if both have the same events in the same order.
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

/// Returns true if both have the same events in the same order.
///
/// Frees between two allocations are sorted, so equal runs have equal events.
fn has_same_order(low: &Recording, high: &Recording) -> bool {
    // Unless parts of the program follow the last step, the events after it only show where the recording was stopped.
    let last = |recording: &Recording| {
        let end = recording.events.len();
        if recording.has_parts_after_steps() { end } else { recording.steps.last().copied().unwrap_or(end) }
    };
    let (ours, theirs): (&[Event], &[Event]) = (&low.events[..last(low)], &high.events[..last(high)]);
    ours == theirs
        && low.allocations.len() == high.allocations.len()
        && std::iter::zip(&low.allocations, &high.allocations).all(|(a, b)| a.place == b.place)
}

/// Returns the source files on the stacks of a recording's allocations.
fn files(recording: &Recording) -> FxHashSet<Arc<str>> {
    let stacks: FxHashSet<u32> = recording.allocations.iter().map(|allocation| allocation.stack).collect();
    stacks.iter().flat_map(|stack| recording.model.frames(*stack)).map(|line| line.file.clone()).collect()
}

/// Hashes of request sites, equal in both recordings.
struct Keys<'f> {
    /// Source files of both.
    ///
    /// `torch.compile` generates code for each batch, in files named by their content: neither these names nor their
    /// line numbers are equal.
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
