//! Collects the course of a run during its replay: every change of a device's totals, and the phases of each thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use memlab_trace::record::{InRange, Phase, Ran, Record};
use memlab_trace::{Model, Observer, TimelinePoint, TotalsView};

/// Maximum number of changes kept for one device. Beyond it, only the smallest and the largest of four neighbours stay.
const CHANGES: usize = 1 << 20;

/// Maximum number of phase slices, beyond which none are kept, and of pieces of GPU work.
const SLICES: usize = 1 << 20;

/// Observes a replay and records its course, in bounded space.
#[derive(Default)]
pub struct EventCollector {
    devices: BTreeMap<i32, Changes>,
    threads: BTreeMap<u32, Thread>,
    ranges: BTreeMap<u32, Vec<(u64, RangeChange)>>,
    range_changes: usize,
    slices: usize,
    ran: Vec<Ran>,
    lost_ran: u64,
    /// Event of the current record.
    at_hand: Option<PendingEvent>,
    last_time: u64,
}

/// A thread entered a range, or left its innermost one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeChange {
    /// Entered the range of this name.
    Enter(Arc<str>),
    /// Left a range.
    Leave,
}

#[derive(Clone, Copy)]
struct PendingEvent {
    time: u64,
    device: i32,
    /// Thread, for an allocation.
    thread: Option<u32>,
    ends_step: bool,
}

/// Stay of a thread in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Phase.
    pub phase: Phase,
    /// Time of its first allocation there.
    pub begin: u64,
    /// Time of its last allocation there.
    pub end: u64,
}

#[derive(Default)]
struct Thread {
    slices: Vec<Slice>,
    open: Option<Slice>,
}

#[derive(Default)]
struct Changes(Vec<(u64, TotalsView)>);

impl EventCollector {
    /// Totals of a device after every change, in order of time.
    pub fn of(&self, device: i32) -> &[(u64, TotalsView)] {
        self.devices.get(&device).map(|changes| &*changes.0).unwrap_or_default()
    }

    /// Phases of each thread, in order of time; empty if there were too many.
    pub fn phases(&self) -> Vec<(u32, Vec<Slice>)> {
        if self.slices > SLICES {
            return Vec::new();
        }
        let of = |thread: &Thread| thread.slices.iter().copied().chain(thread.open).collect();
        let phases = self.threads.iter().map(|(id, thread)| (*id, of(thread)));
        phases
            .filter(|(_, slices): &(u32, Vec<Slice>)| slices.iter().any(|slice| slice.phase != Phase::Other))
            .collect()
    }

    /// True if there were too many phases to keep.
    pub fn lost_phases(&self) -> bool {
        self.slices > SLICES
    }

    /// Times at which each thread entered and left ranges, in order; empty if there were too many.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, &[(u64, RangeChange)])> {
        let is_lost = self.range_changes > SLICES;
        self.ranges.iter().filter(move |_| !is_lost).map(|(thread, changes)| (*thread, &**changes))
    }

    /// True if threads entered and left ranges too often to keep.
    pub fn lost_ranges(&self) -> bool {
        self.range_changes > SLICES
    }

    /// Work that ran on GPUs.
    pub(super) fn ran(&self) -> &[Ran] {
        &self.ran
    }

    /// Number of pieces of work that did not fit.
    pub fn lost_ran(&self) -> u64 {
        self.lost_ran
    }

    /// Records the change of a thread's range. memlab can move a thread from one range directly into any other.
    fn in_range(&mut self, model: &Model, event: &InRange) {
        let (before, after) = (model.range_path(model.range_of_thread(event.thread)), model.range_path(event.range));
        let shared = std::iter::zip(before.iter(), after.iter()).take_while(|(before, after)| before == after).count();
        self.range_changes += before.len() + after.len() - 2 * shared;
        if self.lost_ranges() {
            self.ranges.clear();
            return;
        }
        let time = event.time.max(self.last_time);
        let changes = self.ranges.entry(event.thread).or_default();
        changes.extend(before[shared..].iter().map(|_| (time, RangeChange::Leave)));
        changes.extend(after[shared..].iter().map(|name| (time, RangeChange::Enter(name.clone()))));
    }

    fn close(&mut self, thread: u32) {
        let Some(thread) = self.threads.get_mut(&thread) else { return };
        if let Some(slice) = thread.open.take() {
            self.slices += 1;
            if self.slices <= SLICES {
                thread.slices.push(slice);
            }
        }
    }

    fn allocated(&mut self, thread: u32, time: u64, phase: Phase) {
        let open = &mut self.threads.entry(thread).or_default().open;
        match open {
            Some(slice) if slice.phase == phase => slice.end = slice.end.max(time),
            _ => {
                self.close(thread);
                self.threads.entry(thread).or_default().open = Some(Slice { phase, begin: time, end: time });
            }
        }
    }
}

