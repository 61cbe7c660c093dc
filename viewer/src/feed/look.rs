//! One snapshot of all traces.

use std::sync::Arc;

use super::follow::Followed;
use crate::query::{Comparison, ComparisonQuery, Detail, Query};
use crate::snapshot::{ProcessSnapshot, Snapshot};

/// Makes the snapshot that a query asks for. `known` is the comparison made last. Returns `None` if `is_stale` says so
/// before the snapshot is done.
pub fn look(
    followed: &mut [Followed],
    query: &Query,
    known: Option<Arc<Comparison>>,
    is_stale: &dyn Fn() -> bool,
) -> Option<Snapshot> {
    let process = |followed: &mut Followed| {
        let is_shown = query.trace.as_ref().is_none_or(|trace| trace == followed.path());
        let detail = if is_shown { query.detail } else { Detail::None };
        followed.set_scope(query.scope);
        match &query.cursor {
            None => Some(followed.snapshot(detail)),
            Some(cursor) => match followed.snapshot_at(cursor, detail, is_stale) {
                None if is_stale() => None,
                // The trace can no longer be read; the snapshot says why.
                None => Some(followed.snapshot(detail)),
                found => found,
            },
        }
    };
    let mut processes: Vec<ProcessSnapshot> = followed.iter_mut().map(process).collect::<Option<_>>()?;
    processes.sort_by_key(|process| (process.header.rank, process.header.start_unix_ns, process.header.pid));
    let comparison = match &query.compare {
        None => None,
        Some(compare) => match known.filter(|known| known.of == *compare) {
            None => compare_moments(followed, compare, is_stale),
            known => known,
        },
    };
    (!is_stale()).then(|| Snapshot {
        processes,
        cursor: query.cursor.clone(),
        detail: query.detail,
        trace: query.trace.clone(),
        comparison,
    })
}

fn compare_moments(
    followed: &mut [Followed],
    compare: &ComparisonQuery,
    is_stale: &dyn Fn() -> bool,
) -> Option<Arc<Comparison>> {
    let followed = followed.iter_mut().find(|followed| followed.path() == compare.trace)?;
    let before = followed.holdings(compare.device, compare.before, is_stale)?;
    let after = followed.holdings(compare.device, compare.after, is_stale)?;
    Some(Arc::new(Comparison { of: compare.clone(), before, after }))
}
