//! Writes a keyframe.

use std::io::{self, Write};

use serde::Serialize;

use super::packed::{Blocks, Points, StepRows, Tensors, TrainingRows, work_row};
use super::parts::KeyframePart;
use crate::model::blocks::{Block, NONE};
use crate::model::device::DeviceState;
use crate::model::device_totals::OtherProcesses;
use crate::model::driver_memory::DriverMemory;
use crate::model::forwards::Forwards;
use crate::model::gpu_work::GpuWork;
use crate::model::growth::Growth;
use crate::model::holders::Search;
use crate::model::line::Line;
use crate::model::ooms::Ooms;
use crate::model::passes::{Accumulation, Passes};
use crate::model::process_state::{HOST, Model};
use crate::model::scope::Scope;
use crate::model::steps::Steps;
use crate::model::trainings::Trainings;
use crate::model::windows::Windows;
use memlab_format::record;

/// Rows per line. A state may have tens of thousands of blocks, cells and points.
const ROWS_PER_LINE: usize = 128;

/// Writes lines.
struct LineWriter<'w, W> {
    out: &'w mut W,
}

impl<W: Write> LineWriter<'_, W> {
    fn put(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, line)?;
        self.out.write_all(b"\n")
    }
}

impl Model {
    /// Writes the state as lines of a trace.
    ///
    /// A trace of its header, these lines, and the later events replays to the same state as the whole trace.
    ///
    /// # Errors
    ///
    /// If `out` fails.
    pub fn write_keyframe(&self, out: &mut impl Write) -> io::Result<()> {
        let mut lines = LineWriter { out };
        self.write_names(&mut lines)?;
        lines.put(&KeyframePart::Process {
            events: self.event_count,
            time: self.latest_time,
            steps_ended: self.steps_ended,
            steps_untimed: self.steps_untimed,
            phase: self.phase,
            allocated: self.allocated_bytes_all_devices,
            anomalies: self.anomalies,
            lost_events: self.lost_events,
        })?;
        let (ids, in_forward) = (self.threads.ids.clone(), self.threads.in_forward.clone());
        let is_in_one = self.threads.ranges.iter().any(|range| *range != 0);
        let ranges = if is_in_one { self.threads.ranges.clone() } else { Vec::new() };
        lines.put(&KeyframePart::Threads {
            ids,
            in_forward,
            passes: self.threads.passes,
            looked: self.last_scan,
            ranges,
        })?;
        write_steps(&mut lines, None, &self.steps)?;
        let waits: Vec<_> = self.step_waits.entries().copied().collect();
        for waits in waits.chunks(ROWS_PER_LINE) {
            lines.put(&KeyframePart::StepWaits { waits: waits.to_vec() })?;
        }
        if !self.trainings.list.is_empty() {
            let Trainings { joined, names, list } = &self.trainings;
            lines.put(&KeyframePart::Trainings { joined: *joined, names: names.clone() })?;
            for list in list.chunks(ROWS_PER_LINE) {
                lines.put(&KeyframePart::TrainingList { trainings: TrainingRows::default().packed(list) })?;
            }
        }
        for (device, state) in (0..).zip(&self.devices) {
            if let Some(state) = state {
                write_device(&mut lines, device, state)?;
            }
        }
        write_driver(&mut lines, HOST, &self.host)?;
        for search in &self.searches.list {
            lines.put(&KeyframePart::Search(Search::clone(search)))?;
        }
        for oom in &self.ooms.first {
            lines.put(&KeyframePart::Oom { last: false, oom: oom.clone() })?;
        }
        for oom in &self.ooms.last {
            lines.put(&KeyframePart::Oom { last: true, oom: oom.clone() })?;
        }
        let Ooms { count, rest, seen_at, .. } = self.ooms;
        lines.put(&KeyframePart::Ooms { count, rest, seen_at })
    }

    /// Halves the history (timelines, steps, snapshots of lines, repeated out-of-memory events) for a smaller keyframe.
    ///
    /// Returns false if nothing can be halved.
    pub fn shorten_history(&mut self) -> bool {
        let mut shortened =
            self.steps.shorten() | self.trainings.shorten() | self.ooms.shorten() | self.searches.shorten();
        for device in self.devices.iter_mut().flatten() {
            shortened |= device.steps.shorten() | device.growth.shorten();
            shortened |= device.timeline.points.shorten() | device.category_timeline.shorten();
        }
        shortened
    }