impl Observer for EventCollector {
    #[inline]
    fn before(&mut self, record: &Record<'_>, model: &Model) {
        if let Record::InRange(event) = record {
            self.in_range(model, event);
        }
        if let Record::Ran(event) = record {
            if self.ran.len() < SLICES {
                self.ran.push(*event);
            } else {
                self.lost_ran += 1;
            }
        }
        let at = |time, device, thread| Some(PendingEvent { time, device, thread, ends_step: false });
        self.at_hand = match record {
            Record::Alloc(event) => at(event.time, event.device, Some(event.thread)),
            Record::Free(event) => at(event.time, event.device, None),
            Record::DriverAlloc(event) => at(event.time, event.device, None),
            Record::DriverFree(event) => at(event.time, event.device, None),
            Record::Used(event) => at(event.time, event.device, None),
            Record::Step(event) => Some(PendingEvent { time: event.time, device: -1, thread: None, ends_step: true }),
            _ => None,
        };
    }

    #[inline]
    fn after(&mut self, model: &Model) {
        let Some(PendingEvent { time, device, thread, ends_step }) = self.at_hand else { return };
        // Events of different threads may be out of order by microseconds; a track must be in order.
        let time = time.max(self.last_time);
        self.last_time = time;
        if ends_step {
            for thread in self.threads.keys().copied().collect::<Vec<_>>() {
                self.close(thread);
            }
        }
        if let Some(thread) = thread {
            self.allocated(thread, time, model.phase());
        }
        let totals = model.totals(device);
        // Skips an unknown device, and one without memory so far.
        if totals != TotalsView::default() || self.devices.contains_key(&device) {
            let changes = self.devices.entry(device).or_insert_with(|| Changes::before(model, device, time));
            changes.note(time, totals);
        }
    }
}

impl Changes {
    /// History that a condensed trace retains from before its first event.
    fn before(model: &Model, device: i32, time: u64) -> Self {
        let timeline = model.timeline(device);
        let mut changes = Vec::new();
        for TimelinePoint { time: begin, allocated, reserved, used } in timeline.points {
            if begin.saturating_add(timeline.width) > time {
                break;
            }
            let mut at = |share: u64, allocated_bytes, reserved_bytes, used_bytes| {
                let time = begin + timeline.width / 4 * share;
                changes.push((time, TotalsView { allocated_bytes, reserved_bytes, used_bytes }));
            };
            at(0, allocated.max, reserved.max, used.max);
            at(1, allocated.min, reserved.min, used.min);
            at(2, allocated.last, reserved.last, used.last);
        }
        Self(changes)
    }

    #[inline]
    fn note(&mut self, time: u64, totals: TotalsView) {
        match self.0.last_mut() {
            Some((_, last)) if *last == totals => {}
            // A state that ends at once is not shown.
            Some((at, last)) if *at == time && last.allocated_bytes <= totals.allocated_bytes => *last = totals,
            _ => self.0.push((time, totals)),
        }
        if self.0.len() > CHANGES {
            self.thin_out();
        }
    }

    /// Keeps the least and the most allocated of every four, in their order.
    fn thin_out(&mut self) {
        let kept = self.0.chunks(4).flat_map(|four| {
            let by = |index: &usize| four[*index].1.allocated_bytes;
            let least = (0..four.len()).min_by_key(by).unwrap_or(0);
            let most = (0..four.len()).max_by_key(by).unwrap_or(0);
            let (first, second) = (least.min(most), least.max(most));
            std::iter::once(four[first]).chain((first != second).then(|| four[second]))
        });
        self.0 = kept.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_out_keeps_what_stands_out() {
        // GIVEN a million changes with one high point
        let mut changes = Changes::default();
        for time in 0..(CHANGES as u64 + 10) {
            let allocated_bytes = if time == 777_777 { 1 << 40 } else { 1000 + time % 2 };
            changes.note(time, TotalsView { allocated_bytes, ..TotalsView::default() });
        }
        // THEN half of them are left, in order, and the high point is among them
        assert!(changes.0.len() < CHANGES / 2 + 20, "{}", changes.0.len());
        assert!(changes.0.is_sorted_by_key(|(time, _)| *time));
        assert_eq!(changes.0.iter().filter(|(_, totals)| totals.allocated_bytes == 1 << 40).count(), 1);
    }
}
