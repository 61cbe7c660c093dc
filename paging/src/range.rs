//! Ranges of bytes.

/// `length` bytes from `start` on, in whatever the name of the range says: an arena, the ring, a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

impl ByteRange {
    /// `length` bytes from `start` on.
    pub const fn new(start: u64, length: u64) -> Self {
        Self { start, length }
    }

    /// The offset after the last byte.
    pub const fn end(self) -> u64 {
        self.start + self.length
    }

    /// The same; `None` where that is beyond the largest offset.
    pub const fn checked_end(self) -> Option<u64> {
        self.start.checked_add(self.length)
    }

    /// What is in both; without bytes if they have none in common.
    pub fn intersection(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, length: self.end().min(other.end()).saturating_sub(start) }
    }

    /// Whether the two have a byte in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}
