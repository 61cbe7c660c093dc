//! Keyframes: the whole state as lines of a trace, so that a long trace can be cut down to its header, a
//! keyframe and what came after, and still replays to the same state.
//!
//! Names come as the definitions they are, everything else as `{"keyframe":…}` lines whose value says which part
//! of the state they hold. Slots and cells are named by their order. Nothing a line claims is believed without a
//! look: what refers to something that is not there is counted as impossible and ignored.

mod packed;

use std::io::{self, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::accumulation::{Accumulation, Passes};
use super::blocks::{Block, NONE};
use super::code_origin::Scope;
use super::device::{self, DeviceState, OtherProcesses, Totals};
use super::driver::{Driver, DriverTotals, Held, Mapping, Source};
use super::ledger::LayerSlot;
use super::line_book::{LineSlot, Standing};
use super::long_lived::LongLivedScan;
use super::ooms::{OomRecord, Ooms};
use super::steps::{Cells, Growth, Snapshot, Steps};
use super::tags::Owned;
use super::views::{Anomalies, CategoryPoint, Line};
use super::{HOST, Model};
use crate::record::{self, Phase};
use packed::{BlockRow, Blocks, CellRow, PointRow, Points, StepRow, StepRows, TensorRow, Tensors};

/// One `{"keyframe":…}` line: part of the state of a [`Model`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Keyframe(State);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "keyframe", rename_all = "snake_case")]
enum State {
    Process {
        events: u64,
        time: u64,
        steps_ended: u64,
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
    },
    Line(Line),
    Owner {
        root: u32,
        name: Arc<str>,
    },
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
        stands_for: Standing,
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
        owned: Owned,
    },
    Source {
        device: i32,
        source: Source,
    },
    Held {
        device: i32,
        held: Held,
    },
    Mapping {
        device: i32,
        address: u64,
        mapping: Mapping,
    },
    Driver {
        device: i32,
        totals: DriverTotals,
    },
    Timeline {
        device: i32,
        points: Vec<PointRow>,
    },
    /// What memory was used for over time: its scale, and its points.
    Shares {
        device: i32,
        origin: u64,
        width_log2: u32,
    },
    Share {
        device: i32,
        point: CategoryPoint,
    },
    /// Of all devices together where `device` is null.
    StepList {
        device: Option<i32>,
        steps: Vec<StepRow>,
    },
    Steps {
        device: Option<i32>,
        joined: u64,
        peak: u64,
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
    },
    /// Those that led to the peak, or the latest.
    Passes {
        device: i32,
        to_peak: bool,
        passes: Passes,
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

/// How many rows a line holds: what is live, and what has been, comes by the ten thousand.
const ROWS: usize = 128;

/// Writes lines.
struct Lines<'w, W> {
    out: &'w mut W,
}

impl<W: Write> Lines<'_, W> {
    fn put(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, line)?;
        self.out.write_all(b"\n")
    }
}

impl Model {
    /// Writes the state as lines of a trace: a trace of its header, these lines, and the events that follow
    /// replays to the same state as the whole.
    ///
    /// # Errors
    ///
    /// What `out` says.
    pub fn write_keyframe(&self, out: &mut impl Write) -> io::Result<()> {
        let mut lines = Lines { out };
        self.write_names(&mut lines)?;
        lines.put(&State::Process {
            events: self.events,
            time: self.time,
            steps_ended: self.steps_ended,
            phase: self.phase,
            allocated: self.allocated,
            anomalies: self.anomalies,
            lost_events: self.lost_events,
        })?;
        let (ids, in_forward) = (self.threads.ids.clone(), self.threads.in_forward.clone());
        lines.put(&State::Threads { ids, in_forward, passes: self.threads.passes, looked: self.looked })?;
        write_steps(&mut lines, None, &self.steps)?;
        for (device, state) in (0..).zip(&self.devices) {
            if let Some(state) = state {
                write_device(&mut lines, device, state)?;
            }
        }
        write_driver(&mut lines, HOST, &self.host)?;
        for oom in &self.ooms.first {
            lines.put(&State::Oom { last: false, oom: oom.clone() })?;
        }
        for oom in &self.ooms.last {
            lines.put(&State::Oom { last: true, oom: oom.clone() })?;
        }
        let Ooms { count, rest, seen_at, .. } = self.ooms;
        lines.put(&State::Ooms { count, rest, seen_at })
    }

