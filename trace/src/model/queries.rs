//! Queries of the model: views of its state.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashSet;

use super::accumulation::{AccumulationView, Caller, after_steps, over_passes, over_steps, until_release};
use super::anomalies::Anomalies;
use super::call_tree::CallTree;
use super::category::Category;
use super::code_origin::CodeOrigin;
use super::device::DeviceState;
use super::device_views::block_layer;
use super::forwards::EarlierForwards;
use super::history_views::{GrowthMoments, OomView, StepView, Timeline, TrainingView};
use super::holders::{BlockAtSearch, HeldView, SearchView};
use super::line::Line;
use super::process_state::{HOST, Model};
use super::scope::Scope;
use super::sources::Sources;
use super::views::{
    AttributionView, BlockLayer, BlockView, CategoryView, DeviceView, DriverAllocationView, DriverView, GpuWorkView,
    LayerView, PrivatePoolView, RangePath, RangeView, SegmentMap, StackView, StepWaitView, StepWorkView, TensorView,
    TotalsView,
};
use memlab_format::record::{self, Phase, SearchReason};
use memlab_holders::Holder;

impl Model {
    /// Returns the header; `None` before the first line.
    pub fn header(&self) -> Option<&record::Header> {
        self.header.as_ref()
    }

    /// Returns the end of the process; `None` while it runs, and if it was killed.
    pub fn end(&self) -> Option<record::End> {
        self.end
    }

    /// Returns memlab's warnings about the process.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the device mesh dimensions of the process; empty if it is in no mesh.
    pub fn mesh(&self) -> &[record::MeshDimension] {
        &self.mesh.mesh
    }

    /// Returns the pipeline stages of the process; empty if it holds none.
    pub fn stages(&self) -> &record::Stages {
        &self.stages
    }

    /// Returns the software found in the process.
    pub fn software(&self) -> &[record::Software] {
        &self.symbols.software
    }

    /// Returns the contradictions found in the trace.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// Returns the time of the latest event, in nanoseconds since the trace's start.
    pub fn time(&self) -> u64 {
        self.latest_time
    }

    /// Returns the number of events replayed.
    pub fn events(&self) -> u64 {
        self.event_count
    }

    /// Returns the number of events missing in the trace.
    ///
    /// They came faster than memlab could keep the trace within its size limit. Figures after the first missing event are
    /// not exact.
    pub fn lost_events(&self) -> u64 {
        self.lost_events
    }

    /// Returns the number of optimizer steps ended.
    pub fn steps_ended(&self) -> u64 {
        self.steps_ended
    }

    /// Returns the number of forward passes begun, on any thread.
    pub fn passes_begun(&self) -> u64 {
        self.threads.passes
    }

    /// Returns the number of ended steps whose GPU time is known, if GPU time was recorded.
    ///
    /// The other steps were not selected for timing, or the program was killed before it wrote their records.
    pub fn steps_timed(&self) -> u64 {
        let has_exited = self.end.as_ref().is_some_and(|end| end.signal.is_none());
        self.steps_ended.saturating_sub(self.steps_untimed).saturating_sub(self.steps_waiting.count(has_exited))
    }

    /// Returns the phase of the latest allocation.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the devices seen, by index.
    pub fn devices(&self) -> Vec<DeviceView> {
        (0..).zip(&self.devices).filter_map(|(index, device)| Some(device.as_ref()?.view(index))).collect()
    }

    /// Returns the view of one device.
    pub fn device(&self, device: i32) -> Option<DeviceView> {
        self.device_state(device).map(|state| state.view(device))
    }

    /// Returns the memory of every layer on a device, by outermost module and name.
    ///
    /// The layers sum to the allocated bytes.
    pub fn layers(&self, device: i32) -> Vec<LayerView> {
        self.device_state(device).map(|state| state.layers(&self.symbols)).unwrap_or_default()
    }

    /// Returns the memory of every combination of line, layer and category on a device.
    ///
    /// The combinations sum to the allocated bytes.
    pub fn attributions(&self, device: i32) -> Vec<AttributionView> {
        self.device_state(device).map(|state| state.attributions(&self.symbols, self.scope)).unwrap_or_default()
    }

    /// Returns the memory of every category on a device, in the order of [`Category::ALL`].
    ///
    /// The categories sum to the device's use.
    pub fn categories(&self, device: i32) -> [CategoryView; Category::COUNT] {
        match self.device_state(device) {
            Some(state) => state.categories(),
            None => DeviceState::default().categories(),
        }
    }

