//! Moments of the program between two records.

/// Counters that only PyTorch knows, in the caller's order: current, peak, allocated and freed of each.
pub type Sample = Vec<[u64; 4]>;

/// A moment, ordered with the lines of the recording by its position.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Position in the recording.
    ///
    /// Lines before it were recorded before the moment.
    pub position: u64,
    /// Line profile that the mark belongs to.
    pub profile: u64,
    /// Event at this moment.
    pub moment: Moment,
}

/// Event at a moment.
#[derive(Clone, Debug)]
pub enum Moment {
    /// The profile starts counting.
    Enabled,
    /// The profile stops counting.
    Disabled,
    /// A profiled function begins a line, and the previous line ends.
    ///
    /// The first line of a call is the `def` line.
    Line {
        /// Id of the thread.
        thread: u64,
        /// Id of the frame.
        ///
        /// No other open frame has it.
        frame: u64,
        /// Index of the function.
        function: u32,
        /// Line number.
        line: u32,
        /// Device that is profiled now.
        device: i32,
        /// PyTorch's own counters at this moment, if they were sampled.
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