    /// Halves what is kept of the past (the course over time, steps, what lines held after them, repeated out-of-memory
    /// events), so that a keyframe is smaller; false if there is nothing left to halve.
    pub fn shorten_history(&mut self) -> bool {
        let mut shortened = self.steps.shorten() | self.ooms.shorten();
        for device in self.devices.iter_mut().flatten() {
            shortened |= device.steps.shorten() | device.growth.shorten();
            shortened |= device.timeline.points.shorten() | device.shares.shorten();
        }
        shortened
    }

    fn write_names<W: Write>(&self, lines: &mut Lines<'_, W>) -> io::Result<()> {
        let symbols = &self.symbols;
        // First, so that lines keep the numbers by which the rest names them.
        for line in symbols.lines() {
            lines.put(&State::Line(Line::clone(line)))?;
        }
        for owner in symbols.owners() {
            lines.put(&State::Owner { root: owner.root, name: owner.name.clone() })?;
        }
        for software in &symbols.software {
            lines.put(software)?;
        }
        for root in symbols.code_roots() {
            lines.put(root)?;
        }
        for (frame, known) in sorted(&symbols.frames) {
            let Line { file, line, function } = &*known.line;
            let (file, function) = ((&**file).into(), (&**function).into());
            lines.put(&record::Frame { frame, file, line: *line, function })?;
        }
        for (file, line, text) in symbols.sources.iter() {
            lines.put(&record::Source { source: file.into(), line, text: text.into() })?;
        }
        for (_, stack) in sorted(&symbols.stacks) {
            lines.put(stack)?;
        }
        for (layer, known) in sorted(&symbols.layers) {
            let [name, variable] = [&known.name, &known.variable].map(|text| text.as_deref().map(str::to_owned));
            lines.put(&record::Layer {
                layer,
                parent: known.parent,
                class: known.class.to_string(),
                name,
                variable,
            })?;
        }
        for (_, thread) in sorted(&symbols.threads) {
            lines.put(thread)?;
        }
        for info in self.devices.iter().flatten().filter_map(|state| state.info.as_ref()) {
            lines.put(info)?;
        }
        for (device, state) in (0..).zip(&self.devices).filter_map(|(device, state)| Some((device, state.as_ref()?))) {
            if let Some(limit) = &state.limit {
                lines.put(limit)?;
            }
            let OtherProcesses { now, most } = &state.others;
            let most: Vec<(u32, u64)> = most.iter().map(|(pid, bytes)| (*pid, *bytes)).collect();
            if !most.is_empty() {
                lines.put(&record::Others { others: device, processes: most })?;
                lines.put(&record::Others { others: device, processes: now.clone() })?;
            }
        }
        self.warnings.iter().try_for_each(|warning| lines.put(&serde_json::json!({ "warning": warning })))
    }

    /// Takes a part of the state over.
    pub(super) fn restore(&mut self, Keyframe(state): Keyframe) {
        if self.restore_checked(state).is_none() {
            self.anomalies.impossible_events += 1;
        }
    }

    /// `None` if the line refers to something that is not there.
    fn restore_checked(&mut self, state: State) -> Option<()> {
        match state {
            State::Process { events, time, steps_ended, phase, allocated, anomalies, lost_events } => {
                self.lost_events = lost_events;
                (self.events, self.time, self.steps_ended, self.phase) = (events, time, steps_ended, phase);
                (self.allocated, self.anomalies) = (allocated, anomalies);
            }
            State::Threads { ids, in_forward, passes, looked } => {
                (self.threads.passes, self.looked) = (passes, looked);
                for (thread, in_forward) in ids.into_iter().zip(in_forward) {
                    let index = self.threads.index(thread) as usize;
                    let was = std::mem::replace(&mut self.threads.in_forward[index], in_forward);
                    self.threads.forward_count += u32::from(in_forward && !was);
                }
            }
            State::Line(line) => {
                self.symbols.intern_line(&Arc::new(line));
            }
            State::Owner { root, name } => {
                self.symbols.intern_owner(root, &name);
            }
            State::StepList { device: None, steps } => self.steps.list.extend(StepRows::default().unpacked(steps)),
            State::Steps { device: None, joined, peak } => self.steps.restore(joined, peak),
            State::Oom { last: false, oom } => self.ooms.first.push(oom),
            State::Oom { last: true, oom } => self.ooms.last.push_back(oom),
            State::Ooms { count, rest, seen_at } => {
                (self.ooms.count, self.ooms.rest, self.ooms.seen_at) = (count, rest, seen_at);
            }
            State::Unknown => self.anomalies.unknown_records += 1,
            State::Source { device: HOST, source } => {
                self.host.source(source);
            }
            State::Held { device: HOST, held } => self.host.restore(held)?,
            State::Driver { device: HOST, totals } => self.host.totals = totals,
            other => self.restore_device(other)?,
        }
        Some(())
    }

