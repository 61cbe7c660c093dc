//! How much of a trace to read, how much was read, and what was found.

use super::lines::Skipped;
use crate::model::Model;

/// How much of a trace to read: up to `offset` of its file, or of its continuation file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Whether `offset` is in the continuation file, and the main file is read to its end.
    pub in_continuation: bool,
    /// Bytes.
    pub offset: u64,
}

impl Extent {
    /// The whole trace.
    pub const WHOLE: Self = Self { in_continuation: true, offset: u64::MAX };
}

/// A trace that was read.
pub struct Loaded {
    /// The state at its end.
    pub model: Model,
    /// Garbled lines skipped.
    pub skipped: Skipped,
    /// Whether it ends in the middle of a line, or of a compressed frame.
    pub truncated: bool,
    /// Whether the progress callback cancelled.
    pub cancelled: bool,
}

impl Loaded {
    /// A state, and what was found on the way to it.
    pub fn new(model: Model, through: ReadSummary) -> Self {
        let ReadSummary { skipped, truncated, cancelled } = through;
        Self { model, skipped, truncated, cancelled }
    }
}

/// What was found while a trace was read; as in [`Loaded`].
#[derive(Clone, Debug, Default)]
pub struct ReadSummary {
    /// Garbled lines skipped.
    pub skipped: Skipped,
    /// Whether it ends in the middle of a line, or of a compressed frame.
    pub truncated: bool,
    /// Whether the progress callback cancelled.
    pub cancelled: bool,
}

/// Progress of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file read.
    pub bytes_read: u64,
    /// Bytes of the file.
    pub bytes_total: u64,
    /// Events replayed.
    pub events: u64,
}
