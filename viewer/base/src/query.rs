//! Details that the screen requests beyond the content of every snapshot.
//!
//! The background thread reads the query before it makes a snapshot. Expensive figures are computed only while a screen
//! shows them.

use std::path::PathBuf;
use std::sync::Arc;

use memlab_trace::{BlockLayer, CategoryView, HeldView, LayerView, Line, LineView, Scope, SeekTarget};

/// Detail that a screen needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    #[default]
    None,
    /// The relations between lines, layers and categories.
    Relations,
    /// [`Detail::Relations`], and the call trees.
    Calls,
    /// [`Detail::Relations`], and the devices' work by kernel.
    Time,
    /// The memory maps.
    Segments,
    /// The latest events.
    Events,
}

impl Detail {
    /// True if it includes [`Detail::Relations`].
    pub fn has_relations(self) -> bool {
        matches!(self, Self::Relations | Self::Calls | Self::Time)
    }

    /// The part that covers the whole run, independent of the displayed moment.
    pub fn of_run(self) -> Self {
        if self == Self::Time { self } else { Self::None }
    }
}

/// A past moment, chosen on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Trace on which it was chosen.
    pub trace: PathBuf,
    /// The moment, in the events or the time of that trace.
    pub at: SeekTarget,
    /// Nanoseconds since 1970, to find the same moment in the other processes.
    pub unix_ns: u64,
}

/// Everything that the screen requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Requested detail.
    pub detail: Detail,
    /// The displayed trace; the others are only summed up.
    pub trace: Option<PathBuf>,
    /// The trace in front. Of a large job only the traces shown last are kept as whole models.
    pub front: Option<PathBuf>,
    /// The moment to show; `None`: the latest.
    pub cursor: Option<Cursor>,
    /// Two moments of one device to compare.
    pub compare: Option<ComparisonQuery>,
    /// Memory whose holders are requested.
    pub holders: Option<HoldersQuery>,
    /// Scope of the lines; `None`: library lines too, where the user's lines only call them.
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

/// Request for what holds the memory of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersQuery {
    /// The trace.
    pub trace: PathBuf,
    /// The device.
    pub device: i32,
    /// The row.
    pub of: HeldMemory,
    /// Start of the search that answers it at the earliest, in nanoseconds since the trace's start; `None`: the latest
    /// recorded search does.
    pub since: Option<u64>,
}

/// Memory of a row of the dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldMemory {
    /// Allocated by a line itself.
    Line(Arc<Line>),
    /// Of a layer.
    Layer {
        /// The layer.
        layer: BlockLayer,
        /// True to include the layers inside it.
        with_inner: bool,
    },
}

/// Holders of the memory of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersAnswer {
    /// The request.
    pub of: HoldersQuery,
    /// The holders, or the reason why none are known.
    pub held: Result<HeldView, String>,
}

/// Two moments, compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The request.
    pub of: ComparisonQuery,
    /// The earlier moment.
    pub before: Arc<MomentHoldings>,
    /// The later one.
    pub after: Arc<MomentHoldings>,
}

/// Views of a device at a moment, for the dashboard's comparison of steps.
///
/// Reports and exports use [`Holdings`](crate::holdings::Holdings), which leaves out empty entries.
#[derive(Clone, Debug, Default)]
pub struct MomentHoldings {
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// By category.
    pub categories: Vec<CategoryView>,
    /// By line.
    pub lines: Vec<LineView>,
    /// By layer.
    pub layers: Vec<LayerView>,
}