    fn restore_device(&mut self, part: State) -> Option<()> {
        let lists = device::lists(u32::try_from(self.threads.ids.len()).ok()?);
        let (State::Device { device, .. }
        | State::LineSlot { device, .. }
        | State::LayerSlot { device, .. }
        | State::Cells { device, .. }
        | State::Blocks { device, .. }
        | State::Tensors { device, .. }
        | State::Owned { device, .. }
        | State::Source { device, .. }
        | State::Held { device, .. }
        | State::Mapping { device, .. }
        | State::Driver { device, .. }
        | State::Timeline { device, .. }
        | State::Shares { device, .. }
        | State::Share { device, .. }
        | State::StepList { device: Some(device), .. }
        | State::Steps { device: Some(device), .. }
        | State::Snapshot { device, .. }
        | State::Growth { device, .. }
        | State::Passes { device, .. }) = part
        else {
            return None;
        };
        let (state, symbols, _) = self.on_device(device)?;
        match part {
            State::Device { totals, epoch, step_epoch, timeline_origin, timeline_width_log2, .. } => {
                state.totals = totals;
                state.ledger.epoch = epoch;
                state.ledger.books_mut().for_each(|book| book.step_epoch = step_epoch);
                state.timeline.points.restore_scale(timeline_origin, timeline_width_log2);
            }
            State::LineSlot { scope, slot, stands_for, .. } => {
                state.ledger.book_mut(scope).restore_line(slot, stands_for, symbols);
            }
            State::LayerSlot { slot, .. } => state.ledger.restore_layer(slot),
            State::Cells { cells, .. } => {
                cells.into_iter().try_for_each(|cell| state.ledger.restore_cell(cell.into()))?;
            }
            State::Blocks { blocks, .. } => {
                let mut rows = Blocks::default();
                for row in blocks {
                    let (block, list) = rows.unpacked(row);
                    state.ledger.cells.get(block.cell as usize)?;
                    if list.is_some_and(|list| list >= lists) || state.blocks.find(block.address).is_some() {
                        return None;
                    }
                    let slot = state.blocks.insert(block);
                    if let Some(list) = list {
                        state.blocks.link(slot, list);
                    }
                }
            }
            State::Tensors { tensors, .. } => {
                let mut rows = Tensors::default();
                for row in tensors {
                    let (block, address, tensor, largest) = rows.unpacked(row)?;
                    let slot = state.blocks.find(block)?;
                    state.blocks.get_mut(slot).tagged = true;
                    state.tags.restore(slot, address, tensor, largest);
                }
            }
            State::Owned { owner, owned, .. } => {
                state.tags.owners.insert(owner, owned);
            }
            State::Source { source, .. } => {
                state.driver.source(source);
            }
            State::Held { held, .. } => state.driver.restore(held)?,
            State::Mapping { address, mapping, .. } => {
                state.driver.mappings.insert(address, mapping);
            }
            State::Driver { totals, .. } => state.driver.totals = totals,
            State::Timeline { points, .. } => state.timeline.points.list.extend(Points::default().unpacked(points)),
            State::Shares { origin, width_log2, .. } => state.shares.points.restore_scale(origin, width_log2),
            State::Share { point, .. } => state.shares.restore(point)?,
            State::StepList { steps, .. } => state.steps.list.extend(StepRows::default().unpacked(steps)),
            State::Steps { joined, peak, .. } => state.steps.restore(joined, peak),
            State::Snapshot { scope, reference, snapshot, .. } => state.growth.restore(scope, reference, snapshot),
            State::Growth { ended, stride, before, after, .. } => {
                (state.growth.ended, state.growth.stride) = (ended, stride);
                (state.growth.cells_before, state.growth.cells_after) = (before, after);
            }
            State::Passes { to_peak: true, passes, .. } => state.accumulation.to_peak = passes,
            State::Passes { to_peak: false, passes, .. } => state.accumulation.now = passes,
            _ => return None,
        }
        Some(())
    }
}

fn sorted<T>(map: &hashbrown::HashMap<u32, T>) -> Vec<(u32, &T)> {
    let mut entries: Vec<(u32, &T)> = map.iter().map(|(id, value)| (*id, value)).collect();
    entries.sort_unstable_by_key(|(id, _)| *id);
    entries
}

