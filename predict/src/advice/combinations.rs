//! Combinations of advice, replayed on one recording.

use crate::advice::block_lifetimes::{BlockLifetimes, Change};
use crate::advice::cost::Cost;
use crate::advice::report::{Combination, Kind, is_about_as_much};

/// Pairs of advice that exclude each other: they change the same memory or the same line of the program.
const EXCLUSIVE: [(Kind, Kind); 2] =
    [(Kind::Checkpoint, Kind::OffloadActivations), (Kind::ChunkedLoss, Kind::OffloadActivations)];

/// Returns all non-empty combinations of compatible advice, with their results.
pub(crate) fn all(lifetimes: &BlockLifetimes<'_>, changes: &[(Kind, Cost, Change)]) -> Vec<Combination> {
    let before = lifetimes.peak().bytes;
    let chosen = |bits: u32| changes.iter().enumerate().filter(move |(index, _)| bits & 1 << index != 0);
    let sets = (1..1_u32 << changes.len()).filter_map(|bits| {
        let kinds: Vec<Kind> = chosen(bits).map(|(_, (kind, ..))| *kind).collect();
        let is_exclusive = |(one, other): &(Kind, Kind)| kinds.contains(one) && kinds.contains(other);
        if EXCLUSIVE.iter().any(is_exclusive) {
            return None;
        }
        let change = lifetimes.composed(chosen(bits).map(|(_, (.., change))| change));
        let bytes_after = lifetimes.peak_with(&change).bytes;
        let cost = chosen(bits).map(|(_, (_, cost, _))| *cost).sum();
        Some(Combination { kinds, saved_bytes: before.saturating_sub(bytes_after), bytes_after, cost })
    });
    sets.collect()
}

/// Returns the combination with the lowest peak and the fewest pieces of advice.
///
/// If others save about as much with at least as many pieces, and more than each piece alone, returns the cheapest of them.
pub(crate) fn lowest(sets: &[Combination]) -> Option<Combination> {
    let lowest = sets.iter().min_by_key(|set| (set.bytes_after, set.kinds.len())).filter(|set| set.kinds.len() > 1)?;
    let alone = sets.iter().filter(|set| set.kinds.len() == 1).map(|set| set.bytes_after).min().unwrap_or(u64::MAX);
    let is_alike = |set: &&Combination| {
        set.kinds.len() >= lowest.kinds.len()
            && set.bytes_after < alone
            && is_about_as_much(set.saved_bytes, lowest.saved_bytes)
    };
    sets.iter().filter(is_alike).min_by_key(|set| (set.cost.rank(), set.bytes_after)).cloned()
}

/// Returns the combination that reaches a target at the lowest known cost; of equal ones, that with the fewest pieces.
pub(crate) fn reaching(sets: &[Combination], target: u64) -> Option<Combination> {
    let reaching = sets.iter().filter(|set| set.bytes_after <= target);
    reaching.min_by_key(|set| (set.cost.rank(), set.kinds.len(), set.bytes_after)).cloned()
}
