//! Times of the device's work. Nothing is computed, so the times follow a rule:
//!
//! - A kernel takes 2 µs, and the time of 32 bytes of memory traffic per thread.
//! - A copy between host and device takes 1 µs and the time of its bytes on the link. A copy on the device takes the
//!   time of twice its bytes in memory, and a fill that of its bytes in memory.
//! - The work of a stream runs in order. Each piece starts when it is submitted or when the previous one has ended.
//!   Streams do not wait for each other, and the program waits for none of them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use simgpu_observer::{Dimensions, MemoryKind, Speeds, Submitted, Task};

use crate::clock;

const KERNEL_NS: u64 = 2_000;
const TRANSFER_NS: u64 = 1_000;
const BYTES_OF_A_THREAD: u64 = 32;
const SECOND: u128 = 1_000_000_000;

/// Start and end, by the clock of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub end: u64,
}

/// Returns the duration of a task on a card, in nanoseconds.
pub fn duration(task: &Task, speeds: Speeds) -> u64 {
    let on_device = |kind: MemoryKind| !matches!(kind, MemoryKind::Pageable | MemoryKind::Pinned);
    match *task {
        Task::Kernel { grid, block, .. } => {
            let threads = count(grid).saturating_mul(count(block));
            KERNEL_NS + transfer(threads.saturating_mul(BYTES_OF_A_THREAD), speeds.memory)
        }
        Task::Copy { from, to, bytes, .. } if on_device(from) && on_device(to) => {
            TRANSFER_NS + transfer(bytes.saturating_mul(2), speeds.memory)
        }
        Task::Copy { bytes, .. } => TRANSFER_NS + transfer(bytes, speeds.link),
        Task::Fill { bytes, .. } => TRANSFER_NS + transfer(bytes, speeds.memory),
    }
}

fn count(dimensions: Dimensions) -> u64 {
    dimensions.into_iter().map(u64::from).fold(1, u64::saturating_mul)
}

fn transfer(bytes: u64, per_second: u64) -> u64 {
    (u128::from(bytes) * SECOND / u128::from(per_second.max(1))) as u64
}

/// End of the last work of each stream of a context.
#[derive(Default)]
struct Timeline {
    /// Generation of the clock.
    generation: usize,
    ends: HashMap<(usize, usize), u64>,
}

impl Timeline {
    fn add(&mut self, stream: (usize, usize), submitted_at: u64, duration: u64) -> Span {
        let end = self.ends.entry(stream).or_default();
        let start = submitted_at.max(*end);
        *end = start + duration;
        Span { start, end: *end }
    }
}

/// Returns the times of work that is submitted now.
pub fn schedule(work: &Submitted) -> Span {
    static TIMELINE: Mutex<Option<Timeline>> = Mutex::new(None);
    let duration = clock::steps(duration(&work.task, work.speeds));
    let stream = if work.stream <= 1 { 0 } else { work.stream };
    let mut timeline = TIMELINE.lock().unwrap_or_else(PoisonError::into_inner);
    if timeline.as_ref().is_some_and(|timeline| timeline.generation != clock::generation()) {
        *timeline = None; // Its ends are of another clock.
    }
    let timeline = timeline.get_or_insert_with(|| Timeline { generation: clock::generation(), ..Timeline::default() });
    timeline.add((work.context, stream), clock::now(), duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEEDS: Speeds = Speeds { memory: 1_000_000_000_000, link: 50_000_000_000 };

    #[test]
    fn durations_follow_from_size_and_card() {
        // GIVEN a card with 1 TB/s of memory and 50 GB/s to the host, WHEN the duration of work is computed
        let copy =
            |from, to| duration(&Task::Copy { from, to, devices: [0, 0], bytes: 1_000_000, is_async: true }, SPEEDS);
        let name = std::ptr::null();
        let kernel = Task::Kernel { name, grid: [1000, 1, 1], block: [100, 1, 1], shared: 0, registers: 32 };
        // THEN host copies use the link, and device copies use memory twice
        assert_eq!(copy(MemoryKind::Pinned, MemoryKind::Device), 1_000 + 20_000);
        assert_eq!(copy(MemoryKind::Device, MemoryKind::Pageable), 1_000 + 20_000);
        assert_eq!(copy(MemoryKind::Device, MemoryKind::Managed), 1_000 + 2_000);
        assert_eq!(duration(&Task::Fill { bytes: 1_000_000, value: 0, is_async: true }, SPEEDS), 1_000 + 1_000);
        // AND a kernel's duration depends on its threads
        assert_eq!(duration(&kernel, SPEEDS), 2_000 + 3_200);
    }

    #[test]
    fn a_stream_does_one_thing_after_the_other() {
        let mut timeline = Timeline::default();
        // GIVEN work on a stream that ends at 30, WHEN more is submitted to it before and after, and to another stream
        assert_eq!(timeline.add((1, 0), 10, 20), Span { start: 10, end: 30 });
        // THEN it starts after the end, or at once
        assert_eq!(timeline.add((1, 0), 15, 5), Span { start: 30, end: 35 });
        assert_eq!(timeline.add((1, 0), 50, 5), Span { start: 50, end: 55 });
        assert_eq!(timeline.add((1, 9), 15, 5), Span { start: 15, end: 20 });
    }
}
