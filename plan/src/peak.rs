//! What is held at the peak.

use std::sync::Arc;

use memlab_allocator::{Allocator, Card, Request, Settings};
use memlab_trace::record::Phase;
use memlab_trace::{BlockLayer, Category, Line};
use rustc_hash::FxHashMap;

use crate::family::Family;
use crate::recording::{Allocation, Event};
use crate::steady::{Planned, Position};

/// Bytes and blocks of something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holding {
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many blocks these are.
    pub blocks: u64,
}

/// The moment at which most is allocated.
#[derive(Debug)]
pub struct PeakView {
    /// Bytes allocated.
    pub allocated: u64,
    /// How many optimizer steps had ended.
    pub step: usize,
    /// What the program was doing.
    pub phase: Phase,
    /// The line that asked for the last block.
    pub line: Option<Arc<Line>>,
    /// The layer that asked for it.
    pub layer: BlockLayer,
    /// By category, largest first.
    pub categories: Vec<(Category, Holding)>,
    /// By line, largest first; `None`: outside Python.
    pub lines: Vec<(Option<Arc<Line>>, Holding)>,
    /// By layer, largest first.
    pub layers: Vec<(BlockLayer, Holding)>,
}

impl Family {
    /// What is held at the peak of a run with these sizes and settings.
    pub fn peak(&self, planned: &Planned, sizes: &[u64], settings: &Settings) -> PeakView {
        let recording = &self.recording;
        let (mut categories, mut lines, mut layers) =
            (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        let mut allocated = 0;
        for (id, bytes) in self.held_at_peak(planned, sizes, settings) {
            let allocation = &recording.allocations[id as usize];
            allocated += bytes;
            add(&mut categories, allocation.category, bytes);
            add(&mut lines, recording.line(allocation), bytes);
            add(&mut layers, recording.layer(allocation), bytes);
        }
        let event = planned.peak.event;
        let last: Option<&Allocation> = match self.request(recording.events[event], sizes) {
            Request::Allocate { id, .. } => Some(&recording.allocations[id as usize]),
            _ => None,
        };
        let repeated = planned.peak.repetition as usize * self.period.map_or(0, |period| period.steps);
        PeakView {
            allocated,
            step: recording.steps.iter().filter(|step| **step <= event).count() + repeated,
            phase: last.map_or(Phase::Other, |allocation| allocation.flags.phase()),
            line: last.and_then(|allocation| recording.line(allocation)),
            layer: last.map(|allocation| recording.layer(allocation)).unwrap_or_default(),
            categories: sorted(categories),
            lines: sorted(lines),
            layers: sorted(layers),
        }
    }

    /// What is allocated at the peak: recorded ids, and bytes of their blocks. A repetition's are given by the recorded ones that
    /// they repeat.
    fn held_at_peak(&self, planned: &Planned, sizes: &[u64], settings: &Settings) -> Vec<(u32, u64)> {
        let mut held = Held {
            allocator: Allocator::for_requests(&self.requests_at(sizes), settings.clone(), Card::ENDLESS),
            recorded: FxHashMap::default(),
        };
        let Position { event: end, repetition: last } = planned.peak;
        let period = self.period.filter(|_| last > 0);
        let (start, period_end) = period.map_or((0, end + 1), |period| period.events);
        for event in 0..period_end {
            held.apply(self, event, Some(self.request(self.recording.events[event], sizes)));
        }
        if let Some(period) = period {
            for repetition in 1..=last {
                let stop = if repetition == last { period_end.min(end + 1) } else { period_end };
                for event in start..stop {
                    held.apply(self, event, self.repeated(&period, event, repetition, sizes));
                }
            }
            // The peak may be in what follows the last step.
            for event in period_end..=end {
                held.apply(self, event, self.repeated(&period, event, last, sizes));
            }
        }
        let Held { allocator, recorded } = held;
        recorded.into_iter().filter_map(|(id, recorded)| Some((recorded, allocator.block_size(id)?))).collect()
    }
}

/// What is allocated, on the way to the peak.
struct Held {
    allocator: Allocator,
    /// The recorded id of each.
    recorded: FxHashMap<u32, u32>,
}

impl Held {
    fn apply(&mut self, family: &Family, event: usize, request: Option<Request>) {
        let Some(request) = request else { return };
        // The card is never full.
        let _ = self.allocator.apply(request);
        if let (Request::Allocate { id, .. }, Event::Allocate(recorded)) = (request, family.recording.events[event]) {
            self.recorded.insert(id, recorded);
        } else if let Request::Free { id } | Request::FreeRequested { id } = request {
            self.recorded.remove(&id);
        }
    }
}

fn add<K: Eq + std::hash::Hash>(to: &mut FxHashMap<K, Holding>, key: K, bytes: u64) {
    let holding = to.entry(key).or_default();
    holding.bytes += bytes;
    holding.blocks += 1;
}

fn sorted<K: Ord>(holdings: FxHashMap<K, Holding>) -> Vec<(K, Holding)> {
    let mut all: Vec<_> = holdings.into_iter().collect();
    all.sort_by(|(a, first), (b, second)| second.bytes.cmp(&first.bytes).then_with(|| a.cmp(b)));
    all
}
