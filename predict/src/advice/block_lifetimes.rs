//! Allocated bytes after each event of a recording, also with changes applied.

use crate::plan::{Event, Recording, peak_live_bytes};
use memlab_trace::record::Phase;
use rustc_hash::{FxHashMap, FxHashSet};

/// Lifetime of a block: after events `from..to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub from: usize,
    pub to: usize,
}

/// Effect of a change on the blocks of a run.
#[derive(Clone, Default, Debug)]
pub(crate) struct Change {
    /// Blocks with other lifetimes; each appears once.
    pub moved: Vec<(u32, Vec<Span>)>,
    /// Blocks with other sizes; each appears once.
    pub resized: Vec<(u32, u64)>,
    /// Bytes needed briefly before an event, on top of those allocated then.
    pub needed: Vec<(usize, u64)>,
}

/// Peak of allocated bytes, and its event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peak {
    pub bytes: u64,
    /// The peak follows this event.
    pub event: usize,
}

/// The blocks of a recording over its events.
pub(crate) struct BlockLifetimes<'r> {
    pub recording: &'r Recording,
    /// Lifetime of each block, by id.
    pub spans: Vec<Span>,
    /// Change of the allocated bytes at each event. One more entry than events, for blocks that are never freed.
    changes: Vec<i64>,
    peak: Peak,
}

impl<'r> BlockLifetimes<'r> {
    pub fn new(recording: &'r Recording) -> Self {
        let end = recording.events.len();
        let mut spans = vec![Span { from: end, to: end }; recording.allocations.len()];
        for (at, event) in recording.events.iter().enumerate() {
            match *event {
                Event::Allocate(id) => spans[id as usize].from = at,
                Event::Free(id) | Event::FreeRequested(id) => spans[id as usize].to = at,
                Event::FreeCompleted(_) | Event::EmptyCache => {}
            }
        }
        let mut changes = vec![0; end + 1];
        for (span, allocation) in spans.iter().zip(&recording.allocations) {
            add(&mut changes, *span, allocation.size as i64);
        }
        let peak = highest(&changes, Vec::new());
        Self { recording, spans, changes, peak }
    }

    /// Returns the allocated bytes after each event.
    pub fn levels(&self) -> Vec<u64> {
        running(&self.changes).collect()
    }

    /// Returns true if a block is live after an event.
    pub fn is_live(&self, id: u32, event: usize) -> bool {
        let Span { from, to } = self.spans[id as usize];
        from <= event && event < to
    }

    pub fn size(&self, id: u32) -> u64 {
        self.recording.allocations[id as usize].size
    }

    /// Returns the events that allocate in a phase, in order.
    pub fn allocated_in(&self, phase: Phase) -> impl Iterator<Item = usize> {
        let recording = self.recording;
        recording.events.iter().enumerate().filter_map(move |(at, event)| match *event {
            Event::Allocate(id) if recording.allocations[id as usize].flags.phase() == phase => Some(at),
            _ => None,
        })
    }

