//! The model: the state of a traced process, built by replaying its records one by one.
//!
//! Records go in by [`Model::apply`]; everything else looks. Nothing a trace contains can make the model panic,
//! loop or grow beyond what is live and defined: what does not add up is counted in [`Anomalies`] and ignored.

mod accumulation;
mod blocks;
mod calls;
mod category_timeline;
mod code_origin;
mod device;
mod device_views;
mod driver;
mod keyframe;
mod kind;
mod ledger;
mod line_book;
mod lines;
mod long_lived;
mod ooms;
mod sources;
mod steps;
mod symbols;
mod tags;
mod time_bins;
mod timeline;
mod views;

use std::sync::Arc;

use hashbrown::HashMap;

pub use accumulation::{AccumulationSpan, AccumulationView, Caller, StackAccumulation};
pub use calls::{AllocationTotals, Call, CallTree, LineCalls};
pub use code_origin::{CodeOrigin, Scope};
pub use keyframe::Keyframe;
pub use sources::Sources;
pub use symbols::MAX_STACK_DEPTH;
pub use views::*;

use crate::record::{self, Phase, Record};
use device::{DeviceState, Moment, Reached};
use driver::Driver;
use long_lived::LongLivedScan;
use ooms::Ooms;
use steps::Steps;
use symbols::{Missing, Symbols};

/// The device number of host memory.
pub const HOST: i32 = -1;

/// The most devices a process can have, generously.
const DEVICES: i32 = 256;

/// The most warnings kept.
const WARNINGS: usize = 256;

/// The state of a traced process.
#[derive(Clone, Default)]
pub struct Model {
    header: Option<record::Header>,
    end: Option<record::End>,
    warnings: Vec<String>,
    anomalies: Anomalies,
    time: u64,
    events: u64,
    steps_ended: u64,
    phase: Phase,
    symbols: Symbols,
    devices: Vec<Option<Box<DeviceState>>>,
    host: Driver,
    threads: Threads,
    looked: LongLivedScan,
    allocated: u64,
    steps: Steps,
    ooms: Ooms,
    lost_events: u64,
    scope: Scope,
}

/// The threads seen in allocations, and whether they are in forward.
#[derive(Clone, Default)]
struct Threads {
    ids: Vec<u32>,
    in_forward: Vec<bool>,
    indexes: HashMap<u32, u32>,
    forward_count: u32,
    /// How often one has entered it.
    passes: u64,
    /// The thread of the latest event.
    latest: Option<(u32, u32)>,
}

impl Threads {
    #[inline]
    fn index(&mut self, thread: u32) -> u32 {
        match self.latest {
            Some((id, index)) if id == thread => index,
            _ => {
                let index = *self.indexes.entry(thread).or_insert_with(|| {
                    self.ids.push(thread);
                    self.in_forward.push(false);
                    (self.ids.len() - 1) as u32
                });
                self.latest = Some((thread, index));
                index
            }
        }
    }
}

impl Model {
    /// A process of which nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next record of the trace into account.
    #[inline]
    pub fn apply(&mut self, record: Record<'_>) {
        match record {
            Record::Alloc(event) => self.allocate(&event),
            Record::Free(event) => self.free(&event),
            other => self.apply_rare(other),
        }
    }

