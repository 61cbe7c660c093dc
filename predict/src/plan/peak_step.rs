//! Memory in the step with the peak, request by request, as it was recorded.

use std::ops::Range;

use memlab_trace::Category;
use memlab_trace::record::Phase;
use rustc_hash::FxHashMap;

use crate::plan::recording::{Event, Recording};
use crate::plan::timeline::TimelineBucket;

/// Shorter steps have no picture.
const MIN_EVENTS: usize = 8;

/// Memory in the step with the peak, or in the forward pass with it if the run has no steps.
#[derive(Clone, Debug)]
pub struct PeakStep {
    /// Number of the step; `None`: the peak is in no step.
    pub step: Option<usize>,
    /// Phase of the allocation that made the peak.
    pub phase: Phase,
    /// Buckets with equal numbers of requests, each at its peak. Reserved bytes are 0.
    pub buckets: Vec<TimelineBucket>,
    /// Bytes of each stack at the peak of each bucket.
    pub stacks: Vec<Vec<(u32, u64)>>,
}

/// Memory held after an event.
struct Replay<'r> {
    recording: &'r Recording,
    is_held: Vec<bool>,
    allocated: u64,
    categories: [u64; Category::COUNT],
    stacks: FxHashMap<u32, u64>,
}

impl<'r> Replay<'r> {
    fn new(recording: &'r Recording) -> Self {
        let is_held = vec![false; recording.allocations.len()];
        Self { recording, is_held, allocated: 0, categories: [0; Category::COUNT], stacks: FxHashMap::default() }
    }

    fn apply(&mut self, event: Event) {
        let (id, is_held) = match event {
            Event::Allocate(id) => (id, true),
            Event::Free(id) | Event::FreeRequested(id) => (id, false),
            Event::FreeCompleted(_) | Event::EmptyCache => return,
        };
        if std::mem::replace(&mut self.is_held[id as usize], is_held) == is_held {
            return;
        }
        let allocation = &self.recording.allocations[id as usize];
        let size = self.recording.block_size(id);
        let stack = self.stacks.entry(allocation.stack).or_default();
        let sums = [&mut self.allocated, &mut self.categories[allocation.category as usize], stack];
        for sum in sums {
            *sum = if is_held { sum.saturating_add(size) } else { sum.saturating_sub(size) };
        }
    }

    fn by_stack(&self) -> Vec<(u32, u64)> {
        self.stacks.iter().filter(|(_, bytes)| **bytes > 0).map(|(stack, bytes)| (*stack, *bytes)).collect()
    }
}

impl Recording {
    /// Returns the memory in the step with the peak in at most `count` buckets; `None`: it has too few requests.
    pub fn peak_step(&self, count: usize) -> Option<PeakStep> {
        let (window, step) = self.window_around(self.peak_event()?);
        if window.len() < MIN_EVENTS {
            return None;
        }
        let count = count.clamp(1, window.len());
        let bucket_of = |event: usize| (event - window.start) * count / window.len();
        let mut buckets: Vec<TimelineBucket> = Vec::with_capacity(count);
        // The event of each bucket's peak.
        let mut peaks: Vec<usize> = Vec::with_capacity(count);
        let mut replay = Replay::new(self);
        // Phase of the latest allocation, and of the one that made the peak.
        let (mut latest, mut at_peak) = (Phase::default(), (0, Phase::default()));
        for (index, event) in self.events[..window.end].iter().enumerate() {
            replay.apply(*event);
            if index < window.start {
                continue;
            }
            if let Event::Allocate(id) = *event {
                latest = self.allocations[id as usize].flags.phase();
            }
            if replay.allocated > at_peak.0 {
                at_peak = (replay.allocated, latest);
            }
            let is_new = buckets.len() <= bucket_of(index);
            if is_new {
                let categories = [0; Category::COUNT];
                buckets.push(TimelineBucket { allocated: 0, categories, reserved: 0, phase: latest });
                peaks.push(index);
            }
            let (Some(bucket), Some(peak)) = (buckets.last_mut(), peaks.last_mut()) else { continue };
            if is_new || replay.allocated > bucket.allocated {
                (bucket.allocated, bucket.categories, *peak) = (replay.allocated, replay.categories, index);
            }
            bucket.phase = latest;
        }
        Some(PeakStep { step, phase: at_peak.1, buckets, stacks: self.stacks_after(&peaks) })
    }

    /// Bytes of each stack after each of these events, in order.
    fn stacks_after(&self, events: &[usize]) -> Vec<Vec<(u32, u64)>> {
        let mut replay = Replay::new(self);
        let mut next = 0;
        let after = |event: &usize| {
            self.events[next..=*event].iter().for_each(|event| replay.apply(*event));
            next = event + 1;
            replay.by_stack()
        };
        events.iter().map(after).collect()
    }

    /// The event after which most is allocated.
    fn peak_event(&self) -> Option<usize> {
        let mut replay = Replay::new(self);
        let mut peak = None;
        for (index, event) in self.events.iter().enumerate() {
            replay.apply(*event);
            if peak.is_none_or(|(bytes, _)| replay.allocated > bytes) {
                peak = Some((replay.allocated, index));
            }
        }
        peak.map(|(_, index)| index)
    }

    /// The events of the step or pass that contains an event, and the number of the step.
    fn window_around(&self, event: usize) -> (Range<usize>, Option<usize>) {
        if !self.steps.is_empty() {
            let step = self.steps.partition_point(|end| *end <= event);
            let start = step.checked_sub(1).map_or(0, |before| self.steps[before]);
            let end = self.steps.get(step).copied().unwrap_or(self.events.len());
            return (start..end, Some(step).filter(|step| *step < self.steps.len()));
        }
        let pass = self.passes.partition_point(|begin| *begin <= event);
        let start = pass.checked_sub(1).map_or(0, |before| self.passes[before]);
        (start..self.passes.get(pass).copied().unwrap_or(self.events.len()), None)
    }

    /// Bytes of an allocation's block.
    fn block_size(&self, id: u32) -> u64 {
        /// Blocks of PyTorch's allocator are multiples of this.
        const ROUNDING: u64 = 512;
        let size = self.allocations[id as usize].size;
        if self.has_requested_sizes { size.checked_next_multiple_of(ROUNDING).unwrap_or(size) } else { size }
    }
}
