//! Memory held at the peak.

use std::sync::Arc;

use crate::allocator::{Card, Request, Settings};
use memlab_trace::record::Phase;
use memlab_trace::{BlockLayer, Category, Line};
use rustc_hash::FxHashMap;

use crate::plan::family::Family;
use crate::plan::recording::Event;
use crate::plan::stage::Stage;
use crate::plan::steady::{Planned, Position};

/// Bytes and number of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holding {
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// State of the program at the allocated peak.
#[derive(Debug)]
pub struct PeakView {
    /// Bytes allocated.
    pub allocated: u64,
    /// Number of completed optimizer steps.
    pub step: usize,
    /// Part of the program.
    pub stage: Stage,
    /// Phase of the program.
    pub phase: Phase,
    /// Line that requested the last block.
    pub line: Option<Arc<Line>>,
    /// Layer that requested it.
    pub layer: BlockLayer,
    /// By category, largest first.
    pub categories: Vec<(Category, Holding)>,
    /// By line, largest first; `None`: outside Python.
    pub lines: Vec<(Option<Arc<Line>>, Holding)>,
    /// By layer, largest first.
    pub layers: Vec<(BlockLayer, Holding)>,
}

impl Family {
    /// Returns the memory held at the peak of a run with these sizes and settings.
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
        let last = match recording.events[event] {
            Event::Allocate(id) => Some(&recording.allocations[id as usize]),
            _ => None,
        };
        let repeated = planned.peak.repetition as usize * self.period.map_or(0, |period| period.steps);
        PeakView {
            allocated,
            step: recording.steps.iter().filter(|step| **step <= event).count() + repeated,
            stage: recording.stages.at(event),
            phase: last.map_or(Phase::Other, |allocation| allocation.flags.phase()),
            line: last.and_then(|allocation| recording.line(allocation)),
            layer: last.map(|allocation| recording.layer(allocation)).unwrap_or_default(),
            categories: sorted(categories),
            lines: sorted(lines),
            layers: sorted(layers),
        }
    }

    /// Returns the recorded ids at the peak and the bytes of their blocks.
    ///
    /// Blocks of a repetition appear as the recorded ones that they repeat.
    fn held_at_peak(&self, planned: &Planned, sizes: &[u64], settings: &Settings) -> Vec<(u32, u64)> {
        let peak = planned.peak;
        let count = self.recording.events.len();
        let (start, end) = self.period.map_or((count, count), |period| period.events);
        let repeated = (1..=peak.repetition).flat_map(|repetition| (start..end).map(move |event| (event, repetition)));
        let after = (end..count).map(|event| (event, peak.repetition));
        let positions = (0..end).map(|event| (event, 0)).chain(repeated).chain(after);

        // The card is never full, as in the run that had this peak.
        let mut allocator = self.allocator(settings, Card::UNLIMITED);
        let mut held: FxHashMap<u32, u32> = FxHashMap::default();
        for (event, repetition) in positions {
            let position = Position { event, repetition };
            if let Some(request) = self.request_at(position, sizes) {
                let _ = allocator.apply(request);
                match (request, self.recording.events[event]) {
                    (Request::Allocate { id, .. }, Event::Allocate(recorded)) => {
                        held.insert(id, recorded);
                    }
                    (Request::Free { id } | Request::FreeRequested { id }, _) => {
                        held.remove(&id);
                    }
                    _ => {}
                }
            }
            if position == peak {
                break;
            }
        }
        held.into_iter().filter_map(|(id, recorded)| Some((recorded, allocator.block_size(id)?))).collect()
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
