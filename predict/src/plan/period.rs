//! Repeating part of a recording: usually its last step.

use crate::plan::recording::{Event, Recording};

/// The last two runs of the repeating part. Both have the same events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Period {
    /// Events of the last run.
    pub events: (usize, usize),
    /// First id that it allocated.
    pub first: u32,
    /// Number of its allocations.
    pub count: u32,
    /// Number of its optimizer steps.
    pub steps: usize,
    /// Distance, in runs, to the oldest run whose allocations it frees. A logged loss may stay for two steps.
    pub reach: u32,
}

/// Part of a run: the events between two ends of steps.
struct Interval<'r> {
    recording: &'r Recording,
    events: &'r [Event],
    /// First id that it allocated, and number of its allocations.
    first: u32,
    count: u32,
}

impl Recording {
    /// Returns the shortest part at the end that ran twice, or `None` if steps differ or are too few.
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

    /// Returns true if both have the same requests with the same sizes.
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
