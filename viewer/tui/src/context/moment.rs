//! The displayed moment, and the displayed part of the past.

/// Moment of the tables and the categories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownMoment {
    /// The latest.
    #[default]
    Now,
    /// The moment of most allocated memory.
    Peak,
    /// A moment chosen with the cursor.
    Cursor,
}

/// Part of the past in the chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChartWindow {
    /// The whole run.
    #[default]
    Run,
    /// The last seconds; the number.
    Last(u64),
    /// A length in nanoseconds around a moment, in nanoseconds since the trace's start; `None`: up to the end.
    Around(Option<u64>, u64),
}

impl ChartWindow {
    /// The next window, in a cycle of four.
    pub fn next(self) -> Self {
        match self {
            Self::Run => Self::Last(300),
            Self::Last(300) => Self::Last(60),
            Self::Last(60) => Self::Last(10),
            Self::Last(_) | Self::Around(..) => Self::Run,
        }
    }
}