    fn apply_rare(&mut self, record: Record<'_>) {
        match record {
            Record::Header(header) => self.header = Some(*header),
            Record::Device(info) => {
                if let Some(device) = self.device_mut(info.device) {
                    device.info = Some(info);
                }
            }
            Record::Limit(limit) => self.set_limit(limit),
            Record::Others(others) => self.note_other_processes(others),
            Record::Thread(thread) => self.symbols.define_thread(thread),
            Record::Software(software) => {
                let changes = self.symbols.define_software(software);
                self.redefined(changes);
            }
            Record::CodeRoot(root) => {
                let changes = self.symbols.define_root(root);
                self.redefined(changes);
            }
            Record::Frame(frame) => {
                let changes = self.symbols.define_frame(&frame);
                self.redefined(changes);
                self.defined(Missing::Frame(frame.frame));
            }
            Record::Source(source) => self.symbols.define_source(&source),
            Record::Stack(stack) => {
                let changes = self.symbols.define_stack(stack);
                self.redefined(changes);
                self.defined(Missing::Stack(stack.stack));
            }
            Record::Layer(layer) => self.symbols.define_layer(layer),
            Record::Warning(warning) => {
                if self.warnings.len() < WARNINGS && !self.warnings.contains(&warning) {
                    self.warnings.push(warning);
                }
            }
            Record::Keyframe(keyframe) => self.restore(*keyframe),
            // Where the next line is concerns whoever reads the file.
            Record::Skip(_) => {}
            Record::Unknown => self.anomalies.unknown_records += 1,
            event => self.apply_event(&event),
        }
    }

    fn apply_event(&mut self, record: &Record<'_>) {
        let reached = Reached { steps: self.steps_ended, events: self.events + 1 };
        match record {
            Record::DriverAlloc(event) if event.device != HOST && event.is_block() => {
                let Some((device, ..)) = self.on_device(event.device) else { return };
                device.async_allocate(event);
                let record::DriverAlloc { time, thread, device, address, bytes, stack, layer, flags, .. } = *event;
                self.allocate(&record::Alloc { time, thread, device, address, bytes, stack, layer, flags });
            }
            Record::DriverFree(event) if event.device != HOST && self.frees_block(event) => {
                let record::DriverFree { time, thread, device, address, .. } = *event;
                self.free(&record::Free { time, thread, device, address });
            }
            Record::DriverAlloc(event) => {
                self.event(event.time);
                if event.device == HOST {
                    self.host.allocate(event, &mut self.anomalies);
                } else if let Some((device, _, anomalies)) = self.on_device(event.device) {
                    device.driver_allocate(event, reached, anomalies);
                }
            }
            Record::DriverFree(event) => {
                self.event(event.time);
                if event.device == HOST {
                    self.host.free(event, &mut self.anomalies);
                } else if let Some((device, _, anomalies)) = self.on_device(event.device) {
                    device.driver_free(event, reached, anomalies);
                }
            }
            Record::Map(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.on_device(event.device) {
                    device.driver.map(event);
                }
            }
            Record::Unmap(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.on_device(event.device) {
                    device.driver.unmap(event.address, event.bytes);
                }
            }
            Record::Tag(event) => {
                self.event(event.time);
                if let Some((device, symbols, anomalies)) = self.on_device(event.device) {
                    device.tag(event, symbols, anomalies);
                }
            }
            Record::Used(event) => {
                self.event(event.time);
                let Some((device, ..)) = self.on_device(event.device) else { return };
                let is_first = !device.driver.totals.sampled;
                device.sample(event, reached);
                let index = usize::try_from(event.device).unwrap_or_default();
                if is_first && let Some(Some(device)) = self.devices.get(index) {
                    self.ooms.sampled(event.device, device);
                }
            }
            Record::Moved(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.on_device(event.device) {
                    device.moved(event, reached);
                }
            }
            Record::Oom(event) => {
                self.event(event.time);
                // Also where nothing was ever allocated: the device is there, and too small or too full.
                self.device_mut(event.device);
                let device = usize::try_from(event.device).ok().and_then(|index| self.devices.get(index)?.as_deref());
                self.ooms.note(event, self.steps_ended, self.events, device, &self.symbols);
            }
            // No event of the program's: it counts none.
            Record::Lost(event) => {
                self.lost_events = self.lost_events.saturating_add(event.events);
                self.time = self.time.max(event.time);
            }
            Record::Step(event) => self.end_step(event),
            Record::End(event) => {
                self.event(event.time);
                self.end = Some(*event);
            }
            _ => {}
        }
    }