    /// Returns the GPU work of a device, by lines of the scope of [`set_scope`](Self::set_scope); `None`: not recorded.
    pub fn gpu_work(&self, device: i32) -> Option<GpuWorkView> {
        self.gpu_work_in(device, self.scope)
    }

    /// Returns the GPU work of a device, by lines of `scope`; `None`: not recorded.
    pub fn gpu_work_in(&self, device: i32, scope: Scope) -> Option<GpuWorkView> {
        let state = self.device_state(device)?;
        (state.work.total.calls > 0).then(|| state.work.view(scope, &self.symbols))
    }

    /// Returns the GPU nanoseconds of all work on a device for which `counts(stack, in_backward)` returns true.
    pub fn gpu_nanoseconds(&self, device: i32, mut counts: impl FnMut(u32, bool) -> bool) -> u64 {
        let sums = self.device_state(device).into_iter().flat_map(|state| &state.work.sums);
        sums.filter(|((stack, _, phase, _), _)| counts(*stack, *phase == Phase::Backward as u8))
            .fold(0, |sum, (_, totals)| sum.saturating_add(totals.nanoseconds))
    }

    /// Returns the GPU work of a device by optimizer step, in order; empty: not recorded.
    pub fn step_work(&self, device: i32) -> Vec<StepWorkView> {
        self.device_state(device).map(|state| state.work.steps.entries().copied().collect()).unwrap_or_default()
    }

    /// Returns the files of all frames, in any order.
    pub fn files(&self) -> impl Iterator<Item = &Arc<str>> {
        self.symbols.files.iter()
    }

    /// Returns the name of a kernel, copy or fill, by its number in the trace.
    pub fn kernel_name(&self, kernel: u32) -> Arc<str> {
        self.symbols.kernel_name(kernel)
    }

    /// Returns the class of a layer's module; `None` if it is not known.
    pub fn layer_class(&self, layer: u32) -> Option<Arc<str>> {
        self.symbols.layer_class(layer)
    }

    /// Returns a device's memory over time.
    pub fn timeline(&self, device: i32) -> Timeline {
        self.device_state(device).map(DeviceState::timeline_view).unwrap_or_default()
    }

    /// Returns a device's segments with their blocks.
    pub fn segments(&self, device: i32) -> SegmentMap {
        self.device_state(device).map(DeviceState::segments).unwrap_or_default()
    }

    /// Returns the memory of every stack on a device, by id. Call trees are sums of these.
    pub fn stacks(&self, device: i32) -> Vec<StackView> {
        self.device_state(device).map(DeviceState::stacks).unwrap_or_default()
    }

    /// Returns the text of the source lines that the trace contains.
    pub fn sources(&self) -> &Arc<Sources> {
        &self.symbols.sources
    }

    /// Returns the frames of a stack, innermost first.
    pub fn frames(&self, stack: u32) -> Vec<Arc<Line>> {
        self.symbols.climb(stack).map(|frame| frame.line.clone()).collect()
    }

    /// Returns true if code of torch.compile runs in place of a line, at least at times.
    pub fn runs_compiled(&self, line: &Arc<Line>) -> bool {
        self.symbols.is_compiled(line)
    }

    /// Returns the number of stacks deeper than [`MAX_STACK_DEPTH`](super::MAX_STACK_DEPTH).
    ///
    /// Their outermost calls are not shown.
    pub fn deep_stacks(&self) -> usize {
        self.symbols.deep_stacks()
    }

    /// Returns the name of a layer, as in [`LayerView`]; `None` for 0.
    pub fn layer_name(&self, layer: u32) -> Option<Arc<str>> {
        self.symbols.layer_name(layer)
    }

    /// Returns the live block at an address.
    pub fn block(&self, device: i32, address: u64) -> Option<BlockView> {
        self.device_state(device)?.block(address)
    }

    /// Returns all live blocks of a device, by address.
    pub fn blocks(&self, device: i32) -> Vec<BlockView> {
        self.device_state(device).map(DeviceState::block_views).unwrap_or_default()
    }

    /// Returns the live arrays of other libraries on a device as blocks, by address. Their times are not known.
    pub fn arrays(&self, device: i32) -> Vec<BlockView> {
        self.device_state(device).map(DeviceState::arrays).unwrap_or_default()
    }

