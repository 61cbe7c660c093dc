//! Moments in the program between records.

/// Counters that only PyTorch knows, in the order in which the caller gives them: current, peak, allocated, freed of each.
pub type Sample = Vec<[u64; 4]>;

/// A moment, ordered with the lines of the recording by its position.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The lines before this position were recorded before the moment.
    pub position: u64,
    /// The line profile that it is for.
    pub profile: u64,
    /// What happened.
    pub moment: Moment,
}

/// What happened at a moment.
#[derive(Clone, Debug)]
pub enum Moment {
    /// The profile counts from now on.
    Enabled,
    /// The profile no longer counts.
    Disabled,
    /// A profiled function begins a line, its first one (the `def` line) when it is called; the line before ends.
    Line {
        /// The thread, by any id.
        thread: u64,
        /// The frame, by any id that no other open frame has.
        frame: u64,
        /// Index of the function.
        function: u32,
        /// The line.
        line: u32,
        /// The device that is profiled now.
        device: i32,
        /// PyTorch's own counters at this moment, if they were asked for.
        sample: Option<Box<Sample>>,
    },
    /// A profiled frame returned, yielded or was left by an exception.
    Left {
        /// As in `Line`.
        thread: u64,
        /// As in `Line`.
        frame: u64,
        /// As in `Line`.
        sample: Option<Box<Sample>>,
    },
}
