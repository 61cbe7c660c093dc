//! The part of a recording that repeats: usually its last step.

use crate::plan::recording::{Event, Recording};

/// The last two runs of the part that repeats. Both have the same events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Period {
    /// The events of the last one.
    pub events: (usize, usize),
    /// The first id that it allocated.
    pub first: u32,
    /// How many it allocated.
    pub count: u32,
    /// How many optimizer steps it has.
    pub steps: usize,
    /// How many runs before it the oldest is whose allocations it frees. A logged loss may stay for two steps.
    pub reach: u32,
}

/// One part of a run: the events between two ends of steps.
struct Interval<'r> {
    recording: &'r Recording,
    events: &'r [Event],
    /// The first id that it allocated, and how many.
    first: u32,
    count: u32,
}

impl Recording {
    /// The shortest part at the end that has run twice; `None` if steps differ, or are too few.
    pub(crate) fn period(&self) -> Option<Period> {
        let last = self.steps.len().checked_sub(1)?;
        (1..=last / 2).find_map(|steps| {
            let [before, start, end] = [last - 2 * steps, last - steps, last].map(|step| self.steps[step]);
            let (previous, part) = (self.part(before, start)?, self.part(start, end)?);
            previous.matches(&part).then_some(Period {
                events: (start, end),
                first: part.first,
                count: part.count,
                steps,
                reach: part.reach(),
            })
        })
    }

    fn part(&self, start: usize, end: usize) -> Option<Interval<'_>> {
        let events = self.events.get(start..end)?;
        let mut allocated = events.iter().filter_map(|event| match event {
            Event::Allocate(id) => Some(*id),
            _ => None,
        });
        let first = allocated.next()?;
        let count = allocated.count() as u32 + 1;
        Some(Interval { recording: self, events, first, count })
    }
}

impl Interval<'_> {
    fn reach(&self) -> u32 {
        let oldest = self.events.iter().filter_map(|event| match *event {
            Event::Free(id) | Event::FreeRequested(id) | Event::FreeCompleted(id) => Some(id),
            Event::Allocate(_) | Event::EmptyCache => None,
        });
        oldest.min().map_or(0, |id| self.first.saturating_sub(id).div_ceil(self.count))
    }

    /// Whether both have the same requests, for the same bytes.
    fn matches(&self, other: &Interval) -> bool {
        let relative = |part: &Interval, event: &Event| match *event {
            Event::Free(id) => (0, i64::from(id) - i64::from(part.first), 0, 0),
            Event::FreeRequested(id) => (1, i64::from(id) - i64::from(part.first), 0, 0),
            Event::FreeCompleted(id) => (2, i64::from(id) - i64::from(part.first), 0, 0),
            Event::EmptyCache => (3, 0, 0, 0),
            Event::Allocate(id) => {
                let allocation = &part.recording.allocations[id as usize];
                (4, 0, allocation.size, allocation.place)
            }
        };
        self.count == other.count
            && self.events.len() == other.events.len()
            && std::iter::zip(self.events, other.events).all(|(a, b)| relative(self, a) == relative(other, b))
    }
}
