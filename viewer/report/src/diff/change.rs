//! The change of a figure, and the order of changes.

use std::cmp::Reverse;

/// Bytes, or nanoseconds, before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

impl Change {
    /// Difference; negative: less after than before.
    pub fn by(self) -> i64 {
        memlab_units::format::signed_difference(self.after, self.before)
    }
}

/// Sorts the greatest change first, and equal changes by the larger holding.
pub(super) fn order(change: Change) -> (Reverse<u64>, Reverse<u64>) {
    (Reverse(change.by().unsigned_abs()), Reverse(change.before.max(change.after)))
}