    /// Combines several changes into one.
    ///
    /// A block is absent when any change removes it. It is live outside its recorded lifetime when any change extends
    /// it. Its size is the smallest that a change gives it.
    pub fn composed<'c>(&self, changes: impl Iterator<Item = &'c Change>) -> Change {
        let mut moved: FxHashMap<u32, Vec<Span>> = FxHashMap::default();
        let mut resized: FxHashMap<u32, u64> = FxHashMap::default();
        let mut needed = Vec::new();
        for change in changes {
            for (id, spans) in &change.moved {
                let own = self.spans[*id as usize];
                moved
                    .entry(*id)
                    .and_modify(|before| *before = both(own, before, spans))
                    .or_insert_with(|| spans.clone());
            }
            for (id, size) in &change.resized {
                resized.entry(*id).and_modify(|before| *before = (*before).min(*size)).or_insert(*size);
            }
            needed.extend_from_slice(&change.needed);
        }
        Change { moved: moved.into_iter().collect(), resized: resized.into_iter().collect(), needed }
    }

    /// Returns the peak bytes of the blocks selected by `counts`.
    pub fn peak_live_bytes(&self, counts: impl Fn(u32) -> bool) -> u64 {
        peak_live_bytes(&self.recording.events, |id| counts(id as u32).then(|| self.size(id as u32)))
    }

    /// Returns the recorded peak.
    pub fn peak(&self) -> Peak {
        self.peak
    }

    /// Returns the peak with a change applied.
    pub fn peak_with(&self, change: &Change) -> Peak {
        let mut changes = self.changes.clone();
        let sizes: FxHashMap<u32, u64> = change.resized.iter().copied().collect();
        let moved = change.moved.iter().map(|(id, spans)| (*id, &**spans));
        let is_moved: FxHashSet<u32> = change.moved.iter().map(|(id, _)| *id).collect();
        let stays = sizes.keys().filter(|id| !is_moved.contains(id));
        let resized = stays.map(|id| (*id, std::slice::from_ref(&self.spans[*id as usize])));
        for (id, spans) in moved.chain(resized) {
            add(&mut changes, self.spans[id as usize], -(self.size(id) as i64));
            let size = sizes.get(&id).copied().unwrap_or_else(|| self.size(id));
            spans.iter().for_each(|span| add(&mut changes, *span, size as i64));
        }
        highest(&changes, change.needed.clone())
    }
}

/// Returns the peak of the changes at each event, including the bytes needed briefly before some events.
fn highest(changes: &[i64], mut needed: Vec<(usize, u64)>) -> Peak {
    needed.sort_unstable();
    let mut needed = needed.into_iter().peekable();
    let mut peak = Peak { bytes: 0, event: 0 };
    let mut before = 0;
    for (event, level) in running(changes).enumerate() {
        let mut most = level;
        while let Some((_, bytes)) = needed.next_if(|(at, _)| *at <= event) {
            most = most.max(before + bytes);
        }
        if most > peak.bytes {
            peak = Peak { bytes: most, event };
        }
        before = level;
    }
    peak
}

/// Returns the lifetimes of a block that two changes move.
fn both(own: Span, one: &[Span], other: &[Span]) -> Vec<Span> {
    let mut ends: Vec<usize> = one.iter().chain(other).chain([&own]).flat_map(|span| [span.from, span.to]).collect();
    ends.sort_unstable();
    ends.dedup();
    let is_in = |spans: &[Span], at: usize| spans.iter().any(|span| span.from <= at && at < span.to);
    let parts = ends.windows(2).map(|pair| Span { from: pair[0], to: pair[1] });
    let is_there = |part: &Span| match is_in(&[own], part.from) {
        true => is_in(one, part.from) && is_in(other, part.from),
        false => is_in(one, part.from) || is_in(other, part.from),
    };
    parts.filter(is_there).collect()
}

fn add(changes: &mut [i64], span: Span, bytes: i64) {
    changes[span.from] += bytes;
    changes[span.to] -= bytes;
}

fn running(changes: &[i64]) -> impl Iterator<Item = u64> {
    changes.iter().scan(0_i64, |level, change| {
        *level += change;
        Some(u64::try_from(*level).unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_two_changes_move_is_away_for_each_of_them() {
        let span = |from, to| Span { from, to };
        let own = span(10, 50);
        // GIVEN a block that one change removes for a while and another removes for longer
        let (one, other) = ([span(10, 20), span(40, 50)], [span(10, 15), span(45, 50)]);
        // THEN it is absent whenever one of them removes it
        let times: Vec<usize> =
            (0..60).filter(|at| both(own, &one, &other).iter().any(|s| (s.from..s.to).contains(at))).collect();
        assert_eq!(times, (10..15).chain(45..50).collect::<Vec<_>>());
        // AND a block whose lifetime one change extends lives longer
        let longer = [span(5, 60)];
        assert_eq!(both(own, &longer, &[own]), [span(5, 10), span(10, 50), span(50, 60)]);
    }
}
