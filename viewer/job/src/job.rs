//! A job: its ranks, and the results of comparing them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;

use memlab_trace::{ReadError, Scope};

use crate::clocks::{HostClock, clocks};
use crate::differences::{Difference, differences, have_stages};
use crate::figures::{Figure, FigureKind, figures};
use crate::foreign_contexts::{ForeignContext, foreign_contexts};
use crate::interned::Interned;
use crate::ooms::{FirstOom, first_oom, held_by_others};
use crate::parallel::in_parallel;
use crate::summary::RankSummary;

/// The most missing ranks that are named.
const NAMED_RANKS: usize = 16;

/// The ranks of one job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Ranks, by number.
    pub ranks: Vec<RankSummary>,
    /// Traces that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// Ranks without a trace.
    pub missing: MissingRanks,
    /// Scope of the compared lines.
    pub scope: Scope,
    /// Clock of each host, first the host of the first rank.
    pub clocks: Vec<HostClock>,
    /// Minimum, median and maximum of each figure.
    pub figures: Vec<Figure>,
    /// Ranks that differ from the others, and the memory in which they differ.
    pub differences: Vec<Difference>,
    /// True if ranks hold different stages of a pipeline.
    ///
    /// Each is then compared with ranks of the same stages.
    pub has_stages: bool,
    /// First out-of-memory error of the job.
    pub first_oom: Option<FirstOom>,
    /// Contexts on other ranks' devices, the largest first.
    pub stray_contexts: Vec<ForeignContext>,
}

/// A trace that could not be read, and the reason.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Path of the trace.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}

/// Ranks of the job without a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingRanks {
    /// Number of missing ranks.
    pub count: u64,
    /// The first missing ranks.
    pub first: Vec<u32>,
}

impl Job {
    /// Reads the traces of a job's ranks.
    ///
    /// `scope`: scope of the compared lines; `None`: library lines, if most ranks' own lines only call libraries.
    ///
    /// # Errors
    ///
    /// If no trace can be read: the error of the first.
    pub fn read(traces: &[PathBuf], scope: Option<Scope>) -> Result<Self, ReadError> {
        let names = Interned::default();
        let read = in_parallel(traces.len(), |number| {
            RankSummary::read(&traces[number], &names, &mut |_| ControlFlow::Continue(()))
        });
        let (mut ranks, mut unreadable, mut first_error) = (Vec::new(), Vec::new(), None);
        for (path, result) in std::iter::zip(traces, read) {
            match result {
                Ok(rank) => ranks.push(rank),
                Err(error) => {
                    unreadable.push(Unreadable { path: path.clone(), why: error.to_string() });
                    first_error = first_error.or(Some(error));
                }
            }
        }
        if let Some(error) = first_error.filter(|_| ranks.is_empty()) {
            return Err(error);
        }
        ranks.sort_by(|a, b| (a.rank(), &a.path).cmp(&(b.rank(), &b.path)));
        let mut job = Self { unreadable, ..Self::of(ranks, scope) };
        if let Some(first) = &mut job.first_oom {
            first.others = held_by_others(first, &job.ranks, &job.clocks);
        }
        Ok(job)
    }

    /// Compares ranks that were read before, by rank.
    ///
    /// Reads nothing, so the memory of the others at the first out-of-memory error stays unknown.
    pub fn of(ranks: Vec<RankSummary>, scope: Option<Scope>) -> Self {
        let are_libraries = ranks.iter().filter(|rank| rank.scope == Scope::Libraries).count();
        let common = if 2 * are_libraries > ranks.len() { Scope::Libraries } else { Scope::Users };
        let scope = scope.unwrap_or(common);
        let clocks = clocks(&ranks);
        Self {
            missing: missing(&ranks),
            scope,
            figures: figures(&ranks, scope),
            differences: differences(&ranks, scope),
            has_stages: have_stages(&ranks),
            first_oom: first_oom(&ranks, &clocks),
            stray_contexts: foreign_contexts(&ranks),
            unreadable: Vec::new(),
            clocks,
            ranks,
        }
    }

    /// Returns the figure of this kind; `None`: it is 0 everywhere.
    pub fn figure(&self, kind: FigureKind) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.kind == kind)
    }

    /// Start of a rank by the clock of the first rank's host, in nanoseconds since 1970.
    pub fn begin_unix_ns(&self, rank: &RankSummary) -> u64 {
        let ahead = self.clocks.iter().find(|clock| clock.host == rank.header.host).map_or(0, |clock| clock.ahead_ns);
        rank.header.start_unix_ns.saturating_add_signed(ahead.saturating_neg())
    }

    /// Start and end of the job by the clock of the first rank's host, in nanoseconds since 1970.
    pub fn span_unix_ns(&self) -> (u64, u64) {
        let begin = self.ranks.iter().map(|rank| self.begin_unix_ns(rank)).min().unwrap_or(0);
        let end = self.ranks.iter().map(|rank| self.begin_unix_ns(rank).saturating_add(rank.duration)).max();
        (begin, end.unwrap_or(begin))
    }
}

fn missing(ranks: &[RankSummary]) -> MissingRanks {
    let Some(size) = ranks.first().and_then(|rank| rank.header.world_size) else { return MissingRanks::default() };
    let there: BTreeSet<u32> = ranks.iter().map(RankSummary::rank).filter(|rank| *rank < size).collect();
    MissingRanks {
        count: u64::from(size) - there.len() as u64,
        first: (0..size).filter(|rank| !there.contains(rank)).take(NAMED_RANKS).collect(),
    }
}
