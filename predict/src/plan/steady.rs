//! Replay until steps repeat exactly.
//!
//! After a few steps, the allocator still takes a new segment occasionally, because free memory is split differently.
//! The last recorded step is therefore repeated until all segments and blocks equal those after an earlier repetition,
//! often two before. From then on everything repeats.

use std::ops::Range;

use crate::allocator::{Allocator, Card, Counters, OutOfMemory, Request, Settings};

use crate::plan::family::Family;
use crate::plan::period::Period;
use crate::plan::stage::{Stage, StagePeak};

/// Limit on repetitions: real trainings need two to five.
const MAX_REPETITIONS: u32 = 40;

/// Validity of the figures for any number of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steadiness {
    /// Steps repeat exactly after this many further repetitions of the last recorded one.
    After(u32),
    /// Each step keeps this many bytes more.
    Grows(u64),
    /// The allocator did not become steady.
    NotYet,
    /// The recorded steps differ from each other, or are too few: the figures describe the recording alone.
    Unknown,
}

/// Position of an event in the replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    /// Index of the event in the recording.
    pub event: usize,
    /// Number of repetitions of the period, including this one.
    pub repetition: u32,
}

/// Memory of a program at one batch size.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// PyTorch's final counters, with their peaks.
    pub counters: Counters,
    /// Validity for any number of steps.
    pub steadiness: Steadiness,
    /// Request for which the card had no room.
    pub out_of_memory: Option<OutOfMemory>,
    /// Peaks of each part of the program, in the order of [`Stage::ALL`]; `None`: not recorded.
    pub stages: [Option<StagePeak>; Stage::ALL.len()],
    /// Position of the allocated peak.
    pub(crate) peak: Position,
}

impl Planned {
    /// Returns true if the card had room for everything.
    pub fn fits(&self) -> bool {
        self.out_of_memory.is_none()
    }
}

impl Family {
    /// Replays the program with allocations of these sizes ([`Family::sizes`]).
    pub fn run(&self, sizes: &[u64], settings: &Settings, card: Card) -> Planned {
        Run::new(self, sizes, settings, card).run()
    }

    /// Returns an empty allocator with the recording's places.
    pub(crate) fn allocator(&self, settings: &Settings, card: Card) -> Allocator {
        let mut allocator = Allocator::new(settings.clone(), card);
        for place in &self.recording.places {
            allocator.place(*place);
        }
        allocator
    }

    /// Returns the request at a position, or `None` if an earlier repetition already freed the block for good.
    pub(crate) fn request_at(&self, position: Position, sizes: &[u64]) -> Option<Request> {
        let request = self.request(self.recording.events[position.event], sizes);
        match self.period {
            Some(period) if position.repetition > 0 => {
                // Unless further parts of the program are to be planned, the events after the period belong to the step
                // in which it was stopped.
                let is_meant = self.recording.has_parts_after_steps();
                let is_after = is_meant && position.event >= period.events.1;
                self.renamed(request, &period, position.repetition, is_after)
            }
            _ => Some(request),
        }
    }

    /// Returns a request of the period, or of the events after it, for the n-th repetition.
    fn renamed(&self, request: Request, period: &Period, repetition: u32, is_after: bool) -> Option<Request> {
        let total = self.recording.allocations.len() as u32;
        // Ids of the n-th repetition follow all recorded ones.
        let id_in = |offset: u32, repetition: u32| match repetition {
            0 => period.first + offset,
            _ => total + (repetition - 1) * period.count + offset,
        };
        // Other ids stay unchanged: the end frees blocks that no repetition has freed.
        let recorded = |id: u32| is_after.then_some(id);
        let renamed = |id: u32| {
            if let Some(offset) = id.checked_sub(period.first) {
                // Events after the period have separate ids.
                return if offset < period.count { Some(id_in(offset, repetition)) } else { recorded(id) };
            }
            if (period.first - id).div_ceil(period.count) > period.reach.max(1) {
                return recorded(id);
            }
            // An id from an earlier run: the allocation of equally many repetitions before this one.
            let id = id + repetition * period.count;
            match id.checked_sub(period.first) {
                Some(offset) => Some(id_in(offset % period.count, offset / period.count)),
                None => Some(id),
            }
        };
        Some(match request {
            Request::Allocate { id, place, size } => Request::Allocate { id: renamed(id)?, place, size },
            Request::Free { id } => Request::Free { id: renamed(id)? },
            Request::FreeRequested { id } => Request::FreeRequested { id: renamed(id)? },
            Request::FreeCompleted { id } => Request::FreeCompleted { id: renamed(id)? },
            other => other,
        })
    }
}

struct Run<'f> {
    family: &'f Family,
    sizes: &'f [u64],
    allocator: Allocator,
    most: u64,
    peak: Position,
    stages: [Option<StagePeak>; Stage::ALL.len()],
}

impl<'f> Run<'f> {
    fn new(family: &'f Family, sizes: &'f [u64], settings: &Settings, card: Card) -> Run<'f> {
        let allocator = family.allocator(settings, card);
        let peak = Position { event: 0, repetition: 0 };
        Run { family, sizes, allocator, most: 0, peak, stages: Default::default() }
    }

    fn run(mut self) -> Planned {
        let outcome = self.execute();
        Planned {
            counters: *self.allocator.counters(),
            steadiness: outcome.unwrap_or(Steadiness::Unknown),
            out_of_memory: outcome.err(),
            stages: self.stages,
            peak: self.peak,
        }
    }

    fn execute(&mut self) -> Result<Steadiness, OutOfMemory> {
        let count = self.family.recording.events.len();
        let Some(period) = self.family.period else {
            self.events(0..count, 0)?;
            return Ok(Steadiness::Unknown);
        };
        self.events(0..period.events.1, 0)?;
        let (steadiness, repetitions) = self.repeat(&period)?;
        // The events after the last step free the allocations of the last repetition.
        self.events(period.events.1..count, repetitions)?;
        Ok(steadiness)
    }

    fn repeat(&mut self, period: &Period) -> Result<(Steadiness, u32), OutOfMemory> {
        let mut seen = vec![self.allocator.segments()];
        let (mut allocated, mut growth) = (self.allocator.counters().allocated.current, 0);
        for repetition in 1..=MAX_REPETITIONS {
            self.events(period.events.0..period.events.1, repetition)?;
            let segments = self.allocator.segments();
            if seen.contains(&segments) {
                return Ok((Steadiness::After(repetition), repetition));
            }
            growth = self.allocator.counters().allocated.current.saturating_sub(allocated);
            seen.push(segments);
            allocated += growth;
        }
        let steadiness = if growth > 0 { Steadiness::Grows(growth) } else { Steadiness::NotYet };
        Ok((steadiness, MAX_REPETITIONS))
    }

    fn events(&mut self, events: Range<usize>, repetition: u32) -> Result<(), OutOfMemory> {
        let recording = &self.family.recording;
        for (stage, events) in recording.stages.cut(events) {
            let mut most = self.stages[stage as usize].unwrap_or_default();
            most.take(self.allocator.counters()); // Memory live at its start.
            for event in events {
                let position = Position { event, repetition };
                let Some(request) = self.family.request_at(position, self.sizes) else { continue };
                self.allocator.apply(request)?;
                let counters = self.allocator.counters();
                most.take(counters);
                if counters.allocated.peak > self.most {
                    (self.most, self.peak) = (counters.allocated.peak, position);
                }
            }
            self.stages[stage as usize] = Some(most);
        }
        Ok(())
    }
}