    /// Takes a block that came from the driver off its books, if it is one.
    fn frees_block(&mut self, event: &record::DriverFree) -> bool {
        let index = usize::try_from(event.device).ok();
        let device = index.and_then(|index| self.devices.get_mut(index)?.as_deref_mut());
        device.is_some_and(|device| device.async_free(event, &mut self.anomalies))
    }

    #[inline]
    fn event(&mut self, time: u64) {
        self.events += 1;
        self.time = self.time.max(time);
    }

    /// How far the run is, once the event at hand is counted.
    #[inline]
    fn reached(&self) -> Reached {
        Reached { steps: self.steps_ended, events: self.events }
    }

    fn defined(&mut self, missing: Missing) {
        for device in self.devices.iter_mut().flatten() {
            for book in device.ledger.books_mut() {
                book.defined(missing, &mut self.symbols);
            }
        }
    }

    /// A definition came again; `changes`: and says something else.
    fn redefined(&mut self, changes: bool) {
        for device in self.devices.iter_mut().flatten().filter(|_| changes) {
            for scope in Scope::ALL {
                let moves = device.ledger.resolve_again(scope, &mut self.symbols);
                device.growth.moved(&device.ledger, scope, &moves);
                if scope == Scope::Users {
                    device.accumulation.moved(&device.ledger, &moves);
                }
            }
        }
    }

    /// The device, made if need be; `None` if there can be no such device.
    #[inline]
    fn device_mut(&mut self, device: i32) -> Option<&mut DeviceState> {
        self.on_device(device).map(|(device, ..)| device)
    }

    #[inline]
    fn on_device(&mut self, device: i32) -> Option<(&mut DeviceState, &mut Symbols, &mut Anomalies)> {
        if !(0..DEVICES).contains(&device) {
            self.anomalies.impossible_events += 1;
            return None;
        }
        let index = device as usize;
        if index >= self.devices.len() {
            self.devices.resize_with(index + 1, || None);
        }
        let device = self.devices[index].get_or_insert_default();
        Some((device, &mut self.symbols, &mut self.anomalies))
    }

    #[inline]
    fn allocate(&mut self, event: &record::Alloc) {
        self.event(event.time);
        let phase = kind::effective_phase(event.layer, event.flags);
        self.phase = phase;
        let thread = self.threads.index(event.thread);
        self.enter(phase, thread);
        let moment = Moment { thread, seen_forward: self.threads.passes > 0, reached: self.reached() };
        let Some((device, symbols, anomalies)) = self.on_device(event.device) else { return };
        let before = device.totals.allocated;
        device.allocate(event, moment, symbols, anomalies);
        let after = device.totals.allocated;
        self.allocated = self.allocated.saturating_sub(before).saturating_add(after);
        self.steps.note(self.allocated);
    }

    #[inline]
    fn free(&mut self, event: &record::Free) {
        self.event(event.time);
        let reached = self.reached();
        let Some((device, symbols, anomalies)) = self.on_device(event.device) else { return };
        let before = device.totals.allocated;
        device.free(event, reached, symbols, anomalies);
        let after = device.totals.allocated;
        self.allocated = self.allocated.saturating_sub(before).saturating_add(after);
    }

    /// A thread allocates in `phase`: what was pending until that is decided.
    #[inline]
    fn enter(&mut self, phase: Phase, thread: u32) {
        let was_in_forward = self.threads.in_forward[thread as usize];
        match phase {
            Phase::Forward if !was_in_forward => {
                self.threads.in_forward[thread as usize] = true;
                self.threads.forward_count += 1;
                self.threads.passes = self.threads.passes.saturating_add(1);
                for device in self.devices.iter_mut().flatten() {
                    device.begin_forward(thread, self.events, &mut self.symbols);
                }
            }
            Phase::Forward => {}
            // Backward runs on threads of its own: whoever starts it, forward has ended everywhere.
            Phase::Backward if self.threads.forward_count > 0 => {
                for thread in 0..self.threads.ids.len() as u32 {
                    self.end_forward(thread);
                }
            }
            _ => self.end_forward(thread),
        }
    }

