//! How much of a trace is to be read, was read, and what was met.

use super::lines::Skipped;
use crate::model::Model;

/// How much of a trace there is to read: up to `offset` of its file, or of the one beside it in which it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Whether the trace's own file is read to its end, and `offset` is in the one beside it.
    pub in_continuation: bool,
    /// Bytes.
    pub offset: u64,
}

impl Extent {
    /// All there is.
    pub const WHOLE: Self = Self { in_continuation: true, offset: u64::MAX };
}

/// A trace, read.
pub struct Loaded {
    /// The state at its end.
    pub model: Model,
    /// Garbled lines passed over.
    pub skipped: Skipped,
    /// Whether it ends in the middle of a line, or of a compressed frame.
    pub truncated: bool,
    /// Whether the progress callback broke off.
    pub cancelled: bool,
}

impl Loaded {
    /// A state, and what was met on the way to it.
    pub fn new(model: Model, through: ReadSummary) -> Self {
        let ReadSummary { skipped, truncated, cancelled } = through;
        Self { model, skipped, truncated, cancelled }
    }
}

/// What was met while a trace was read; as in [`Loaded`].
#[derive(Clone, Debug, Default)]
pub struct ReadSummary {
    /// Garbled lines passed over.
    pub skipped: Skipped,
    /// Whether it ends in the middle of a line, or of a compressed frame.
    pub truncated: bool,
    /// Whether the progress callback broke off.
    pub cancelled: bool,
}

/// How far reading has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file read.
    pub bytes_read: u64,
    /// Bytes of the file.
    pub bytes_total: u64,
    /// Events replayed.
    pub events: u64,
}
