//! Reads a recording from a trace.
//!
//! The trace records the place of each block's request and the ends of steps. PyTorch's notes at the end of the trace,
//! if present, contain the requested bytes, the stream, and the time of reuse. Both list the allocations of a device in
//! the same order.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::allocator::PoolKey;
use memlab_trace::record::{
    Alloc, AllocatorRequest, AllocatorRequestKind, CodeKind, CodeRoot, DriverAlloc, DriverKind, Flags, Requests,
};
use memlab_trace::{BlockView, Category, Line, Model, Record, Sink, read_whole};
use rustc_hash::FxHashMap;

use crate::plan::stage::{Stage, Stages};

use super::{Allocation, Event, ReadBacks, Recording, RecordingError};

impl Recording {
    /// Reads a trace: the run on the device with the most allocated bytes.
    ///
    /// # Errors
    ///
    /// If the file is not a trace, or contains nothing to plan with.
    pub fn read(path: &Path) -> Result<Recording, RecordingError> {
        Recording::read_under(path, "")
    }

    /// Reads the trace of a program that other code runs.
    ///
    /// Lines of that code, in the folder `harness`, count only if the stack has no others.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_under(path: &Path, harness: &str) -> Result<Recording, RecordingError> {
        let mut reader = RecordingReader { harness: harness.to_owned(), ..RecordingReader::default() };
        read_whole(path, &mut reader, &mut |_| ControlFlow::Continue(()))?;
        reader.finish().map_err(|(error, _)| error)
    }
}

/// A block, as the trace describes it.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    bytes: u64,
    stack: u32,
    layer: u32,
    flags: Flags,
    category: Category,
    owner: u32,
    origin: Origin,
}

/// Purpose for which PyTorch's allocator took a segment.
#[derive(Clone, Copy, Default)]
struct Origin {
    /// CUDA graph capture whose private pool the segment belongs to; 0: none.
    graph: u64,
    stream: u64,
}

#[derive(Default)]
struct Device {
    blocks: Vec<Block>,
    live: FxHashMap<u64, u32>,
    /// Allocations and frees in order, without PyTorch's notes.
    events: Vec<Event>,
    frees: usize,
    /// Sizes and origins of segments, by address.
    segments: BTreeMap<u64, (u64, Origin)>,
    /// Memory mapped into segments, by its number.
    physical: FxHashMap<u64, Origin>,
    /// True if segments went back to the driver since the last allocation or free.
    gives_back: bool,
    /// Number of allocations and of frees at each end of a step.
    steps: Vec<(usize, usize)>,
    /// Number of allocations and of frees at each start of a forward pass.
    passes: Vec<(usize, usize)>,
    requests: Vec<AllocatorRequest>,
    /// Bytes outside PyTorch's allocator, by address.
    outside: FxHashMap<u64, u64>,
    most_outside: u64,
}

/// Builds a recording from the records of a trace.
#[derive(Default)]
pub struct RecordingReader {
    model: Model,
    /// A longer trace gives its model, but no recording; `None`: no limit.
    max_events: Option<u64>,
    /// Folder of code that only runs the program; empty: none.
    harness: String,
    devices: FxHashMap<i32, Device>,
    /// Number and bytes of reads, by stack.
    read_backs: FxHashMap<u32, (u64, u64)>,
}

