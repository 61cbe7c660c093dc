//! Lines of a keyframe; each holds one part of the state.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::packed::{BlockRow, CellRow, PointRow, StepRow, TensorRow, TrainingRow, WorkRow};
use crate::model::anomalies::Anomalies;
use crate::model::device_totals::Totals;
use crate::model::driver_memory::{DriverCaller, DriverTotals, HeldMemory, Mapping};
use crate::model::forwards::Forwards;
use crate::model::growth::Backwards;
use crate::model::history_views::{CategoryPoint, GrowthUnit};
use crate::model::holders::Search;
use crate::model::ledger::LayerSlot;
use crate::model::line::Line;
use crate::model::line_book::{LineSlot, SlotMeaning};
use crate::model::long_lived::LongLivedScan;
use crate::model::ooms::OomRecord;
use crate::model::passes::Passes;
use crate::model::private_pools::CapturedGraph;
use crate::model::scope::Scope;
use crate::model::snapshots::{Cells, Snapshot};
use crate::model::tags::OwnedBytes;
use crate::model::tensor_names::TensorName;
use crate::model::views::{BusyView, StepWaitView, StepWorkView, WorkTotals};
use crate::model::windows::Windows;
use memlab_format::record::Phase;

/// One `{"keyframe":…}` line: part of the state of a model. Its field names are part of the trace format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "keyframe", rename_all = "snake_case")]
pub(super) enum KeyframePart {
    Process {
        events: u64,
        time: u64,
        steps_ended: u64,
        #[serde(default)]
        steps_untimed: u64,
        phase: Phase,
        allocated: u64,
        anomalies: Anomalies,
        #[serde(default)]
        lost_events: u64,
    },
    Threads {
        ids: Vec<u32>,
        in_forward: Vec<bool>,
        #[serde(default)]
        passes: u64,
        #[serde(default)]
        looked: LongLivedScan,
        /// Empty if no thread is in a range.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ranges: Vec<u32>,
    },
    Line(Line),
    Owner {
        root: u32,
        name: Arc<str>,
    },
    Tensor(TensorName),
    Device {
        device: i32,
        totals: Totals,
        epoch: u64,
        step_epoch: u64,
        timeline_origin: u64,
        timeline_width_log2: u32,
    },
    LineSlot {
        device: i32,
        #[serde(default)]
        scope: Scope,
        slot: LineSlot,
        stands_for: SlotMeaning,
    },
    LayerSlot {
        device: i32,
        slot: LayerSlot,
    },
    Cells {
        device: i32,
        cells: Vec<CellRow>,
    },
    Blocks {
        device: i32,
        blocks: Vec<BlockRow>,
    },
    Tensors {
        device: i32,
        tensors: Vec<TensorRow>,
    },
    Owned {
        device: i32,
        owner: u32,
        owned: OwnedBytes,
    },
    Source {
        device: i32,
        source: DriverCaller,
        #[serde(default)]
        peak_bytes: u64,
    },
    Held {
        device: i32,
        held: HeldMemory,
    },
    Work {
        device: i32,
        total: WorkTotals,
        work: Vec<WorkRow>,
    },
    Busy {
        device: i32,
        busy: BusyView,
        step_work: Vec<StepWorkView>,
    },
    StepWaits {
        waits: Vec<StepWaitView>,
    },
    Mapping {
        device: i32,
        address: u64,
        mapping: Mapping,
    },
    Graph {
        device: i32,
        graph: u64,
        captured: CapturedGraph,
    },
    Driver {
        device: i32,
        totals: DriverTotals,
    },
    Timeline {
        device: i32,
        points: Vec<PointRow>,
    },
    /// Bytes by category over time: the scale, followed by the points.
    Shares {
        device: i32,
        origin: u64,
        width_log2: u32,
    },
    Share {
        device: i32,
        point: CategoryPoint,
    },
    /// Steps of one device; of all devices if `device` is null.
    StepList {
        device: Option<i32>,
        steps: Vec<StepRow>,
    },
    Steps {
        device: Option<i32>,
        joined: u64,
        peak: u64,
    },
    Trainings {
        joined: u64,
        names: Vec<Arc<str>>,
    },
    TrainingList {
        trainings: Vec<TrainingRow>,
    },
    Snapshot {
        device: i32,
        #[serde(default)]
        scope: Scope,
        reference: bool,
        snapshot: Snapshot,
    },
    Growth {
        device: i32,
        ended: u64,
        stride: u64,
        #[serde(default)]
        before: Cells,
        #[serde(default)]
        after: Cells,
        #[serde(default)]
        unit: GrowthUnit,
        #[serde(default)]
        backwards: Backwards,
    },
    Windows {
        device: i32,
        windows: Windows,
    },
    /// Passes that led to the peak, or the latest passes.
    Passes {
        device: i32,
        to_peak: bool,
        passes: Passes,
    },
    Search(Search),
    Forwards {
        device: i32,
        forwards: Forwards,
    },
    Oom {
        last: bool,
        oom: OomRecord,
    },
    Ooms {
        count: u64,
        rest: u64,
        seen_at: u64,
    },
    /// A part that a newer memlab added.
    #[serde(other)]
    Unknown,
}
