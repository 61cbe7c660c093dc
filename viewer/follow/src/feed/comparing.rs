//! Compares the ranks of a job, again and again while they run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlab_job::{Job, RankSummary, TraceFile, ranks_of};
use memlab_trace::Scope;

/// Shortest interval between comparisons.
const COMPARISON_INTERVAL: Duration = Duration::from_secs(1);

/// Comparisons use at most this fraction of a core (1/N).
const CORE_SHARE_DIVISOR: u32 = 100;

/// The previous comparison, and the time of the next.
#[derive(Default)]
pub struct RankComparison {
    job: Option<Arc<Job>>,
    scope: Option<Scope>,
    is_current: bool,
    due: Option<Instant>,
}

impl RankComparison {
    /// Marks the comparison as outdated, after more of a trace was read.
    pub fn set_outdated(&mut self) {
        self.is_current = false;
    }

    /// Returns true if the comparison is outdated and the next one is due.
    pub fn is_overdue(&self) -> bool {
        !self.is_current && self.due.is_none_or(|due| Instant::now() >= due)
    }

    /// Returns true if a new comparison is needed: the previous one is overdue or has another scope.
    pub fn is_due(&self, scope: Option<Scope>) -> bool {
        scope != self.scope || self.is_overdue()
    }

    /// The previous comparison.
    pub fn job(&self) -> Option<Arc<Job>> {
        self.job.clone()
    }

    /// Compares the ranks of the newest job, as far as they are read.
    pub fn compare(&mut self, read: &[&RankSummary], scope: Option<Scope>) -> Option<Arc<Job>> {
        let began = Instant::now();
        let file = |summary: &&RankSummary| TraceFile { path: summary.path.clone(), header: summary.header.clone() };
        let files: Vec<TraceFile> = read.iter().filter(|summary| summary.header.rank.is_some()).map(file).collect();
        let newest = files.iter().max_by_key(|file| file.header.start_unix_ns);
        let members = newest.map_or_else(Vec::new, |newest| ranks_of(&newest.header, &files));
        let by_path: HashMap<&PathBuf, &RankSummary> = read.iter().map(|summary| (&summary.path, *summary)).collect();
        let ranks: Vec<RankSummary> =
            members.iter().filter_map(|file| by_path.get(&file.path).copied().cloned()).collect();
        self.job = (ranks.len() > 1).then(|| Arc::new(Job::of(ranks, scope)));
        (self.scope, self.is_current) = (scope, true);
        self.due = Some(Instant::now() + (began.elapsed() * CORE_SHARE_DIVISOR).max(COMPARISON_INTERVAL));
        self.job.clone()
    }
}
