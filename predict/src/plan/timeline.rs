//! Memory over the recorded steps at a batch size.

use crate::allocator::{Card, Settings};
use memlab_trace::Category;
use memlab_trace::record::Phase;

use crate::plan::family::Family;
use crate::plan::recording::Event;
use crate::plan::steady::Position;

/// Consecutive requests of the recording.
#[derive(Clone, Copy, Debug)]
pub struct TimelineBucket {
    /// Peak bytes allocated.
    pub allocated: u64,
    /// Bytes of each category at that peak, in the order of [`Category::ALL`].
    pub categories: [u64; Category::COUNT],
    /// Peak bytes reserved.
    pub reserved: u64,
    /// Phase of the program at the end.
    pub phase: Phase,
}

/// Memory over the recorded steps.
#[derive(Clone, Debug)]
pub struct PlannedTimeline {
    /// Buckets with equal numbers of requests.
    pub buckets: Vec<TimelineBucket>,
    /// Indices of the buckets in which an optimizer step ended.
    pub steps: Vec<usize>,
}

impl Family {
    /// Replays the recording once with allocations of these sizes ([`Family::sizes`]), on a card that is never full.
    ///
    /// Splits it into at most `count` buckets.
    pub fn timeline(&self, sizes: &[u64], settings: &Settings, count: usize) -> PlannedTimeline {
        let events = &self.recording.events;
        let count = count.clamp(1, events.len().max(1));
        let bucket_of = |event: usize| (event * count / events.len().max(1)).min(count - 1);
        let mut allocator = self.allocator(settings, Card::UNLIMITED);
        let mut held = [0; Category::COUNT];
        let mut phase = Phase::Other;
        let mut buckets: Vec<TimelineBucket> = Vec::with_capacity(count);
        for (event, what) in events.iter().enumerate() {
            // The block is known until it is freed.
            if let Event::Free(id) | Event::FreeRequested(id) = *what {
                let bytes: &mut u64 = &mut held[self.category(id)];
                *bytes = bytes.saturating_sub(allocator.block_size(id).unwrap_or(0));
            }
            if let Some(request) = self.request_at(Position { event, repetition: 0 }, sizes) {
                let _ = allocator.apply(request);
            }
            if let Event::Allocate(id) = *what {
                held[self.category(id)] += allocator.block_size(id).unwrap_or(0);
                phase = self.recording.allocations[id as usize].flags.phase();
            }
            let counters = allocator.counters();
            let (allocated, reserved) = (counters.allocated.current, counters.reserved.current);
            if buckets.len() <= bucket_of(event) {
                buckets.push(TimelineBucket { allocated, categories: held, reserved, phase });
            }
            if let Some(bucket) = buckets.last_mut() {
                if allocated > bucket.allocated {
                    (bucket.allocated, bucket.categories) = (allocated, held);
                }
                bucket.reserved = bucket.reserved.max(reserved);
                bucket.phase = phase;
            }
        }
        let steps = self.recording.steps.iter().map(|event| bucket_of((*event).min(events.len().max(1) - 1))).collect();
        PlannedTimeline { buckets, steps }
    }

    fn category(&self, id: u32) -> usize {
        let category = self.recording.allocations[id as usize].category;
        Category::ALL.iter().position(|other| *other == category).unwrap_or(Category::COUNT - 1)
    }
}
