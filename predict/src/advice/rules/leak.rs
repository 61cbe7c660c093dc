//! Frees memory that accumulates, once the next step or pass has allocated its own.

use crate::plan::Event;
use memlab_trace::AccumulationSpan;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Span};
use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::report::{Advice, Figure, Kind};

/// A leak found in the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leak {
    /// Stacks that allocate the accumulating memory.
    pub stacks: Vec<u32>,
    /// Steps or passes over which it accumulates.
    pub span: AccumulationSpan,
    /// Line that allocates it.
    pub place: String,
    /// Remedy.
    pub how: String,
    /// Evidence.
    pub because: String,
}

pub(crate) fn advise(lifetimes: &BlockLifetimes<'_>, leaks: &[Leak], candidates: &mut Candidates) {
    for leak in leaks {
        let bytes_after = lifetimes.peak_with(&stopped(lifetimes, leak)).bytes;
        let advice = Advice {
            kind: Kind::Leak,
            place: leak.place.clone(),
            saved_bytes: lifetimes.peak().bytes.saturating_sub(bytes_after),
            figure: Figure::Allocated,
            bytes_after,
            cost: Cost::ZERO,
            how: leak.how.clone(),
            because: leak.because.clone(),
        };
        candidates.add(advice, None);
    }
}

/// A block that outlives the step or pass that made it.
struct LeakedBlock {
    id: u32,
    stack: u32,
    period: usize,
}

/// Frees the blocks of a step or pass once the next one has allocated its own: the variable that held them then holds
/// the new ones.
fn stopped(lifetimes: &BlockLifetimes<'_>, leak: &Leak) -> Change {
    let kept = kept(lifetimes, leak);
    // By stack: event after which the next period has allocated its blocks.
    let mut next: FxHashMap<u32, usize> = FxHashMap::default();
    let mut change = Change::default();
    for period in kept.chunk_by(|one, other| one.period == other.period).rev() {
        for block in period {
            let Span { from, to } = lifetimes.spans[block.id as usize];
            let gone = next.get(&block.stack).map(|gone| vec![Span { from, to: to.min(*gone) }]);
            change.moved.extend(gone.map(|spans| (block.id, spans)));
        }
        let made = period.last().map_or(0, |block| lifetimes.spans[block.id as usize].from + 1);
        next.extend(period.iter().map(|block| (block.stack, made)));
    }
    change
}

fn kept(lifetimes: &BlockLifetimes<'_>, leak: &Leak) -> Vec<LeakedBlock> {
    let recording = lifetimes.recording;
    let begins = match leak.span {
        AccumulationSpan::Steps { .. } | AccumulationSpan::Released { .. } if !recording.steps.is_empty() => {
            &recording.steps
        }
        _ => &recording.passes,
    };
    let stacks: FxHashSet<u32> = leak.stacks.iter().copied().collect();
    let is_made_there = |id: &u32| stacks.contains(&recording.allocations[*id as usize].stack);
    let made = recording.events.iter().filter_map(|event| match *event {
        Event::Allocate(id) => Some(id).filter(is_made_there),
        _ => None,
    });
    let made: Vec<u32> = made.collect();
    let last = made.last().map_or(0, |id| lifetimes.spans[*id as usize].from + 1);
    let kept = made.into_iter().filter_map(|id| {
        let Span { from, to } = lifetimes.spans[id as usize];
        let period = begins.partition_point(|begin| *begin <= from);
        let end = begins.get(period).map_or(last, |end| last.min(*end));
        (to >= end).then(|| LeakedBlock { id, stack: recording.allocations[id as usize].stack, period })
    });
    kept.collect()
}
