//! Out-of-memory events: the failed allocation, and the holders of the memory.

use std::collections::VecDeque;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::category::Category;
use super::device::DeviceState;
use super::device_views::holder;
use super::history_views::OomView;
use super::scope::{ByScope, Scope};
use super::symbols::{LineId, Symbols};
use memlab_format::record;

/// Maximum number of first events kept, and of last events.
const MAX_OOM_EVENTS: usize = 32;

/// Maximum number of lines and layers kept; the largest.
const MAX_HOLDERS: usize = 10;

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OomRecord {
    device: i32,
    time: u64,
    /// Number of events up to this one, including it.
    #[serde(default)]
    event: u64,
    step: u64,
    requested: u64,
    allocated: u64,
    reserved: u64,
    stack: u32,
    layer: u32,
    largest_free: u64,
    free: u64,
    /// Free bytes in private pools of CUDA graphs.
    #[serde(default)]
    private_free: u64,
    used: u64,
    total: u64,
    #[serde(default)]
    limit: Option<u64>,
    /// Bytes in host memory.
    #[serde(default)]
    moved: u64,
    #[serde(default)]
    others: Vec<(u32, u64)>,
    /// True if the use of the device was sampled before, or has been since.
    #[serde(default)]
    sampled: bool,
    /// Largest lines, with bytes.
    #[serde(flatten, with = "lines_by_scope")]
    lines: ByScope<Vec<(LineId, u64)>>,
    /// Bytes by layer, each named by one of its cells.
    layers: Vec<(u32, u64)>,
    categories: Vec<(Category, u64)>,
}

/// Keys of lines in a keyframe: `lines` and `library_lines`.
mod lines_by_scope {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::super::scope::{ByScope, Scope};
    use super::super::symbols::LineId;

    type Lines = Vec<(LineId, u64)>;

    #[derive(Serialize, Deserialize)]
    struct LinesByScope {
        lines: Lines,
        #[serde(default)]
        library_lines: Lines,
    }

    pub(super) fn serialize<S: Serializer>(lines: &ByScope<Lines>, to: S) -> Result<S::Ok, S::Error> {
        let [lines, library_lines] = lines.values().clone();
        LinesByScope { lines, library_lines }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ByScope<Lines>, D::Error> {
        let LinesByScope { mut lines, mut library_lines } = LinesByScope::deserialize(from)?;
        Ok(ByScope::from_fn(|scope| match scope {
            Scope::Users => std::mem::take(&mut lines),
            Scope::Libraries => std::mem::take(&mut library_lines),
        }))
    }
}

/// All out-of-memory events.
#[derive(Clone, Default)]
pub(crate) struct Ooms {
    pub(crate) count: u64,
    pub(crate) first: Vec<OomRecord>,
    pub(crate) last: VecDeque<OomRecord>,
    /// Number of events to pass before the holders of another out-of-memory event are recorded.
    pub(crate) rest: u64,
    pub(crate) seen_at: u64,
}

impl Ooms {
    /// Adds an out-of-memory event of `device`; `events` is its number in the trace.
    pub(crate) fn note(
        &mut self,
        event: &record::Oom,
        step: u64,
        events: u64,
        device: Option<&DeviceState>,
        symbols: &Symbols,
    ) {
        self.count += 1;
        let mut oom = OomRecord {
            device: event.device,
            time: event.time,
            event: events,
            step,
            requested: event.requested,
            allocated: event.allocated,
            reserved: event.reserved,
            stack: event.stack,
            layer: event.layer,
            largest_free: 0,
            free: 0,
            private_free: 0,
            used: 0,
            total: 0,
            limit: None,
            moved: 0,
            others: Vec::new(),
            sampled: false,
            lines: ByScope::default(),
            layers: Vec::new(),
            categories: Vec::new(),
        };
        if let Some(device) = device {
            let view = device.view(event.device);
            (oom.used, oom.total, oom.sampled) = (view.used_bytes, view.total_bytes, view.used_is_known);
            (oom.limit, oom.moved) = (view.limit_bytes, view.host_bytes);
            oom.others = device.others.now.clone();
            // Bounds the work on a trace with many such events.
            if self.first.len() < MAX_OOM_EVENTS || events.saturating_sub(self.seen_at) >= self.rest {
                self.seen_at = events;
                self.rest = (device.blocks.len() + device.ledger.cells.len()) as u64;
                record_holders(&mut oom, device, symbols);
            }
        }
        if self.first.len() < MAX_OOM_EVENTS {
            self.first.push(oom);
        } else {
            self.last.push_back(oom);
            if self.last.len() > MAX_OOM_EVENTS {
                self.last.pop_front();
            }
        }
    }

