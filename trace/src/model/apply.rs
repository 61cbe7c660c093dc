//! Application of records to the state.

use super::classification::effective_phase;
use super::device_totals::{AllocationContext, RunProgress};
use super::process_state::{HOST, Model};
use super::scope::Scope;
use super::symbols::MissingDefinition;
use memlab_format::record::{self, Phase, Record, SearchReason};

/// Maximum number of warnings kept.
const MAX_WARNINGS: usize = 256;

/// Maximum number of mesh dimensions kept, and of pipeline stages.
const MAX_MESH_DIMENSIONS: usize = 64;
const MAX_STAGES: usize = 1024;

impl Model {
    /// Applies the next record of the trace.
    #[inline]
    pub fn apply(&mut self, record: Record<'_>) {
        match record {
            Record::Alloc(event) => self.allocate(&event),
            Record::Free(event) => self.free(&event),
            other => self.apply_rare(other),
        }
    }

    /// Resets the peaks of a device ([`None`]: of all devices) to the current bytes.
    pub fn reset_peaks(&mut self, device: Option<i32>) {
        let (time, reached) = (self.latest_time, self.reached());
        for (index, state) in (0..).zip(&mut self.devices) {
            if let Some(state) = state.as_mut().filter(|_| device.is_none_or(|device| device == index)) {
                state.reset_peaks(time, reached);
            }
        }
    }

    /// Restarts the timelines of all devices at `time`, with the resolution of a run that begins then.
    pub fn restart_timelines(&mut self, time: u64) {
        for state in self.devices.iter_mut().flatten() {
            state.restart_timelines(time);
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
            Record::Link(link) => {
                if let Some(device) = self.device_mut(link.link) {
                    device.link = Some(link);
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
                self.defined(MissingDefinition::Frame(frame.frame));
            }
            Record::Source(source) => self.symbols.define_source(&source),
            Record::Stack(stack) => {
                let changes = self.symbols.define_stack(stack);
                self.redefined(changes);
                self.defined(MissingDefinition::Stack(stack.stack));
            }
            Record::Layer(layer) => self.symbols.define_layer(layer),
            Record::Kernel(kernel) => self.symbols.define_kernel(&kernel),
            Record::Range(range) => self.symbols.define_range(range),
            Record::Mesh(mut mesh) => {
                mesh.mesh.truncate(MAX_MESH_DIMENSIONS);
                self.mesh = mesh;
            }
            Record::Stages(mut stages) => {
                stages.stages.truncate(MAX_STAGES);
                self.stages = stages;
            }
            Record::Trained(trained) => self.trainings.note(&trained),
            Record::Warning(warning) => {
                if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&warning) {
                    self.warnings.push(warning);
                }
            }
            Record::HolderSearch(search) => {
                self.searches.begin(&search, self.steps_ended, &self.devices);
                if search.reason == SearchReason::Forward {
                    for device in self.devices.iter_mut().flatten() {
                        device.forwards.begin(search.holder_search, &device.blocks, &device.ledger);
                    }
                }
            }
            Record::Holders(part) => {
                if self.searches.add_holders(part).is_none() {
                    self.anomalies.impossible_events += 1;
                }
            }
            Record::Keyframe(keyframe) => self.restore(&keyframe),
            // Only the file reader needs the first, only exports the second, and only plans the others.
            Record::Skip(_) | Record::Ran(_) | Record::Requests(_) | Record::ReadBack(_) => {}
            Record::Unknown => self.anomalies.unknown_records += 1,
            event => self.apply_event(&event),
        }
    }

