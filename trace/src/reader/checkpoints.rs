//! Checkpoints: copies of the state that a seek backwards starts from.

use super::lines::ReadPosition;
use crate::model::Model;
use crate::seek_target::SeekTarget;

/// Events between the first checkpoints: some 80 ms of replay.
const FIRST_SPACING: u64 = 1 << 20;

/// Maximum number of events replayed again to show the events before a moment.
const MAX_REPLAYED_EVENTS: u64 = 2 * FIRST_SPACING;

/// Maximum number of checkpoints.
const MAX_CHECKPOINTS: usize = 64;

/// Default limit for the memory of all checkpoints together.
const DEFAULT_BUDGET_BYTES: usize = 256 << 20;

/// A copy of the state, with its position in the trace.
pub(super) struct Checkpoint {
    pub(super) position: ReadPosition,
    pub(super) model: Model,
    heap_bytes: usize,
}

impl Checkpoint {
    /// Returns a copy to continue from.
    pub(super) fn state(&self) -> (ReadPosition, Model) {
        (self.position.clone(), self.model.clone())
    }
}

/// Checkpoints of a trace, earliest first.
///
/// If they use too much memory, every second one is dropped and the spacing doubled.
pub(super) struct Checkpoints {
    list: Vec<Checkpoint>,
    /// Minimum number of events between two checkpoints.
    spacing: u64,
    /// Spacing before any checkpoint was dropped.
    first_spacing: u64,
    budget: usize,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { list: Vec::new(), spacing: FIRST_SPACING, first_spacing: FIRST_SPACING, budget: DEFAULT_BUDGET_BYTES }
    }
}

impl Checkpoints {
    /// Sets the limit for the memory of all checkpoints together.
    pub(super) fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Sets the minimum number of events between two checkpoints.
    pub(super) fn set_spacing(&mut self, events: u64) {
        (self.spacing, self.first_spacing) = (events, events);
    }

    /// Drops all checkpoints after the trace was replaced.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.spacing = self.first_spacing;
    }

    /// Copies the state if enough events passed since the last checkpoint.
    ///
    /// Copying a large state takes as long as replaying many events, so the spacing grows with the state.
    pub(super) fn add_if_due(&mut self, position: &ReadPosition, model: &Model) {
        const BYTES_COPIED_PER_EVENT: usize = 64;
        let last = self.list.last().map_or(0, |checkpoint| checkpoint.model.events());
        let heap_bytes = model.heap_bytes();
        let least = self.spacing.max((heap_bytes / BYTES_COPIED_PER_EVENT) as u64);
        if model.events() >= last.saturating_add(least) {
            let (position, model) = (position.clone(), model.clone());
            self.list.push(Checkpoint { position, model, heap_bytes });
            self.thin_out();
        }
    }

    fn thin_out(&mut self) {
        while self.list.len() > MAX_CHECKPOINTS || self.heap_bytes() > self.budget {
            self.spacing = self.spacing.saturating_mul(2);
            let mut index = 0;
            self.list.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
    }

    fn heap_bytes(&self) -> usize {
        self.list.iter().map(|checkpoint| checkpoint.heap_bytes).sum()
    }

    /// Returns the state of the checkpoint before the nearest one.
    ///
    /// Without one, returns the start (`Some(None)`) if that is not far.
    pub(super) fn before_the_nearest(&self, target: SeekTarget) -> Option<Option<(ReadPosition, Model)>> {
        let mut before = self.before(target);
        let nearest = before.next()?;
        match before.next() {
            Some(earlier) => Some(Some(earlier.state())),
            None if nearest.model.events() <= MAX_REPLAYED_EVENTS => Some(None),
            None => None,
        }
    }

    /// Returns the checkpoints no later than `target`, latest first.
    pub(super) fn before(&self, target: SeekTarget) -> impl Iterator<Item = &Checkpoint> {
        self.list.iter().rev().filter(move |checkpoint| target.is_ahead_of(&checkpoint.model))
    }
}
