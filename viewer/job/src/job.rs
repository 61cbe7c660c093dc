//! A job: its ranks, and what comes of comparing them.

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
    /// Its ranks, by number.
    pub ranks: Vec<RankSummary>,
    /// Traces that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// Ranks without a trace.
    pub missing: MissingRanks,
    /// Whose lines are compared.
    pub scope: Scope,
    /// The clock of each host, the first rank's first.
    pub clocks: Vec<HostClock>,
    /// The least, the median and the most of each figure.
    pub figures: Vec<Figure>,
    /// Which ranks differ from the others, and in what.
    pub differences: Vec<Difference>,
    /// Whether ranks hold different stages of a pipeline: then each is compared with those at the same ones.
    pub has_stages: bool,
    /// Who ran out of memory first.
    pub first_oom: Option<FirstOom>,
    /// Contexts on devices of others, the largest first.
    pub stray_contexts: Vec<ForeignContext>,
}

/// A trace that could not be read, and why.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}

/// Ranks that the job has and that have no trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingRanks {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first: Vec<u32>,
}

impl Job {
    /// Reads the traces of a job's ranks. `scope`: whose lines are compared; `None`: the libraries' where most ranks' own lines
    /// only call them.
    ///
    /// # Errors
    ///
    /// If none of them can be read: what is wrong with the first.
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

    /// Compares ranks that were read before, by rank. Nothing is read: what the others held at the first out-of-memory stays open.
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

    /// The figure of this kind; `None`: it is 0 everywhere.
    pub fn figure(&self, kind: FigureKind) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.kind == kind)
    }

    /// When a rank began, by the clock of the first rank's host: nanoseconds since 1970.
    pub fn begin_unix_ns(&self, rank: &RankSummary) -> u64 {
        let ahead = self.clocks.iter().find(|clock| clock.host == rank.header.host).map_or(0, |clock| clock.ahead_ns);
        rank.header.start_unix_ns.saturating_add_signed(ahead.saturating_neg())
    }

    /// From when to when its ranks ran, by the clock of the first rank's host: nanoseconds since 1970.
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
