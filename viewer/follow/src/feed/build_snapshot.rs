//! Builds one snapshot of all traces.

use std::sync::Arc;

use super::holders;
use super::roster::Roster;
use crate::snapshot::Snapshot;
use memlab_base::query::{Comparison, ComparisonQuery, Detail, Query};

/// Builds the snapshot that a query asks for.
///
/// `known` is the previous comparison. Returns `None` if `is_stale` returns true before the snapshot is complete.
pub fn build_snapshot(
    roster: &mut Roster,
    query: &Query,
    known: Option<Arc<Comparison>>,
    is_stale: &dyn Fn() -> bool,
) -> Option<Snapshot> {
    let mut processes = Vec::with_capacity(roster.len());
    for trace in roster.traces_mut() {
        let Some(followed) = &mut trace.whole else {
            processes.push(trace.summary.snapshot(query.cursor.as_ref()));
            continue;
        };
        let is_shown = query.trace.as_ref().is_none_or(|trace| trace == followed.path());
        let detail = if is_shown { query.detail } else { Detail::None };
        followed.set_scope(query.scope);
        processes.push(match &query.cursor {
            None => followed.snapshot(detail),
            Some(cursor) => match followed.snapshot_at(cursor, detail, is_stale) {
                None if is_stale() => return None,
                // The trace can no longer be read; the snapshot contains the reason.
                None => followed.snapshot(detail),
                Some(found) => found,
            },
        });
    }
    processes.sort_by_key(|process| (process.header.rank, process.header.start_unix_ns, process.header.pid));
    let comparison = match &query.compare {
        None => None,
        Some(compare) => match known.filter(|known| known.of == *compare) {
            None => compare_moments(roster, compare, is_stale),
            known => known,
        },
    };
    let held = query.holders.as_ref().and_then(|query| holders::answer(roster, query));
    (!is_stale()).then(|| Snapshot {
        cards: Arc::default(),
        processes,
        cursor: query.cursor.clone(),
        detail: query.detail,
        trace: query.trace.clone(),
        comparison,
        holders: held.map(Arc::new),
        job: roster.compare_ranks(query.scope),
    })
}

fn compare_moments(
    roster: &mut Roster,
    compare: &ComparisonQuery,
    is_stale: &dyn Fn() -> bool,
) -> Option<Arc<Comparison>> {
    let mut wholes = roster.traces_mut().iter_mut().filter_map(|trace| trace.whole.as_mut());
    let followed = wholes.find(|followed| followed.path() == compare.trace)?;
    let before = followed.holdings(compare.device, compare.before, is_stale)?;
    let after = followed.holdings(compare.device, compare.after, is_stale)?;
    Some(Arc::new(Comparison { of: compare.clone(), before, after }))
}
