//! Which moment is shown, and how much of the past.

/// Which moment the tables and the categories show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownMoment {
    /// The latest.
    #[default]
    Now,
    /// When the most was allocated.
    Peak,
    /// One that was chosen with the cursor.
    Cursor,
}

/// How much of the past the chart shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChartWindow {
    /// The whole run.
    #[default]
    Run,
    /// The last so many seconds.
    Last(u64),
    /// So many nanoseconds around a moment, in nanoseconds since the trace's start; `None`: up to the end.
    Around(Option<u64>, u64),
}

impl ChartWindow {
    /// The next of the four.
    pub fn next(self) -> Self {
        match self {
            Self::Run => Self::Last(300),
            Self::Last(300) => Self::Last(60),
            Self::Last(60) => Self::Last(10),
            Self::Last(_) | Self::Around(..) => Self::Run,
        }
    }
}
