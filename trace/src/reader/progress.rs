//! Extent, progress and results of reading a trace.

use super::lines::Skipped;
use crate::model::Model;

/// Part of a trace to read: up to `offset` of its file, or of its continuation file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// True if `offset` is in the continuation file, and the main file is read to its end.
    pub in_continuation: bool,
    /// Offset in bytes.
    pub offset: u64,
}

impl Extent {
    /// The whole trace.
    pub const WHOLE: Self = Self { in_continuation: true, offset: u64::MAX };
}

/// A loaded trace.
pub struct Loaded {
    /// State at the end of the trace.
    pub model: Model,
    /// Garbled lines skipped.
    pub skipped: Skipped,
    /// True if the trace ends in the middle of a line, or of a compressed frame.
    pub truncated: bool,
    /// True if the progress callback cancelled.
    pub cancelled: bool,
}

impl Loaded {
    /// Combines a state and the results of reading it.
    pub fn new(model: Model, through: ReadSummary) -> Self {
        let ReadSummary { skipped, truncated, cancelled } = through;
        Self { model, skipped, truncated, cancelled }
    }
}

/// Results of reading a trace, as in [`Loaded`].
#[derive(Clone, Debug, Default)]
pub struct ReadSummary {
    /// Garbled lines skipped.
    pub skipped: Skipped,
    /// True if the trace ends in the middle of a line, or of a compressed frame.
    pub truncated: bool,
    /// True if the progress callback cancelled.
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