fn write_steps<W: Write>(lines: &mut Lines<'_, W>, device: Option<i32>, steps: &Steps) -> io::Result<()> {
    for steps in steps.list.chunks(ROWS) {
        lines.put(&State::StepList { device, steps: StepRows::default().packed(steps) })?;
    }
    lines.put(&State::Steps { device, joined: steps.joined, peak: steps.peak })
}

fn write_driver<W: Write>(lines: &mut Lines<'_, W>, device: i32, driver: &Driver) -> io::Result<()> {
    for source in &driver.sources {
        lines.put(&State::Source { device, source: source.clone() })?;
    }
    for held in driver.held.values() {
        lines.put(&State::Held { device, held: *held })?;
    }
    for (address, mapping) in &driver.mappings {
        lines.put(&State::Mapping { device, address: *address, mapping: *mapping })?;
    }
    lines.put(&State::Driver { device, totals: driver.totals })
}

fn write_device<W: Write>(lines: &mut Lines<'_, W>, device: i32, state: &DeviceState) -> io::Result<()> {
    let ledger = &state.ledger;
    lines.put(&State::Device {
        device,
        totals: state.totals,
        epoch: ledger.epoch,
        step_epoch: ledger.book(Scope::Users).step_epoch,
        timeline_origin: state.timeline.points.origin,
        timeline_width_log2: state.timeline.points.width_log2,
    })?;
    for scope in Scope::ALL {
        let book = ledger.book(scope);
        for (slot, stands_for) in std::iter::zip(&book.lines, book.standing()) {
            lines.put(&State::LineSlot { device, scope, slot: *slot, stands_for })?;
        }
    }
    for slot in &ledger.layers {
        lines.put(&State::LayerSlot { device, slot: *slot })?;
    }
    for cells in ledger.cells.chunks(ROWS) {
        let cells = cells.iter().map(|cell| ledger.with_current_lines(cell).into()).collect();
        lines.put(&State::Cells { device, cells })?;
    }
    let blocks = state.blocks.by_age();
    for blocks in blocks.chunks(ROWS) {
        let mut rows = Blocks::default();
        let list = |block: &Block| (block.list != NONE).then_some(block.list);
        let blocks = blocks.iter().map(|block| rows.packed(block, list(block))).collect();
        lines.put(&State::Blocks { device, blocks })?;
    }
    let tensors = state.tags.blocks.iter().flat_map(|(slot, tags)| {
        let block = state.blocks.get(*slot).address;
        let is_largest = |address: u64| tags.largest.is_some_and(|(at, _)| at == address);
        tags.tensors.iter().map(move |(address, tensor)| (block, *address, *tensor, is_largest(*address)))
    });
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort_unstable_by_key(|(block, address, ..)| (*block, *address));
    for tensors in tensors.chunks(ROWS) {
        let mut rows = Tensors::default();
        lines.put(&State::Tensors { device, tensors: tensors.iter().map(|tensor| rows.packed(*tensor)).collect() })?;
    }
    for (owner, owned) in sorted(&state.tags.owners) {
        lines.put(&State::Owned { device, owner, owned: *owned })?;
    }
    write_driver(lines, device, &state.driver)?;
    for points in state.timeline.points.list.chunks(ROWS) {
        lines.put(&State::Timeline { device, points: Points::default().packed(points) })?;
    }
    let shares = &state.shares.points;
    lines.put(&State::Shares { device, origin: shares.origin, width_log2: shares.width_log2 })?;
    for point in &shares.list {
        lines.put(&State::Share { device, point: *point })?;
    }
    write_steps(lines, Some(device), &state.steps)?;
    let Accumulation { now, to_peak } = state.accumulation.with_current_lines(ledger);
    for (to_peak, passes) in [(false, now), (true, to_peak)] {
        if passes != Passes::default() {
            lines.put(&State::Passes { device, to_peak, passes })?;
        }
    }
    let Growth { ended, stride, courses, cells_before, cells_after } = &state.growth;
    for (scope, course) in std::iter::zip(Scope::ALL, courses) {
        let reference = course.reference.iter().map(|snapshot| (true, snapshot));
        for (reference, snapshot) in reference.chain(course.snapshots.iter().map(|snapshot| (false, snapshot))) {
            let snapshot = snapshot.with_current_lines(ledger.book(scope));
            lines.put(&State::Snapshot { device, scope, reference, snapshot })?;
        }
    }
    let (before, after) = (cells_before.clone(), cells_after.clone());
    lines.put(&State::Growth { device, ended: *ended, stride: *stride, before, after })
}