impl Sink for RecordingReader {
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        if self.is_too_long() {
            self.devices.clear();
            self.model.apply(record);
            return ControlFlow::Continue(());
        }
        let passes = self.model.passes_begun();
        let mut allocated = None;
        match &record {
            Record::Alloc(event) => {
                allocated = Some(event.device);
                self.devices.entry(event.device).or_default().allocated(event);
            }
            Record::Free(event) => {
                let view = self.model.block_if_freed(event.device, event.address);
                if let Some(device) = self.devices.get_mut(&event.device) {
                    device.freed(event.address, view);
                }
            }
            Record::DriverAlloc(event) => {
                let is_of_allocator = event.flags.has(Flags::SEGMENT) || event.library.contains("c10_cuda");
                if event.kind.on_device() && !is_of_allocator {
                    self.devices.entry(event.device).or_default().change_outside(event.address, event.bytes);
                } else if event.flags.has(Flags::SEGMENT) {
                    self.devices.entry(event.device).or_default().reserved(event);
                }
            }
            Record::Map(event) => {
                if let Some(device) = self.devices.get_mut(&event.device)
                    && let Some(origin) = device.physical.get(&event.handle)
                {
                    device.segments.insert(event.address, (event.bytes, *origin));
                }
            }
            Record::DriverFree(event) => {
                let held = self.model.driver_allocation(event.device, event.kind, event.address);
                if let Some(device) = self.devices.get_mut(&event.device) {
                    device.outside.remove(&event.address);
                    if held.is_some_and(|held| held.is_segment && !held.is_block) {
                        device.empty_cache();
                    }
                }
            }
            Record::Step(_) => self.devices.values_mut().for_each(|device| device.steps.push(device.counts(0))),
            Record::Requests(part) => self.add_requests(part),
            Record::ReadBack(event) => {
                let (count, bytes) = self.read_backs.entry(event.stack).or_default();
                (*count, *bytes) = (*count + 1, bytes.saturating_add(event.bytes));
            }
            _ => {}
        }
        self.model.apply(record);
        // The allocation with which a pass begins belongs to it.
        if self.model.passes_begun() > passes {
            for (index, device) in &mut self.devices {
                device.passes.push(device.counts(usize::from(Some(*index) == allocated)));
            }
        }
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn restart(&mut self) {
        let harness = std::mem::take(&mut self.harness);
        *self = RecordingReader { harness, max_events: self.max_events, ..RecordingReader::default() };
    }
}

impl RecordingReader {
    /// Returns a reader that gives up the recording of a trace with more events.
    pub fn up_to(max_events: u64) -> Self {
        Self { max_events: Some(max_events), ..Self::default() }
    }

    fn is_too_long(&self) -> bool {
        self.max_events.is_some_and(|max_events| self.model.events() > max_events)
    }

    fn add_requests(&mut self, part: &Requests) {
        self.devices.entry(part.requests).or_default().requests.extend(part.entries());
    }

    /// Returns the run on the device with the most allocated bytes, with the state at the end of the trace.
    ///
    /// # Errors
    ///
    /// If the trace contains nothing to plan with: the reason, and the state at the end of the trace.
    pub fn finish(mut self) -> Result<Recording, (RecordingError, Box<Model>)> {
        if self.is_too_long() {
            return Err((RecordingError::TooLong, Box::new(self.model)));
        }
        if self.model.lost_events() > 0 {
            return Err((RecordingError::Incomplete, Box::new(self.model)));
        }
        let peak = |device: &i32| self.model.peaks(*device).allocated_bytes;
        let fullest = self.devices.keys().copied().max_by_key(peak);
        let fullest = fullest.and_then(|index| Some((index, self.devices.remove(&index)?)));
        let Some((index, mut device)) = fullest.filter(|(_, device)| !device.blocks.is_empty()) else {
            return Err((nothing_allocated(&self.model), Box::new(self.model)));
        };
        for block in device.live.values() {
            let block = &mut device.blocks[*block as usize];
            block.reclassify(self.model.block(index, block.address));
        }
        let harness = CodeRoot { code: CodeKind::Generated, root: std::mem::take(&mut self.harness) };
        self.model.apply(Record::CodeRoot(harness));
        self.model.set_scope(None);
        let read_backs = read_backs_by_line(&self.read_backs, &self.model);
        Ok(Recording { read_backs, ..device.into_recording(index, self.model) })
    }
}

/// Returns the reason that PyTorch's allocator handed out nothing.
fn nothing_allocated(model: &Model) -> RecordingError {
    if model.oom_count() > 0 {
        RecordingError::FirstRequestFailed
    } else if model.devices().is_empty() {
        RecordingError::NoAllocations
    } else {
        RecordingError::OutsideOfPyTorch
    }
}

impl Block {
    fn reclassify(&mut self, view: Option<BlockView>) {
        if let Some(view) = view {
            (self.category, self.owner) = (view.category, view.owner);
        }
    }
}

