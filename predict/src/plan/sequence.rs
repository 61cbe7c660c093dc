//! Steps of different lengths, one after the other.
//!
//! A recording has steps of one length. Its first ones, and then its last one again and again, are carried out with the sizes
//! that their requests have at the length of each step.

use std::ops::Range;

use crate::allocator::{Card, Counters, Settings};
use rustc_hash::FxHashMap;

use crate::plan::family::Family;
use crate::plan::search::least_card;
use crate::plan::steady::Position;

/// A program at any length, and the lengths that it sees.
pub struct Sequence<'f> {
    family: &'f Family,
    /// The events of each step, of which the last one is repeated. A step is what repeats: with two optimizers that take turns, one
    /// step of each.
    steps: Vec<Range<usize>>,
    /// Sizes of all allocations, by length.
    sizes: FxHashMap<u64, Vec<u64>>,
}

/// What a sequence takes.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRun {
    /// PyTorch's counters at the end, with their peaks.
    pub counters: Counters,
    /// The step in which the card had no room; `None`: there was room for all.
    pub failed_in: Option<usize>,
}

/// What a sequence needs.
#[derive(Clone, Copy, Debug)]
pub struct SequenceNeeds {
    /// On a card that is never full.
    pub endless: SequenceRun,
    /// The least memory of a card, in bytes, with which all steps run.
    pub least: u64,
}

impl<'f> Sequence<'f> {
    /// For steps of any of these lengths. `None`: the recorded steps differ from each other, so that they cannot be continued.
    pub fn new(family: &'f Family, lengths: impl IntoIterator<Item = u64>) -> Option<Sequence<'f>> {
        let period = family.period?;
        let ends = &family.recording.steps;
        // In whole periods from the last step; what is left at the start is of the first.
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

    /// How many events a step has.
    pub fn events_in_step(&self) -> usize {
        self.steps.last().map_or(0, |events| events.len())
    }

    /// Carries out steps of these lengths, which are among those that the sequence was made for.
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

    /// What steps of these lengths need. `outside`: bytes of the card that are not the allocator's.
    pub fn needs(&self, lengths: &[u64], settings: &Settings, outside: u64) -> SequenceNeeds {
        let endless = self.run(lengths, settings, Card::UNLIMITED);
        let fits = |memory: u64| {
            let card = Card::with_available(memory, memory.saturating_sub(outside));
            self.run(lengths, settings, card).failed_in.is_none()
        };
        SequenceNeeds { endless, least: least_card(&endless.counters, outside, fits) }
    }
}