    /// Drops half of the last events. Returns false if only a few exist.
    pub(crate) fn shorten(&mut self) -> bool {
        let are_many = self.last.len() > 1;
        if are_many {
            self.last.drain(..self.last.len() / 2);
        }
        are_many
    }

    /// Handles the first sample of a device's use.
    ///
    /// Its context also applies to the events before, since a context does not shrink.
    pub(crate) fn sampled(&mut self, device: i32, state: &DeviceState) {
        let driver = &state.driver.totals;
        for oom in self.first.iter_mut().chain(&mut self.last).filter(|oom| oom.device == device && !oom.sampled) {
            oom.sampled = true;
            oom.used = oom.used.saturating_add(driver.context).saturating_add(driver.other_processes);
            if oom.total == 0 {
                oom.total = driver.total;
            }
            let rest = [(Category::Context, driver.context), (Category::OtherProcesses, driver.other_processes)];
            // Only if the holders were recorded, even if none existed.
            if !oom.categories.is_empty() || oom.allocated == 0 {
                oom.categories.extend(rest.into_iter().filter(|(_, bytes)| *bytes > 0));
                oom.categories.sort_by_key(|(category, _)| *category);
            }
        }
    }

    /// Records other processes on a device, as the driver reports them.
    ///
    /// Before the first sample of the device's use, they also apply to earlier events.
    pub(crate) fn note_other_processes(&mut self, device: i32, others: &[(u32, u64)]) {
        let unknown = |oom: &&mut OomRecord| oom.device == device && !oom.sampled && oom.others.is_empty();
        for oom in self.first.iter_mut().chain(&mut self.last).filter(unknown) {
            oom.others = others.to_vec();
        }
    }

    /// Returns all events kept, in order, with the lines of `scope`.
    pub(crate) fn view<'a>(
        &self,
        device: impl Fn(i32) -> Option<&'a DeviceState>,
        symbols: &Symbols,
        scope: Scope,
    ) -> Vec<OomView> {
        let line_of = |stack: u32| symbols.frame_of(stack, scope).map(|frame| frame.line.clone());
        let lines =
            |oom: &OomRecord| oom.lines[scope].iter().map(|(id, bytes)| (symbols.line(*id).cloned(), *bytes)).collect();
        let layer_of = |oom: &OomRecord, cell: u32| {
            let cell = device(oom.device)?.ledger.cells.get(cell as usize)?;
            holder(cell, symbols).1
        };
        let view = |oom: &OomRecord| OomView {
            device: oom.device,
            time: oom.time,
            event: oom.event,
            step: oom.step,
            requested_bytes: oom.requested,
            allocated_bytes: oom.allocated,
            reserved_bytes: oom.reserved,
            largest_free_block_bytes: oom.largest_free,
            free_bytes: oom.free,
            private_free_bytes: oom.private_free,
            used_bytes: oom.used,
            used_is_known: oom.sampled,
            total_bytes: oom.total,
            limit_bytes: oom.limit,
            host_bytes: oom.moved,
            others: oom.others.clone(),
            stack: oom.stack,
            line: line_of(oom.stack),
            layer: symbols.layer_name(oom.layer),
            lines: lines(oom),
            layers: oom.layers.iter().map(|(cell, bytes)| (layer_of(oom, *cell), *bytes)).collect(),
            categories: oom.categories.clone(),
        };
        self.first.iter().chain(&self.last).map(view).collect()
    }
}

fn record_holders(oom: &mut OomRecord, device: &DeviceState, symbols: &Symbols) {
    let segments = device.segments();
    oom.private_free = segments.private_free_bytes;
    oom.largest_free = segments.largest_common_free_bytes;
    oom.free = segments.free_bytes.saturating_sub(segments.private_free_bytes);
    let lines = |scope| {
        let lines = device.ledger.book(scope).lines.iter().map(|line| (line.id, line.bytes));
        largest(lines.filter(|(_, bytes)| *bytes > 0).collect())
    };
    oom.lines = ByScope::from_fn(lines);
    let mut layers = HashMap::new();
    for (index, cell) in std::iter::zip(0.., &device.ledger.cells).filter(|(_, cell)| cell.bytes > 0) {
        let (_, bytes) = layers.entry(holder(cell, symbols)).or_insert((index, 0_u64));
        *bytes = bytes.saturating_add(cell.bytes);
    }
    oom.layers = largest(layers.into_values().collect());
    let categories = device.categories().into_iter().filter(|view| view.bytes > 0);
    oom.categories = categories.map(|view| (view.category, view.bytes)).collect();
}

fn largest(mut holders: Vec<(u32, u64)>) -> Vec<(u32, u64)> {
    holders.sort_unstable_by_key(|(id, bytes)| (std::cmp::Reverse(*bytes), *id));
    holders.truncate(MAX_HOLDERS);
    holders
}