impl Device {
    fn allocated(&mut self, event: &Alloc) {
        let Alloc { address, bytes, stack, layer, flags, .. } = *event;
        let id = self.blocks.len() as u32;
        let segment = self.segments.range(..=address).next_back();
        let segment = segment.filter(|(start, (bytes, _))| address - **start < *bytes);
        let origin = segment.map(|(_, (_, origin))| *origin).unwrap_or_default();
        self.blocks.push(Block { address, bytes, stack, layer, flags, category: Category::Other, owner: 0, origin });
        self.live.insert(address, id);
        self.events.push(Event::Allocate(id));
        self.gives_back = false;
    }

    fn freed(&mut self, address: u64, view: Option<BlockView>) {
        if let Some(id) = self.live.remove(&address) {
            self.blocks[id as usize].reclassify(view);
            self.events.push(Event::Free(id));
            self.frees += 1;
            self.gives_back = false;
        }
    }

    fn reserved(&mut self, event: &DriverAlloc<'_>) {
        let origin = Origin { graph: event.graph, stream: event.stream };
        if event.kind == DriverKind::Physical {
            self.physical.insert(event.address, origin);
        } else {
            self.segments.insert(event.address, (event.bytes, origin));
        }
    }

    /// Records one emptied cache for all segments that go back to the driver together.
    fn empty_cache(&mut self) {
        if !self.gives_back {
            self.events.push(Event::EmptyCache);
        }
        self.gives_back = true;
    }

    fn change_outside(&mut self, address: u64, bytes: u64) {
        self.outside.insert(address, bytes);
        self.most_outside = self.most_outside.max(self.outside.values().sum());
    }

    /// Returns the number of allocations, less the last few, and of frees.
    fn counts(&self, less: usize) -> (usize, usize) {
        (self.blocks.len() - less, self.frees)
    }

    fn into_recording(self, device: i32, model: Model) -> Recording {
        let noted = self.requests.iter().filter(|request| request.kind == AllocatorRequestKind::Allocation);
        let is_noted = noted.clone().count() > 0
            && std::iter::zip(noted.clone(), &self.blocks).all(|(request, block)| request.address == block.address);
        let mut places = vec![PoolKey::default()];
        let mut allocations: Vec<Allocation> = self.blocks.iter().map(Allocation::of).collect();
        let mut events = self.events;
        let mut stages = Stages::default();
        if is_noted {
            for (allocation, request) in std::iter::zip(&mut allocations, noted) {
                allocation.size = request.bytes;
                allocation.place = place_of(&mut places, request);
            }
            (events, stages) = events_of(&self.requests, allocations.len());
        } else {
            for (allocation, Block { origin, .. }) in std::iter::zip(&mut allocations, &self.blocks) {
                let pool = match origin.graph {
                    0 => (0, 0),
                    // A failed capture has a separate pool.
                    graph => model.pool_of_capture(device, graph).unwrap_or((u64::MAX, graph)),
                };
                allocation.place = index_of(&mut places, PoolKey { stream: origin.stream, pool });
            }
        }
        let mut steps = positions_in(&events, &self.steps);
        if let Some(end) = stages.first_after(&steps) {
            steps.retain(|step| *step < end);
        }
        sort_frees(&mut events, &steps);
        let passes = positions_in(&events, &self.passes);
        Recording {
            device,
            allocations,
            events,
            places,
            steps,
            passes,
            stages,
            has_requested_sizes: is_noted,
            ran_out_of_memory: self.requests.iter().any(|request| request.kind == AllocatorRequestKind::OutOfMemory),
            outside: self.most_outside,
            read_backs: Vec::new(),
            model,
        }
    }
}

impl Allocation {
    fn of(block: &Block) -> Allocation {
        let Block { bytes, stack, layer, flags, category, owner, .. } = *block;
        Allocation { size: bytes, place: 0, stack, layer, owner, category, flags }
    }
}

/// Returns the read-backs by line, most frequent first.
fn read_backs_by_line(by_stack: &FxHashMap<u32, (u64, u64)>, model: &Model) -> Vec<ReadBacks> {
    let mut by_line: FxHashMap<Option<Arc<Line>>, (u64, u64)> = FxHashMap::default();
    for (stack, (count, bytes)) in by_stack {
        let all = by_line.entry(model.line_of(*stack)).or_default();
        *all = (all.0 + count, all.1.saturating_add(*bytes));
    }
    let read_backs = by_line.into_iter().map(|(line, (count, bytes))| ReadBacks { line, count, bytes });
    let mut read_backs: Vec<ReadBacks> = read_backs.collect();
    read_backs.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.line.cmp(&b.line)));
    read_backs
}

