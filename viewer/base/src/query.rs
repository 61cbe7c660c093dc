//! What the screen wants to know beyond what every snapshot has. The background thread looks here before it makes one,
//! so that expensive figures are computed only while a screen shows them.

use std::path::PathBuf;
use std::sync::Arc;

use memlab_trace::{CategoryView, LayerView, LineView, Scope, SeekTarget};

/// What a screen needs in detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    #[default]
    None,
    /// Which lines, layers and categories belong together.
    Relations,
    /// The same, and the call trees.
    Calls,
    /// The same as [`Detail::Relations`], and what ran on the devices by kernel.
    Time,
    /// The memory maps.
    Segments,
    /// The latest events.
    Events,
}

impl Detail {
    /// Whether it has [`Detail::Relations`].
    pub fn has_relations(self) -> bool {
        matches!(self, Self::Relations | Self::Calls | Self::Time)
    }

    /// The part of it that is of the whole run, whichever moment is shown.
    pub fn of_run(self) -> Self {
        if self == Self::Time { self } else { Self::None }
    }
}

/// A moment of the past, chosen on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The trace it was chosen on.
    pub trace: PathBuf,
    /// The moment, in the events or the time of that trace.
    pub at: SeekTarget,
    /// When that is, in nanoseconds since 1970: the same moment of the other processes.
    pub unix_ns: u64,
}

/// Everything wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// In detail.
    pub detail: Detail,
    /// Of the trace shown: others are only summed up.
    pub trace: Option<PathBuf>,
    /// The trace in front. Of a large job only a few traces are kept as whole models: those looked at last.
    pub front: Option<PathBuf>,
    /// The moment to show; `None`: the latest.
    pub cursor: Option<Cursor>,
    /// Two moments of one device to put side by side.
    pub compare: Option<ComparisonQuery>,
    /// Whose lines to show; `None`: libraries' too where the user's only call them.
    pub scope: Option<Scope>,
}

/// Two moments of one device of one trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparisonQuery {
    /// The trace.
    pub trace: PathBuf,
    /// The device.
    pub device: i32,
    /// The earlier moment.
    pub before: SeekTarget,
    /// The later one.
    pub after: SeekTarget,
}

/// Two moments side by side.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What was asked.
    pub of: ComparisonQuery,
    /// The earlier moment.
    pub before: Arc<MomentHoldings>,
    /// The later one.
    pub after: Arc<MomentHoldings>,
}

/// The model's views of a device at a moment, for the comparison of steps in the dashboard. (Reports and exports use
/// [`Holdings`](crate::holdings::Holdings), with what holds something only.)
#[derive(Clone, Debug, Default)]
pub struct MomentHoldings {
    /// When, in nanoseconds since the trace's start.
    pub time: u64,
    /// By category.
    pub categories: Vec<CategoryView>,
    /// By line.
    pub lines: Vec<LineView>,
    /// By layer.
    pub layers: Vec<LayerView>,
}