    /// Returns the tagged tensors in the live block at an address, by their own addresses.
    pub fn tensors_in(&self, device: i32, block: u64) -> Vec<TensorView> {
        self.device_state(device).map(|state| state.tensors_in(block, &self.symbols)).unwrap_or_default()
    }

    /// Returns the block at this address if it was the last one freed on its device.
    pub fn freed(&self, device: i32, address: u64) -> Option<BlockView> {
        self.device_state(device)?.freed(address)
    }

    /// Returns a live block in the category it would have if it were freed now.
    pub fn block_if_freed(&self, device: i32, address: u64) -> Option<BlockView> {
        self.device_state(device)?.block_if_freed(address)
    }

    /// Returns the memory of each range named by the program, and outside of ranges, by path.
    ///
    /// Empty if no range allocated on the device.
    pub fn ranges(&self, device: i32) -> Vec<RangeView> {
        self.device_state(device).map(|state| state.ranges(&self.symbols)).unwrap_or_default()
    }

    /// Returns the memory of each stack on a device for each range of its allocations (0: none), by range and stack.
    pub fn stacks_in_ranges(&self, device: i32) -> Vec<(u32, StackView)> {
        self.device_state(device).map(DeviceState::stacks_in_ranges).unwrap_or_default()
    }

    /// Returns the current range of a thread; 0: none.
    pub fn range_of_thread(&self, thread: u32) -> u32 {
        self.threads.indexes.get(&thread).map_or(0, |index| self.threads.ranges[*index as usize])
    }

    /// Returns the names of a range and its enclosing ranges.
    pub fn range_path(&self, range: u32) -> RangePath {
        self.symbols.range_path(range)
    }

    /// Returns the layer that counts a block in [`Model::layers`].
    pub fn layer_of(&self, block: &BlockView) -> BlockLayer {
        let (root, name) = block_layer(block.owner, block.layer, &self.symbols);
        BlockLayer { root, name }
    }

    /// Returns the totals of a device; zeros if it is not known.
    #[inline]
    pub fn totals(&self, device: i32) -> TotalsView {
        self.device_state(device).map(DeviceState::totals_view).unwrap_or_default()
    }

    /// Returns the peak of each of [`totals`](Self::totals). The peaks may be at different times.
    #[inline]
    pub fn peaks(&self, device: i32) -> TotalsView {
        self.device_state(device).map(DeviceState::peaks_view).unwrap_or_default()
    }

    /// Returns the driver memory at an address ([`HOST`]: host memory).
    pub fn driver_allocation(
        &self,
        device: i32,
        kind: record::DriverKind,
        address: u64,
    ) -> Option<DriverAllocationView> {
        let driver =
            if device == HOST { Some(&self.host) } else { self.device_state(device).map(|state| &state.driver) };
        let held = driver?.held.get(&(kind, address))?;
        Some(DriverAllocationView { bytes: held.bytes, is_segment: held.segment, is_block: held.is_block() })
    }

    /// Returns true if physical memory of a segment is mapped at an address.
    pub fn is_mapped_segment(&self, device: i32, address: u64) -> bool {
        self.device_state(device).is_some_and(|state| state.driver.is_mapped_segment(address))
    }

    /// Returns the approximate heap size of the model in bytes.
    pub fn heap_bytes(&self) -> usize {
        let devices = self.devices.iter().flatten().map(|device| device.heap_bytes()).sum::<usize>();
        let steps = self.steps.list.capacity() * size_of::<StepView>() + self.trainings.heap_bytes();
        devices + self.symbols.heap_bytes() + steps
    }

    /// Returns the definition of a thread, if known.
    pub fn thread(&self, thread: u32) -> Option<&record::Thread> {
        self.symbols.threads.get(&thread)
    }

    /// Returns the driver memory on a device outside PyTorch's allocator, largest first ([`HOST`]: pinned and registered
    /// memory).
    pub fn driver_memory(&self, device: i32) -> Vec<DriverView> {
        if device == HOST {
            return self.host.view();
        }
        self.device_state(device).map(|state| state.driver.view()).unwrap_or_default()
    }

    /// Returns the library and peak bytes of each source of driver memory outside PyTorch's allocator.
    pub fn driver_peaks(&self, device: i32) -> Vec<(Arc<str>, u64)> {
        let Some(state) = self.device_state(device) else { return Vec::new() };
        let peaks = std::iter::zip(&state.driver.sources, &state.driver.held_by_source);
        peaks.map(|(source, held)| (source.library.clone(), held.peak)).collect()
    }