/// Distinguishes streams by their first use: their handles differ from run to run.
fn place_of(places: &mut Vec<PoolKey>, request: &AllocatorRequest) -> u16 {
    index_of(places, PoolKey { stream: request.stream, pool: request.pool })
}

fn index_of(places: &mut Vec<PoolKey>, place: PoolKey) -> u16 {
    let index = places.iter().position(|known| *known == place).unwrap_or_else(|| {
        places.push(place);
        places.len() - 1
    });
    index as u16
}

/// Returns the events in PyTorch's notes, up to the last allocation in the trace, and the starts of the program's
/// parts.
fn events_of(requests: &[AllocatorRequest], allocations: usize) -> (Vec<Event>, Stages) {
    let mut stages = Stages::default();
    let mut events = Vec::with_capacity(requests.len());
    let mut live: FxHashMap<u64, u32> = FxHashMap::default();
    let mut next = 0;
    let mut gives_back = false;
    for entry in requests {
        let known = live.get(&entry.address).copied();
        match (entry.kind, known) {
            (AllocatorRequestKind::Allocation, _) if next as usize == allocations => break,
            (AllocatorRequestKind::Allocation, _) => {
                live.insert(entry.address, next);
                events.push(Event::Allocate(next));
                next += 1;
            }
            (AllocatorRequestKind::FreeRequested, Some(id)) => events.push(Event::FreeRequested(id)),
            (AllocatorRequestKind::FreeCompleted | AllocatorRequestKind::Free, Some(id)) => {
                live.remove(&entry.address);
                let is_free = entry.kind == AllocatorRequestKind::Free;
                events.push(if is_free { Event::Free(id) } else { Event::FreeCompleted(id) });
            }
            (AllocatorRequestKind::Phase, _) => match Stage::of(entry.address) {
                Some(stage) => stages.begins.push((events.len(), stage)),
                None => stages.has_failed = true,
            },
            (AllocatorRequestKind::SegmentFree, _) if !gives_back => events.push(Event::EmptyCache),
            _ => {}
        }
        gives_back = entry.kind == AllocatorRequestKind::SegmentFree;
    }
    (events, stages)
}

/// Locates ends of steps, or starts of passes, among the events, from the number of preceding allocations and frees.
fn positions_in(events: &[Event], counts: &[(usize, usize)]) -> Vec<usize> {
    let mut positions = Vec::with_capacity(counts.len());
    let (mut allocations, mut frees) = (0, 0);
    let mut counts = counts.iter().peekable();
    for (index, event) in events.iter().enumerate() {
        while counts.next_if(|(allocated, freed)| allocations >= *allocated && frees >= *freed).is_some() {
            positions.push(index);
        }
        match event {
            Event::Allocate(_) => allocations += 1,
            Event::Free(_) | Event::FreeRequested(_) => frees += 1,
            Event::FreeCompleted(_) | Event::EmptyCache => {}
        }
    }
    positions.extend(counts.map(|_| events.len()));
    positions
}

/// Sorts the frees between two allocations, or steps, by id.
///
/// Some come in the order of a hash table, which differs from run to run.
fn sort_frees(events: &mut [Event], steps: &[usize]) {
    let mut steps = steps.iter().copied().peekable();
    let mut start = 0;
    for index in 0..=events.len() {
        let is_step = steps.next_if(|step| *step <= index).is_some();
        let ends = events.get(index).is_none_or(|event| matches!(event, Event::Allocate(_) | Event::EmptyCache));
        if is_step || ends {
            events[start..index].sort_unstable_by_key(|event| match *event {
                Event::Free(id) | Event::FreeRequested(id) | Event::FreeCompleted(id) | Event::Allocate(id) => {
                    (id, *event)
                }
                Event::EmptyCache => (u32::MAX, *event),
            });
            start = if ends { index + 1 } else { index };
        }
    }
}
