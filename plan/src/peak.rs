//! What is held at the peak.

use std::sync::Arc;

use memlab_allocator::{Request, Settings};
use memlab_trace::record::Phase;
use memlab_trace::{BlockLayer, Category, Line};
use rustc_hash::FxHashMap;

use crate::family::Family;
use crate::recording::Allocation;
use crate::steady::Planned;

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
        let live = self.live_at_peak(planned, sizes);
        let (mut categories, mut lines, mut layers) =
            (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        let mut allocated = 0;
        for id in live {
            let allocation = &recording.allocations[id as usize];
            let bytes = settings.round(sizes[id as usize]);
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

    /// The ids of what is allocated at the peak. Those of repetitions are given by the recorded ones that they repeat.
    fn live_at_peak(&self, planned: &Planned, sizes: &[u64]) -> Vec<u32> {
        let mut live: FxHashMap<u32, u32> = FxHashMap::default();
        let mut apply = |request: Request, recorded: u32| match request {
            Request::Allocate { id, .. } => {
                live.insert(id, recorded);
            }
            Request::Free { id } | Request::FreeRequested { id } => {
                live.remove(&id);
            }
            _ => {}
        };
        let end = planned.peak.event;
        let id_of = |event: usize| match self.request(self.recording.events[event], sizes) {
            Request::Allocate { id, .. } => id,
            _ => 0,
        };
        let events = self.recording.events.len();
        let (start, period_end) = self.period.map_or((events, events), |period| period.events);
        let is_repeated = planned.peak.repetition > 0;
        for event in 0..if is_repeated { period_end } else { end + 1 } {
            apply(self.request(self.recording.events[event], sizes), id_of(event));
        }
        if let Some(period) = self.period.filter(|_| is_repeated) {
            for repetition in 1..=planned.peak.repetition {
                let is_last = repetition == planned.peak.repetition;
                let stop = if is_last && end < period_end { end + 1 } else { period_end };
                for event in start..stop {
                    if let Some(request) = self.repeated(&period, event, repetition, sizes) {
                        apply(request, id_of(event));
                    }
                }
            }
            for event in period_end..(end + 1).max(period_end) {
                if let Some(request) = self.repeated(&period, event, planned.peak.repetition, sizes) {
                    apply(request, id_of(event));
                }
            }
        }
        live.into_values().collect()
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