    /// Returns the optimizer steps, with figures over all devices.
    pub fn steps(&self) -> &[StepView] {
        &self.steps.list
    }

    /// Returns the optimizer steps, with figures of one device.
    pub fn device_steps(&self, device: i32) -> &[StepView] {
        self.device_state(device).map(|state| &*state.steps.list).unwrap_or_default()
    }

    /// Returns the time in which the program gave its GPUs no work in a step; `None`: not recorded.
    pub fn step_wait(&self, step: &StepView) -> Option<StepWaitView> {
        self.step_waits.of(step.indexes())
    }

    /// Returns true if the waits of steps were recorded.
    pub fn has_step_waits(&self) -> bool {
        self.step_waits.entries().next().is_some()
    }

    /// Returns the training progress of a step, if the training recorded it.
    pub fn training(&self, step: &StepView) -> Option<TrainingView> {
        self.trainings.of(step.indexes())
    }

    /// Returns true if a training recorded its steps.
    pub fn has_trainings(&self) -> bool {
        !self.trainings.list.is_empty()
    }

    /// Returns the memory that accumulates on a device: over steps or iterations, until a release, and over forward passes
    /// before the peak.
    pub fn accumulations(&self, device: i32) -> Vec<AccumulationView> {
        let Some(state) = self.device_state(device) else { return Vec::new() };
        [over_steps, after_steps, until_release, over_passes]
            .into_iter()
            .filter_map(|find| find(state, &self.symbols))
            .collect()
    }

    /// Returns what holds the memory that these stacks allocated on a device, at the search at which most of it was alive,
    /// after `from` steps or iterations.
    ///
    /// `None`: no search found any.
    pub fn holders_of(&self, device: i32, stacks: &[u32], from: u64) -> Option<HeldView> {
        self.searches.of_stacks(device, stacks, from)
    }

    /// Returns `Ok` if the search of this number has ended, and the reason if it found nothing; `None`: it runs.
    pub fn search_ended(&self, number: u32) -> Option<Result<(), &str>> {
        self.searches.ended(number)
    }

    /// Returns what held the blocks that contain these addresses, at the search of this number; `None`: no block does.
    pub fn holders_of_addresses(&self, number: u32, addresses: &[u64]) -> Option<HeldView> {
        self.searches.of_addresses(number, addresses)
    }

    /// Returns what held the memory of a device that a line allocated, at the search of this number. Without a device: of
    /// all; without a line: of any. `line` is the end of a path, and a line number.
    pub fn holders_of_line(&self, number: u32, device: Option<i32>, line: Option<(&str, u32)>) -> Option<HeldView> {
        let is_of = |stack: u32| {
            let Some((file, number)) = line else { return true };
            self.line_of(stack).is_some_and(|of| of.file.ends_with(file) && of.line == Some(number))
        };
        let is_on = |on: i32| device.is_none_or(|device| device == on);
        self.searches.of_blocks_at(number, &|block| is_on(block.device) && is_of(block.stack))
    }

    /// Returns what held the memory of a device in the wanted layers, at the search of this number.
    pub fn holders_of_layers(
        &self,
        number: u32,
        device: i32,
        is_wanted: &dyn Fn(&BlockLayer) -> bool,
    ) -> Option<HeldView> {
        self.searches.of_blocks_at(number, &|block| {
            let (root, name) = block_layer(block.owner, block.layer, &self.symbols);
            block.device == device && is_wanted(&BlockLayer { root, name })
        })
    }

    /// Returns the memory of earlier forwards that existed a second time on a device; `None`: none was found.
    pub fn earlier_forwards(&self, device: i32) -> Option<&EarlierForwards> {
        self.device_state(device)?.forwards.most()
    }

    /// Returns what held the memory that these stacks allocated on a device, at the search of this number.
    pub fn holders_of_stacks(&self, number: u32, device: i32, stacks: &BTreeSet<u32>) -> Option<HeldView> {
        self.searches.of_blocks_at(number, &|block| block.device == device && stacks.contains(&block.stack))
    }

