//! Ranges of bytes.

/// A range of bytes.
///
/// Its name states where: in an arena, the ring, or a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
}

impl ByteRange {
    /// Creates a range of `length` bytes from `start` on.
    pub const fn new(start: u64, length: u64) -> Self {
        Self { start, length }
    }

    /// Offset after the last byte.
    pub const fn end(self) -> u64 {
        self.start + self.length
    }

    /// Offset after the last byte; `None` if it exceeds the largest offset.
    pub const fn checked_end(self) -> Option<u64> {
        self.start.checked_add(self.length)
    }

    /// Returns the common part; empty if the ranges have no byte in common.
    pub fn intersection(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, length: self.end().min(other.end()).saturating_sub(start) }
    }

    /// Returns true if the two ranges have a byte in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}