    #[inline]
    fn end_forward(&mut self, thread: u32) {
        if std::mem::take(&mut self.threads.in_forward[thread as usize]) {
            self.threads.forward_count -= 1;
            for device in self.devices.iter_mut().flatten() {
                device.end_forward(thread, &mut self.symbols);
            }
        }
    }

    fn end_step(&mut self, event: &record::Step) {
        self.event(event.time);
        let thread = self.threads.index(event.thread);
        self.end_forward(thread);
        for device in self.devices.iter_mut().flatten() {
            device.end_step(event, self.events, &mut self.symbols);
        }
        self.steps.end(event.index, event.time, self.allocated, self.events);
        self.steps_ended += 1;
        if self.looked.is_due(self.steps_ended, self.threads.passes) {
            for device in self.devices.iter_mut().flatten() {
                device.reclassify_long_lived(&mut self.symbols);
            }
        }
    }

    fn state(&self, device: i32) -> Option<&DeviceState> {
        self.devices.get(usize::try_from(device).ok()?)?.as_deref()
    }
}

/// Looking.
impl Model {
    /// Which process this is; `None` before the first line.
    pub fn header(&self) -> Option<&record::Header> {
        self.header.as_ref()
    }

    /// How the process ended; `None` while it lives, and if it was killed.
    pub fn end(&self) -> Option<record::End> {
        self.end
    }

    /// What memlab could not do in the process.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Software found in the process.
    pub fn software(&self) -> &[record::Software] {
        &self.symbols.software
    }

    /// What did not add up.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// The time of the latest event, in nanoseconds since the trace's start.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Events replayed.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Events that the trace lacks, since they came faster than it could be kept within its bounds: what it tells of the time
    /// after the first of them is not exact.
    pub fn lost_events(&self) -> u64 {
        self.lost_events
    }

    /// Optimizer steps ended.
    pub fn steps_ended(&self) -> u64 {
        self.steps_ended
    }

    /// The phase of the latest allocation.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The devices seen, by index.
    pub fn devices(&self) -> Vec<DeviceView> {
        (0..).zip(&self.devices).filter_map(|(index, device)| Some(device.as_ref()?.view(index))).collect()
    }

    /// One device.
    pub fn device(&self, device: i32) -> Option<DeviceView> {
        self.state(device).map(|state| state.view(device))
    }

    /// What every layer holds on a device, by outermost module and name. They sum to what is allocated.
    pub fn layers(&self, device: i32) -> Vec<LayerView> {
        self.state(device).map(|state| state.layers(&self.symbols)).unwrap_or_default()
    }

    /// What lines, layers and categories have in common on a device. They sum to what is allocated.
    pub fn attributions(&self, device: i32) -> Vec<AttributionView> {
        self.state(device).map(|state| state.attributions(&self.symbols, self.scope)).unwrap_or_default()
    }

    /// What every category holds on a device, in the order of [`Category::ALL`]. They sum to what is used.
    pub fn categories(&self, device: i32) -> [CategoryView; Category::COUNT] {
        match self.state(device) {
            Some(state) => state.categories(),
            None => DeviceState::default().categories(),
        }
    }

    /// A device's memory over time.
    pub fn timeline(&self, device: i32) -> Timeline {
        self.state(device).map(DeviceState::timeline_view).unwrap_or_default()
    }

    /// A device's segments and the blocks in them.
    pub fn segments(&self, device: i32) -> SegmentMap {
        self.state(device).map(DeviceState::segments).unwrap_or_default()
    }

    /// What every whole stack holds on a device, by id: call trees are sums of these.
    pub fn stacks(&self, device: i32) -> Vec<StackView> {
        self.state(device).map(DeviceState::stacks).unwrap_or_default()
    }

