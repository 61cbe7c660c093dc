//! Times of the device's work. The work of a stream runs in order. Each piece starts when it is submitted or when the
//! previous one has ended. Streams do not wait for each other, and the program waits for none of them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use simgpu_observer::Submitted;

use crate::clock;
use crate::durations::duration;

/// Start and end, by the clock of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub end: u64,
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
