//! Where in a trace to stop.

use crate::model::Model;
use crate::record::Record;

/// A moment of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Before the first event later than this: nanoseconds since the trace's start.
    Time(u64),
    /// After so many events.
    Event(u64),
    /// After all there is.
    End,
}

impl SeekTarget {
    /// After the event of this number, which happened at `time`; by the time alone where the number is not known (0).
    pub fn event(number: u64, time: u64) -> Self {
        if number > 0 { Self::Event(number) } else { Self::Time(time) }
    }

    /// Whether a state is no later than this.
    pub fn is_ahead_of(self, model: &Model) -> bool {
        match self {
            Self::Time(time) => model.time() <= time,
            Self::Event(events) => model.events() <= events,
            Self::End => true,
        }
    }

    /// Whether a record is an event after this, when it comes in a state to which it was not added yet.
    #[inline]
    pub fn is_before(self, record: &Record<'_>, model: &Model) -> bool {
        record.time().is_some_and(|time| match self {
            Self::Time(until) => time > until,
            Self::Event(events) => model.events() >= events,
            Self::End => false,
        })
    }
}
