//! Steps of different lengths in sequence.
//!
//! The steps of a recording have one length. The sequence replays its first steps, then its last one repeatedly, with
//! the request sizes at the length of each step.

use std::ops::Range;

use crate::allocator::{Card, Counters, Settings};
use rustc_hash::FxHashMap;

use crate::plan::family::Family;
use crate::plan::search::least_card;
use crate::plan::steady::Position;

/// A program at any length, and its sequence of lengths.
pub struct Sequence<'f> {
    family: &'f Family,
    /// Events of each step; the last step is repeated.
    ///
    /// A step is the repeating part: with two optimizers that alternate, one step of each.
    steps: Vec<Range<usize>>,
    /// Sizes of all allocations, by length.
    sizes: FxHashMap<u64, Vec<u64>>,
}

/// Result of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRun {
    /// PyTorch's final counters, with their peaks.
    pub counters: Counters,
    /// Step in which the card had no room; `None`: all steps ran.
    pub failed_in: Option<usize>,
}

/// Memory needs of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct SequenceNeeds {
    /// Run on a card that is never full.
    pub endless: SequenceRun,
    /// Bytes of the smallest card on which all steps run.
    pub least: u64,
}

impl<'f> Sequence<'f> {
    /// Returns a sequence for steps of these lengths, or `None` if the recorded steps differ from each other and cannot
    /// be continued.
    pub fn new(family: &'f Family, lengths: impl IntoIterator<Item = u64>) -> Option<Sequence<'f>> {
        let period = family.period?;
        let ends = &family.recording.steps;
        // Counts whole periods back from the last step; the rest belongs to the first.
        let first = (ends.len() - 1) % period.steps;
        let mut start = 0;
        let steps = ends[first..].iter().step_by(period.steps).map(|end| std::mem::replace(&mut start, *end)..*end);
        let steps = steps.filter(|events| !events.is_empty()).collect();
        let mut sizes = FxHashMap::default();
        for length in lengths {
            sizes.entry(length).or_insert_with(|| family.sizes(Some(length)));
        }
        Some(Sequence { family, steps, sizes })
    }

    /// Returns the number of events in a step.
    pub fn events_in_step(&self) -> usize {
        self.steps.last().map_or(0, |events| events.len())
    }

    /// Replays steps of these lengths, which must be among the lengths given to `new`.
    pub fn run(&self, lengths: &[u64], settings: &Settings, card: Card) -> SequenceRun {
        let mut allocator = self.family.allocator(settings, card);
        let last = self.steps.len() - 1;
        for (step, length) in lengths.iter().enumerate() {
            let (events, repetition) = (self.steps[step.min(last)].clone(), step.saturating_sub(last) as u32);
            let sizes = &self.sizes[length];
            for event in events {
                let Some(request) = self.family.request_at(Position { event, repetition }, sizes) else { continue };
                if allocator.apply(request).is_err() {
                    return SequenceRun { counters: *allocator.counters(), failed_in: Some(step) };
                }
            }
        }
        SequenceRun { counters: *allocator.counters(), failed_in: None }
    }

    /// Returns the needs of steps of these lengths; `outside` is the bytes of the card outside the allocator.
    pub fn needs(&self, lengths: &[u64], settings: &Settings, outside: u64) -> SequenceNeeds {
        let endless = self.run(lengths, settings, Card::UNLIMITED);
        let fits = |memory: u64| {
            let card = Card::with_available(memory, memory.saturating_sub(outside));
            self.run(lengths, settings, card).failed_in.is_none()
        };
        SequenceNeeds { endless, least: least_card(&endless.counters, outside, fits) }
    }
}
