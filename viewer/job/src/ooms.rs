//! The first rank out of memory, and the memory of the other ranks at that time.

use std::ops::ControlFlow;
use std::path::Path;

use memlab_trace::{Model, OomView, ReadError, Record, SeekTarget, Sink, read_whole};

use crate::clocks::HostClock;
use crate::parallel::in_parallel;
use crate::statistics::median;
use crate::summary::RankSummary;

/// The first out-of-memory error of a job.
#[derive(Clone, Debug)]
pub struct FirstOom {
    /// The rank, as index in [`Job::ranks`](crate::Job::ranks).
    pub at: usize,
    /// The out-of-memory event.
    pub oom: OomView,
    /// Time by the clock of the first rank's host, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Memory of the other ranks at that time, in their order; empty: not looked up.
    pub others: Vec<RankAtOom>,
    /// All ranks that ran out of memory, in order of time.
    pub ranks: Vec<usize>,
}

impl FirstOom {
    /// Minimum, median and maximum of the bytes allocated by the other ranks; `None`: none had begun, or all had ended.
    pub fn allocated_by_others(&self) -> Option<[u64; 3]> {
        let held = |rank: &RankAtOom| match &rank.held {
            MemoryAtOom::Bytes { allocated_bytes, .. } => Some(*allocated_bytes),
            _ => None,
        };
        let bytes: Vec<u64> = self.others.iter().filter_map(held).collect();
        Some([*bytes.iter().min()?, median(bytes.iter().copied()), *bytes.iter().max()?])
    }
}

/// Memory of a rank at the time of the first out-of-memory error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankAtOom {
    /// The rank, as index in [`Job::ranks`](crate::Job::ranks).
    pub at: usize,
    /// Its memory.
    pub held: MemoryAtOom,
}

/// Memory of a rank at a moment, on its fullest device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryAtOom {
    /// The rank had not begun to use CUDA.
    NotBegun,
    /// Bytes held.
    Bytes {
        /// Bytes allocated.
        allocated_bytes: u64,
        /// Bytes reserved.
        reserved_bytes: u64,
        /// Bytes in use on the whole device.
        used_bytes: u64,
        /// Completed optimizer steps.
        steps_ended: u64,
    },
    /// The rank had ended.
    Ended,
    /// The trace no longer has that moment, or could not be reread.
    NotKept,
}

/// Returns the first out-of-memory error of a job, if any, without the memory of the others.
pub(crate) fn first_oom(ranks: &[RankSummary], clocks: &[HostClock]) -> Option<FirstOom> {
    let when = |at: usize| Some(begin(&ranks[at], clocks) + i128::from(ranks[at].first_oom.as_ref()?.time));
    let mut failed: Vec<(i128, usize)> = (0..ranks.len()).filter_map(|at| Some((when(at)?, at))).collect();
    failed.sort_unstable();
    let (moment, first) = *failed.first()?;
    Some(FirstOom {
        at: first,
        oom: ranks[first].first_oom.clone()?,
        unix_ns: moment.try_into().unwrap_or(0),
        others: Vec::new(),
        ranks: failed.into_iter().map(|(_, at)| at).collect(),
    })
}

/// Returns the memory of the other ranks at that time.
///
/// Rereads their traces up to that moment.
pub(crate) fn held_by_others(first: &FirstOom, ranks: &[RankSummary], clocks: &[HostClock]) -> Vec<RankAtOom> {
    let others = in_parallel(ranks.len(), |at| {
        let since_begin = i128::from(first.unix_ns) - begin(&ranks[at], clocks);
        (at != first.at).then(|| RankAtOom { at, held: held_at(&ranks[at], since_begin) })
    });
    others.into_iter().flatten().collect()
}

/// Start of a rank by the clock of the first rank's host, in nanoseconds since 1970.
fn begin(rank: &RankSummary, clocks: &[HostClock]) -> i128 {
    let clock = clocks.iter().find(|clock| clock.host == rank.header.host);
    i128::from(rank.header.start_unix_ns) - clock.map_or(0, |clock| i128::from(clock.ahead_ns))
}

fn held_at(rank: &RankSummary, since_begin: i128) -> MemoryAtOom {
    let Ok(time) = u64::try_from(since_begin) else { return MemoryAtOom::NotBegun };
    if rank.end.is_some() && time > rank.duration {
        return MemoryAtOom::Ended;
    }
    let device = rank.own_device().map(|device| device.view.index);
    match model_at(&rank.path, SeekTarget::Time(time)) {
        Ok(Some(model)) => match device.and_then(|device| model.device(device)) {
            Some(view) => MemoryAtOom::Bytes {
                allocated_bytes: view.allocated_bytes,
                reserved_bytes: view.reserved_bytes,
                used_bytes: view.used_bytes,
                steps_ended: model.steps_ended(),
            },
            None => MemoryAtOom::NotBegun,
        },
        Ok(None) | Err(_) => MemoryAtOom::NotKept,
    }
}

/// Returns the model of a trace at a moment; `None`: the trace no longer has that moment.
fn model_at(path: &Path, at: SeekTarget) -> Result<Option<Model>, ReadError> {
    let mut until = ReplayUntil { model: Model::new(), at };
    read_whole(path, &mut until, &mut |_| ControlFlow::Continue(()))?;
    Ok(at.is_ahead_of(&until.model).then_some(until.model))
}

/// Builds a model, and refuses events after a moment.
struct ReplayUntil {
    model: Model,
    at: SeekTarget,
}

impl Sink for ReplayUntil {
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        if self.at.is_before(&record, &self.model) {
            return ControlFlow::Break(());
        }
        self.model.apply(record);
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn restart(&mut self) {
        self.model = Model::new();
    }
}