    fn apply_event(&mut self, record: &Record<'_>) {
        let reached = RunProgress { steps: self.steps_ended, events: self.event_count + 1 };
        match record {
            Record::DriverAlloc(event) if event.device != HOST && event.is_block() => {
                let Some((device, ..)) = self.device_with_symbols(event.device) else { return };
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
                    self.host.allocate(event, None, &mut self.anomalies);
                    return;
                }
                let thread = self.threads.index(event.thread);
                let context = self.context_of(thread);
                if let Some((device, symbols, anomalies)) = self.device_with_symbols(event.device) {
                    device.driver_allocate(event, context, symbols, anomalies);
                }
            }
            Record::DriverFree(event) => {
                self.event(event.time);
                if event.device == HOST {
                    self.host.free(event, &mut self.anomalies);
                } else if let Some((device, _, anomalies)) = self.device_with_symbols(event.device) {
                    device.driver_free(event, reached, anomalies);
                }
            }
            Record::GraphCaptured(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.device_with_symbols(event.device) {
                    device.driver.private.captured(event);
                }
            }
            Record::GraphGone(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.device_with_symbols(event.device) {
                    device.driver.private.gone(event.graph);
                }
            }
            Record::Map(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.device_with_symbols(event.device) {
                    device.driver.map(event);
                }
            }
            Record::Unmap(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.device_with_symbols(event.device) {
                    device.driver.unmap(event.address, event.bytes);
                }
            }
            Record::Work(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.device_with_symbols(event.device) {
                    device.work.add(event);
                }
            }
            Record::StepWork(event) => {
                self.event(event.time);
                self.steps_waiting.gpu_time_known(event.step.saturating_add(event.steps.max(1)) - 1);
                if let Some((device, ..)) = self.device_with_symbols(event.device) {
                    device.work.steps.insert(event.into());
                }
            }
            Record::StepWait(event) => {
                self.event(event.time);
                self.step_waits.insert(event.into());
            }
            Record::Busy(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.device_with_symbols(event.device) {
                    device.work.add_busy(event);
                }
            }
            Record::Tag(event) => {
                self.event(event.time);
                if let Some((device, symbols, anomalies)) = self.device_with_symbols(event.device) {
                    device.tag(event, symbols, anomalies);
                }
            }
            Record::Used(event) => {
                self.event(event.time);
                let Some((device, ..)) = self.device_with_symbols(event.device) else { return };
                let is_first = !device.driver.totals.sampled;
                device.sample(event, reached);
                let index = usize::try_from(event.device).unwrap_or_default();
                if is_first && let Some(Some(device)) = self.devices.get(index) {
                    self.ooms.sampled(event.device, device);
                }
            }
            Record::Moved(event) => {
                self.event(event.time);
                if let Some((device, ..)) = self.device_with_symbols(event.device) {
                    device.moved(event, reached);
                }
            }
            Record::Oom(event) => {
                self.event(event.time);
                // Even a device without an allocation exists: it is too small, or full.
                if let Some(device) = self.device_mut(event.device) {
                    device.totals.ooms += 1;
                }
                let device = usize::try_from(event.device).ok().and_then(|index| self.devices.get(index)?.as_deref());
                self.ooms.note(event, self.steps_ended, self.event_count, device, &self.symbols);
            }
            // Not an event of the program, so it is not counted.
            Record::Lost(event) => {
                self.lost_events = self.lost_events.saturating_add(event.events);
                self.latest_time = self.latest_time.max(event.time);
            }
            Record::Step(event) => self.end_step(event),
            Record::InRange(event) => {
                self.event(event.time);
                let thread = self.threads.index(event.thread);
                self.threads.ranges[thread as usize] = event.range;
            }
            Record::End(event) => {
                self.event(event.time);
                self.end = Some(*event);
            }
            _ => {}
        }
    }

    /// Frees a block that was allocated directly from the driver. Returns true if it existed.
    fn frees_block(&mut self, event: &record::DriverFree) -> bool {
        let index = usize::try_from(event.device).ok();
        let device = index.and_then(|index| self.devices.get_mut(index)?.as_deref_mut());
        device.is_some_and(|device| device.async_free(event, &mut self.anomalies))
    }

    #[inline]
    fn event(&mut self, time: u64) {
        self.event_count += 1;
        self.latest_time = self.latest_time.max(time);
    }

    /// Returns the steps and events so far, including the current event.
    #[inline]
    fn reached(&self) -> RunProgress {
        RunProgress { steps: self.steps_ended, events: self.event_count }
    }

    /// Returns the context of an allocation of a thread (an index). Its event is already counted.
    #[inline]
    fn context_of(&self, thread: u32) -> AllocationContext {
        AllocationContext {
            thread,
            range: self.threads.ranges[thread as usize],
            seen_forward: self.threads.passes > 0,
            reached: self.reached(),
        }
    }

    fn defined(&mut self, missing: MissingDefinition) {
        for device in self.devices.iter_mut().flatten() {
            for book in device.ledger.books_mut() {
                book.defined(missing, &mut self.symbols);
            }
        }
    }

    /// Handles a repeated definition; `changes`: its contents differ.
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

    /// Announces that events of the block at `address` of a device follow soon.
    #[inline]
    pub(crate) fn expect(&self, device: i32, address: u64) {
        let device = usize::try_from(device).ok().and_then(|device| self.devices.get(device)?.as_ref());
        if let Some(device) = device {
            device.blocks.prefetch(address);
        }
    }

    #[inline]
    fn allocate(&mut self, event: &record::Alloc) {
        self.event(event.time);
        let phase = effective_phase(event.layer, event.flags);
        self.phase = phase;
        let thread = self.threads.index(event.thread);
        self.enter(phase, thread);
        let context = self.context_of(thread);
        let Some((device, symbols, anomalies)) = self.device_with_symbols(event.device) else { return };
        let before = device.totals.allocated;
        device.allocate(event, context, symbols, anomalies);
        let after = device.totals.allocated;
        self.allocated_bytes_all_devices =
            self.allocated_bytes_all_devices.saturating_sub(before).saturating_add(after);
        self.steps.note(self.allocated_bytes_all_devices);
    }

    #[inline]
    fn free(&mut self, event: &record::Free) {
        self.event(event.time);
        let reached = self.reached();
        let Some((device, symbols, anomalies)) = self.device_with_symbols(event.device) else { return };
        let before = device.totals.allocated;
        device.free(event, reached, symbols, anomalies);
        let after = device.totals.allocated;
        self.allocated_bytes_all_devices =
            self.allocated_bytes_all_devices.saturating_sub(before).saturating_add(after);
    }

    /// Handles an allocation of a thread in `phase`, which decides pending categories.
    #[inline]
    fn enter(&mut self, phase: Phase, thread: u32) {
        let was_in_forward = self.threads.in_forward[thread as usize];
        match phase {
            Phase::Forward if !was_in_forward => {
                self.threads.in_forward[thread as usize] = true;
                self.threads.forward_count += 1;
                self.threads.passes = self.threads.passes.saturating_add(1);
                for device in self.devices.iter_mut().flatten() {
                    device.begin_forward(thread, self.event_count, &mut self.symbols);
                }
            }
            Phase::Forward => {}
            // Autograd runs backward on other threads, so forward has ended on all threads.
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
            device.end_step(event, self.event_count, &mut self.symbols);
        }
        self.steps.end(event.index, event.time, self.allocated_bytes_all_devices, self.event_count);
        self.steps_ended += 1;
        self.steps_untimed += u64::from(event.is_untimed);
        if !event.is_untimed {
            self.steps_waiting.end(event.index);
        }
        if self.last_scan.is_due(self.steps_ended, self.threads.passes) {
            for device in self.devices.iter_mut().flatten() {
                device.reclassify_long_lived(&mut self.symbols);
            }
        }
    }

    /// Sets the limit of a device.
    pub(super) fn set_limit(&mut self, limit: record::Limit) {
        if let Some(device) = self.device_mut(limit.limit) {
            device.limit = Some(limit);
        }
    }
    /// Records the memory of other processes on a device.
    pub(super) fn note_other_processes(&mut self, others: record::Others) {
        self.ooms.note_other_processes(others.others, &others.processes);
        if let Some(device) = self.device_mut(others.others) {
            device.others.note(others.processes);
        }
    }
}
