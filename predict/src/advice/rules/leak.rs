//! Memory that piles up, let go of when the next step or pass has made its own.

use crate::plan::Event;
use memlab_trace::AccumulationSpan;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::advice::block_lifetimes::{BlockLifetimes, Change, Span};
use crate::advice::candidates::Candidates;
use crate::advice::cost::Cost;
use crate::advice::report::{Advice, Figure, Kind};

/// A leak that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leak {
    /// The stacks that make what piles up.
    pub stacks: Vec<u32>,
    /// Over which steps or passes it does.
    pub span: AccumulationSpan,
    /// The line.
    pub place: String,
    /// The remedy.
    pub how: String,
    /// The finding.
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

/// The blocks of a step or pass are gone when the next one has made its own: a variable that held them holds those by then.
fn stopped(lifetimes: &BlockLifetimes<'_>, leak: &Leak) -> Change {
    let kept = kept(lifetimes, leak);
    // By stack: the event after which the next period has made its blocks.
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
        AccumulationSpan::Steps { .. } => &recording.steps,
        AccumulationSpan::Passes => &recording.passes,
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