    fn write_names<W: Write>(&self, lines: &mut LineWriter<'_, W>) -> io::Result<()> {
        let symbols = &self.symbols;
        // Comes first, so that lines keep the numbers that the rest refers to.
        for line in symbols.lines() {
            lines.put(&KeyframePart::Line(Line::clone(line)))?;
        }
        for owner in symbols.owners() {
            lines.put(&KeyframePart::Owner { root: owner.root, name: owner.name.clone() })?;
        }
        for name in symbols.tensor_names.all() {
            lines.put(&KeyframePart::Tensor(name.clone()))?;
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
            let stands_for = known.stands_for.as_ref().map(|known| known.to_vec());
            lines.put(&record::Frame { frame, stands_for, file, line: *line, function })?;
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
        for (range, known) in sorted(&symbols.ranges) {
            lines.put(&record::Range { range, parent: known.parent, name: known.name.to_string() })?;
        }
        for (kernel, name) in sorted(&symbols.kernels) {
            lines.put(&record::Kernel { kernel, name: name.to_string() })?;
        }
        for (_, thread) in sorted(&symbols.threads) {
            lines.put(thread)?;
        }
        for info in self.devices.iter().flatten().filter_map(|state| state.info.as_ref()) {
            lines.put(info)?;
        }
        for (device, state) in (0..).zip(&self.devices).filter_map(|(device, state)| Some((device, state.as_ref()?))) {
            if let Some(link) = &state.link {
                lines.put(link)?;
            }
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
        if !self.mesh.mesh.is_empty() {
            lines.put(&self.mesh)?;
        }
        if !self.stages.stages.is_empty() {
            lines.put(&self.stages)?;
        }
        self.warnings.iter().try_for_each(|warning| lines.put(&serde_json::json!({ "warning": warning })))
    }
}

fn sorted<T>(map: &hashbrown::HashMap<u32, T>) -> Vec<(u32, &T)> {
    let mut entries: Vec<(u32, &T)> = map.iter().map(|(id, value)| (*id, value)).collect();
    entries.sort_unstable_by_key(|(id, _)| *id);
    entries
}

fn write_steps<W: Write>(lines: &mut LineWriter<'_, W>, device: Option<i32>, steps: &Steps) -> io::Result<()> {
    for steps in steps.list.chunks(ROWS_PER_LINE) {
        lines.put(&KeyframePart::StepList { device, steps: StepRows::default().packed(steps) })?;
    }
    lines.put(&KeyframePart::Steps { device, joined: steps.joined, peak: steps.peak })
}

fn write_driver<W: Write>(lines: &mut LineWriter<'_, W>, device: i32, driver: &DriverMemory) -> io::Result<()> {
    for (source, held) in std::iter::zip(&driver.sources, &driver.held_by_source) {
        lines.put(&KeyframePart::Source { device, source: source.clone(), peak_bytes: held.peak })?;
    }
    for held in driver.held.values() {
        lines.put(&KeyframePart::Held { device, held: *held })?;
    }
    for (address, mapping) in &driver.mappings {
        lines.put(&KeyframePart::Mapping { device, address: *address, mapping: *mapping })?;
    }
    for (graph, captured) in &driver.private.graphs {
        lines.put(&KeyframePart::Graph { device, graph: *graph, captured: *captured })?;
    }
    lines.put(&KeyframePart::Driver { device, totals: driver.totals })
}

fn write_work<W: Write>(lines: &mut LineWriter<'_, W>, device: i32, work: &GpuWork) -> io::Result<()> {
    let mut sums: Vec<_> = work.sums.iter().collect();
    sums.sort_unstable_by_key(|(key, _)| **key);
    for sums in sums.chunks(ROWS_PER_LINE) {
        let work_rows = sums.iter().map(|(key, totals)| work_row(**key, totals)).collect();
        lines.put(&KeyframePart::Work { device, total: work.total, work: work_rows })?;
    }
    let steps: Vec<_> = work.steps.entries().copied().collect();
    for steps in steps.chunks(ROWS_PER_LINE) {
        lines.put(&KeyframePart::Busy { device, busy: work.busy, step_work: steps.to_vec() })?;
    }
    Ok(())
}

fn write_device<W: Write>(lines: &mut LineWriter<'_, W>, device: i32, state: &DeviceState) -> io::Result<()> {
    let ledger = &state.ledger;
    lines.put(&KeyframePart::Device {
        device,
        totals: state.totals,
        epoch: ledger.epoch,
        step_epoch: ledger.book(Scope::Users).step_epoch,
        timeline_origin: state.timeline.points.origin,
        timeline_width_log2: state.timeline.points.width_log2,
    })?;
    for scope in Scope::ALL {
        let book = ledger.book(scope);
        for (slot, stands_for) in std::iter::zip(&book.lines, book.meanings()) {
            lines.put(&KeyframePart::LineSlot { device, scope, slot: *slot, stands_for })?;
        }
    }
    for slot in &ledger.layers {
        lines.put(&KeyframePart::LayerSlot { device, slot: *slot })?;
    }
    for cells in ledger.cells.chunks(ROWS_PER_LINE) {
        let cells = cells.iter().map(|cell| ledger.with_current_lines(cell).into()).collect();
        lines.put(&KeyframePart::Cells { device, cells })?;
    }
    let blocks = state.blocks.by_age();
    for blocks in blocks.chunks(ROWS_PER_LINE) {
        let mut rows = Blocks::default();
        let list = |block: &Block| (block.list != NONE).then_some(block.list);
        let blocks = blocks.iter().map(|block| rows.packed(block, list(block))).collect();
        lines.put(&KeyframePart::Blocks { device, blocks })?;
    }
    let tensors = state.tags.blocks.iter().flat_map(|(slot, tags)| {
        let block = state.blocks.get(*slot).address;
        let is_largest = |address: u64| tags.largest.is_some_and(|(at, _)| at == address);
        tags.tensors.iter().map(move |(address, tensor)| (block, *address, *tensor, is_largest(*address)))
    });
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort_unstable_by_key(|(block, address, ..)| (*block, *address));
    for tensors in tensors.chunks(ROWS_PER_LINE) {
        let mut rows = Tensors::default();
        lines.put(&KeyframePart::Tensors {
            device,
            tensors: tensors.iter().map(|tensor| rows.packed(*tensor)).collect(),
        })?;
    }
    for (owner, owned) in sorted(&state.tags.owners) {
        lines.put(&KeyframePart::Owned { device, owner, owned: *owned })?;
    }
    write_work(lines, device, &state.work)?;
    write_driver(lines, device, &state.driver)?;
    for points in state.timeline.points.list.chunks(ROWS_PER_LINE) {
        lines.put(&KeyframePart::Timeline { device, points: Points::default().packed(points) })?;
    }
    let shares = &state.category_timeline.points;
    lines.put(&KeyframePart::Shares { device, origin: shares.origin, width_log2: shares.width_log2 })?;
    for point in &shares.list {
        lines.put(&KeyframePart::Share { device, point: *point })?;
    }
    write_steps(lines, Some(device), &state.steps)?;
    let Accumulation { now, to_peak } = state.accumulation.with_current_lines(ledger);
    for (to_peak, passes) in [(false, now), (true, to_peak)] {
        if passes != Passes::default() {
            lines.put(&KeyframePart::Passes { device, to_peak, passes })?;
        }
    }
    if state.forwards != Forwards::default() {
        lines.put(&KeyframePart::Forwards { device, forwards: state.forwards.clone() })?;
    }
    let Growth { unit, backwards, ended, stride, histories, cells_before, cells_after, windows } = &state.growth;
    for (scope, history) in histories.iter() {
        let reference = history.reference.iter().map(|snapshot| (true, snapshot));
        for (reference, snapshot) in reference.chain(history.snapshots.iter().map(|snapshot| (false, snapshot))) {
            let snapshot = snapshot.with_current_lines(ledger.book(scope));
            lines.put(&KeyframePart::Snapshot { device, scope, reference, snapshot })?;
        }
    }
    let (before, after) = (cells_before.clone(), cells_after.clone());
    let (unit, backwards) = (*unit, *backwards);
    lines.put(&KeyframePart::Growth { device, ended: *ended, stride: *stride, before, after, unit, backwards })?;
    let windows = windows.with_current_lines(ledger);
    if windows != Windows::default() {
        lines.put(&KeyframePart::Windows { device, windows })?;
    }
    Ok(())
}