    /// Returns the bytes of [`holders_of_stacks`](Self::holders_of_stacks) that each of these holders held. The holders may be
    /// those of another search or trace: their names are looked up.
    pub fn bytes_held(
        &self,
        number: u32,
        device: i32,
        stacks: &BTreeSet<u32>,
        holders: &[&Holder],
    ) -> Option<Vec<u64>> {
        let is_wanted = |block: &BlockAtSearch| block.device == device && stacks.contains(&block.stack);
        self.searches.bytes_held_at(number, &is_wanted, holders)
    }

    /// Returns the searches for what holds the memory that have a result, the latest last.
    pub fn searches(&self) -> impl DoubleEndedIterator<Item = SearchView> {
        self.searches.complete_ones()
    }

    /// Returns the number of the latest search that began at `time` or later and has ended, in nanoseconds since the start of
    /// the trace; the reason if it found nothing. `None`: none has ended.
    pub fn search_since(&self, time: u64) -> Option<Result<u32, &str>> {
        self.searches.ended_since(time)
    }

    /// Returns why searches found nothing, the latest first.
    pub fn failed_searches(&self) -> impl Iterator<Item = &str> {
        self.searches.failures()
    }

    /// Returns what held the memory of a device at the latest search, or at the latest for this reason.
    pub fn holders_at(&self, device: i32, reason: Option<SearchReason>) -> Option<HeldView> {
        self.searches.at(device, reason)
    }

    /// Returns the moments between which growth is compared on a device; `None`: fewer than two so far.
    pub fn growth_moments(&self, device: i32) -> Option<GrowthMoments> {
        self.device_state(device)?.growth.moments_compared()
    }

    /// Returns true if PyTorch's allocator uses expandable segments on a device.
    pub fn has_expandable_segments(&self, device: i32) -> bool {
        self.device_state(device).is_some_and(|state| state.driver.has_expandable_segments())
    }

    /// Returns the private pools of CUDA graphs on a device with segments or graphs, largest first.
    pub fn private_pools(&self, device: i32) -> Vec<PrivatePoolView> {
        self.device_state(device).map(DeviceState::private_pools).unwrap_or_default()
    }

    /// Returns PyTorch's id of the private pool of a capture; `None`: the capture has not ended, or failed.
    pub fn pool_of_capture(&self, device: i32, graph: u64) -> Option<(u64, u64)> {
        Some(self.device_state(device)?.driver.private.graphs.get(&graph)?.pool)
    }

    /// Returns the frame ids of a stack, innermost first.
    pub fn frame_ids(&self, stack: u32) -> Vec<u32> {
        self.symbols.climb_frame_ids(stack)
    }

    /// Returns the frames of a stack, innermost first, each with the stack that ends in it.
    pub fn callers(&self, stack: u32) -> Vec<Caller> {
        let caller = |(stack, frame): (u32, &super::symbols::Frame)| Caller {
            stack,
            line: frame.line.clone(),
            is_users: frame.origin == CodeOrigin::User,
        };
        self.symbols.climb_stacks(stack).map(caller).collect()
    }

    /// Returns true if backward ran for allocations of a stack, or of stacks that it called, on a device.
    pub fn reached_by_backward(&self, device: i32, stack: u32) -> bool {
        let Some(state) = self.device_state(device) else { return false };
        // Each walk ends where an earlier walk passed.
        let mut known = HashSet::new();
        let cells = state.ledger.cells.iter().filter(|cell| cell.key.phase == Phase::Backward);
        cells.map(|cell| cell.key.stack).any(|below| {
            let mut new = self.symbols.climb_nodes(below).map(|(at, _)| at).take_while(|at| known.insert(*at));
            new.any(|at| at == stack)
        })
    }

    /// Returns the call tree of a device, with each block counted at the innermost line of its stack.
    pub fn calls(&self, device: i32) -> CallTree {
        CallTree::new(&self.stacks(device), &self.symbols)
    }

    /// Returns the first 32 and the last 32 out-of-memory events.
    ///
    /// Their lines have the scope of [`set_scope`](Self::set_scope).
    pub fn ooms(&self) -> Vec<OomView> {
        self.ooms_in(self.scope)
    }

    /// Returns the out-of-memory events of [`ooms`](Self::ooms) with the lines of `scope`.
    pub fn ooms_in(&self, scope: Scope) -> Vec<OomView> {
        self.ooms.view(|device| self.device_state(device), &self.symbols, scope)
    }

    /// Returns the number of out-of-memory events.
    pub fn oom_count(&self) -> u64 {
        self.ooms.count
    }
}
