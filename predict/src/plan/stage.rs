//! Parts of a program: training, and the parts after its steps.

use std::ops::Range;

use crate::allocator::Counters;

/// A part of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Training, up to the step after the last recorded one.
    Training,
    /// Batches of another DataLoader, without an optimizer step.
    Evaluation,
    /// Collects and saves a state.
    Saving,
    /// Anything else after the training steps.
    Rest,
}

impl Stage {
    /// All parts.
    pub const ALL: [Stage; 4] = [Stage::Training, Stage::Evaluation, Stage::Saving, Stage::Rest];

    /// Converts its number in a trace. `None`: the program failed there.
    pub(crate) fn of(number: u64) -> Option<Stage> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// Peaks of PyTorch's counters in a part of the program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StagePeak {
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes reserved.
    pub reserved: u64,
}

impl StagePeak {
    pub(crate) fn take(&mut self, now: &Counters) {
        self.allocated = self.allocated.max(now.allocated.current);
        self.reserved = self.reserved.max(now.reserved.current);
    }
}

/// Starts of the parts of a recording, by event.
#[derive(Clone, Default, Debug)]
pub struct Stages {
    /// First event of each part, and the part.
    pub begins: Vec<(usize, Stage)>,
    /// True if the program failed after the training steps.
    pub has_failed: bool,
}

impl Stages {
    /// Returns the part to which an event belongs.
    pub fn at(&self, event: usize) -> Stage {
        let begun = self.begins.iter().rev().find(|(begin, _)| *begin <= event);
        begun.map_or(Stage::Training, |(_, stage)| *stage)
    }

    /// Returns the start of the first part that follows a step. Lightning also evaluates before the first step.
    pub(crate) fn first_after(&self, steps: &[usize]) -> Option<usize> {
        let first = *steps.first()?;
        self.begins.iter().map(|(begin, _)| *begin).find(|begin| *begin >= first)
    }

    /// Splits events at the starts of parts. A part may be empty.
    pub(crate) fn cut(&self, events: Range<usize>) -> Vec<(Stage, Range<usize>)> {
        let mut start = events.start;
        let mut stage = self.at(start);
        let mut parts = Vec::new();
        for (begin, next) in self.begins.iter().filter(|(begin, _)| (events.start + 1..=events.end).contains(begin)) {
            parts.push((stage, start..*begin));
            (start, stage) = (*begin, *next);
        }
        parts.push((stage, start..events.end));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_where_parts_begin() {
        let stages = Stages { begins: vec![(10, Stage::Evaluation), (20, Stage::Saving)], has_failed: false };
        assert_eq!(stages.cut(5..30), [(Stage::Training, 5..10), (Stage::Evaluation, 10..20), (Stage::Saving, 20..30)]);
        assert_eq!(stages.cut(12..15), [(Stage::Evaluation, 12..15)]);
        assert_eq!((stages.at(9), stages.at(20)), (Stage::Training, Stage::Saving));
    }
}