    /// The text of source lines, as far as the trace has it.
    pub fn sources(&self) -> &Arc<Sources> {
        &self.symbols.sources
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: u32) -> Vec<Arc<Line>> {
        self.symbols.climb(stack).map(|frame| frame.line.clone()).collect()
    }

    /// How many stacks are so deep that their outermost calls are not shown: deeper than [`MAX_STACK_DEPTH`].
    pub fn deep_stacks(&self) -> usize {
        self.symbols.deep_stacks()
    }

    /// What to call a layer, as in [`LayerView`]; `None` for 0.
    pub fn layer_name(&self, layer: u32) -> Option<Arc<str>> {
        self.symbols.layer_name(layer)
    }

    /// A live block.
    pub fn block(&self, device: i32, address: u64) -> Option<BlockView> {
        self.state(device)?.block(address)
    }

    /// All live blocks of a device, by address.
    pub fn blocks(&self, device: i32) -> Vec<BlockView> {
        self.state(device).map(DeviceState::block_views).unwrap_or_default()
    }

    /// The block at this address, if it was the last one of its device to be given back.
    pub(crate) fn freed(&self, device: i32, address: u64) -> Option<BlockView> {
        self.state(device)?.freed(address)
    }

    /// What a live block would turn out to have been if it were given back now.
    pub fn block_if_freed(&self, device: i32, address: u64) -> Option<BlockView> {
        self.state(device)?.block_if_freed(address)
    }

    /// The layer that a block counts for in [`Model::layers`].
    pub fn layer_of(&self, block: &BlockView) -> BlockLayer {
        let (root, name) = device_views::block_layer(block.owner, block.layer, &self.symbols);
        BlockLayer { root, name }
    }

    /// A device's totals; zeros if it is not known.
    #[inline]
    pub fn totals(&self, device: i32) -> TotalsView {
        self.state(device).map(DeviceState::totals_view).unwrap_or_default()
    }

    /// Driver memory held at an address ([`HOST`]: the host's).
    pub fn driver_allocation(
        &self,
        device: i32,
        kind: record::DriverKind,
        address: u64,
    ) -> Option<DriverAllocationView> {
        let driver = if device == HOST { Some(&self.host) } else { self.state(device).map(|state| &state.driver) };
        let held = driver?.held.get(&(kind, address))?;
        Some(DriverAllocationView { bytes: held.bytes, is_segment: held.segment, is_block: held.is_block() })
    }

    /// Whether physical memory of a segment is mapped at an address.
    pub fn is_mapped_segment(&self, device: i32, address: u64) -> bool {
        self.state(device).is_some_and(|state| state.driver.is_mapped_segment(address))
    }

    /// Takes over what layers and threads were called later (the names of modules come after their first allocations), and
    /// whose lines are told.
    pub fn adopt_names(&mut self, later: &Self) {
        self.scope = later.scope;
        self.symbols.adopt_names(&later.symbols);
    }

    /// About how much memory the model takes, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let devices = self.devices.iter().flatten().map(|device| device.heap_bytes()).sum::<usize>();
        devices + self.symbols.heap_bytes() + self.steps.list.capacity() * size_of::<StepView>()
    }

    /// What to call a thread, if known.
    pub fn thread(&self, thread: u32) -> Option<&record::Thread> {
        self.symbols.threads.get(&thread)
    }

    /// Driver memory on a device ([`HOST`]: pinned and registered) that is not PyTorch's allocator's, most first.
    pub fn driver_memory(&self, device: i32) -> Vec<DriverView> {
        if device == HOST {
            return self.host.view();
        }
        self.state(device).map(|state| state.driver.view()).unwrap_or_default()
    }

    /// The optimizer steps, all devices together.
    pub fn steps(&self) -> &[StepView] {
        &self.steps.list
    }

    /// The optimizer steps on one device.
    pub fn device_steps(&self, device: i32) -> &[StepView] {
        self.state(device).map(|state| &*state.steps.list).unwrap_or_default()
    }
}
