//! Moments of a trace to stop at.

use crate::model::Model;
use memlab_format::record::Record;

/// A moment of a trace to stop at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Before the first event after this time: nanoseconds since the start of the trace.
    Time(u64),
    /// After this number of events.
    Event(u64),
    /// At the end.
    End,
}

impl SeekTarget {
    /// Returns the moment after the event with this number, at `time`. Without a number (0), the time decides.
    pub fn event(number: u64, time: u64) -> Self {
        if number > 0 { Self::Event(number) } else { Self::Time(time) }
    }

    /// Returns true if a state is at or before this moment.
    pub fn is_ahead_of(self, model: &Model) -> bool {
        match self {
            Self::Time(time) => model.time() <= time,
            Self::Event(events) => model.events() <= events,
            Self::End => true,
        }
    }

    /// Returns true if this moment is before a record that is not yet applied to the model.
    #[inline]
    pub fn is_before(self, record: &Record<'_>, model: &Model) -> bool {
        record.time().is_some_and(|time| match self {
            Self::Time(until) => time > until,
            Self::Event(events) => model.events() >= events,
            Self::End => false,
        })
    }
}
