//! What the model answers: views of its state.

use std::sync::Arc;

use hashbrown::HashSet;

use super::accumulation::{AccumulationView, Caller, over_passes, over_steps};
use super::anomalies::Anomalies;
use super::call_tree::CallTree;
use super::category::Category;
use super::code_origin::CodeOrigin;
use super::device::DeviceState;
use super::device_views::block_layer;
use super::history_views::{OomView, StepView, Timeline, TrainingView};
use super::line::Line;
use super::process_state::{HOST, Model};
use super::scope::Scope;
use super::sources::Sources;
use super::views::{
    AttributionView, BlockLayer, BlockView, CategoryView, DeviceView, DriverAllocationView, DriverView, GpuWorkView,
    LayerView, PrivatePoolView, RangePath, RangeView, SegmentMap, StackView, StepWorkView, TensorView, TotalsView,
};
use crate::record::{self, Phase};

impl Model {
    /// The process; `None` before the first line.
    pub fn header(&self) -> Option<&record::Header> {
        self.header.as_ref()
    }

    /// How the process ended; `None` while it runs, and if it was killed.
    pub fn end(&self) -> Option<record::End> {
        self.end
    }

    /// What memlab could not do in the process.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The dimensions of the device meshes that the process is in; empty if it is in none.
    pub fn mesh(&self) -> &[record::MeshDimension] {
        &self.mesh.mesh
    }

    /// The stages of a pipeline that the process holds; none if it holds none.
    pub fn stages(&self) -> &record::Stages {
        &self.stages
    }

    /// Software found in the process.
    pub fn software(&self) -> &[record::Software] {
        &self.symbols.software
    }

    /// Contradictions in the trace.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// The time of the latest event, in nanoseconds since the trace's start.
    pub fn time(&self) -> u64 {
        self.latest_time
    }

    /// Events replayed.
    pub fn events(&self) -> u64 {
        self.event_count
    }

    /// Events missing in the trace, because they came faster than it could be kept within its size. Figures after the first of
    /// them are not exact.
    pub fn lost_events(&self) -> u64 {
        self.lost_events
    }

    /// Optimizer steps ended.
    pub fn steps_ended(&self) -> u64 {
        self.steps_ended
    }

    /// Forward passes begun, on any thread.
    pub fn passes_begun(&self) -> u64 {
        self.threads.passes
    }

    /// Steps that have ended and whose GPU time is known, if GPU time was recorded. The rest were not chosen, or the program
    /// was killed before it had their records.
    pub fn steps_timed(&self) -> u64 {
        let has_exited = self.end.as_ref().is_some_and(|end| end.signal.is_none());
        self.steps_ended.saturating_sub(self.steps_untimed).saturating_sub(self.steps_waiting.count(has_exited))
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
        self.device_state(device).map(|state| state.view(device))
    }

    /// What every layer holds on a device, by outermost module and name. The layers sum to what is allocated.
    pub fn layers(&self, device: i32) -> Vec<LayerView> {
        self.device_state(device).map(|state| state.layers(&self.symbols)).unwrap_or_default()
    }

    /// What every combination of line, layer and category holds on a device. They sum to what is allocated.
    pub fn attributions(&self, device: i32) -> Vec<AttributionView> {
        self.device_state(device).map(|state| state.attributions(&self.symbols, self.scope)).unwrap_or_default()
    }

    /// What every category holds on a device, in the order of [`Category::ALL`]. The categories sum to the use of the device.
    pub fn categories(&self, device: i32) -> [CategoryView; Category::COUNT] {
        match self.device_state(device) {
            Some(state) => state.categories(),
            None => DeviceState::default().categories(),
        }
    }

    /// What ran on a device, by lines of the scope of [`set_scope`](Self::set_scope); `None`: it was not recorded.
    pub fn gpu_work(&self, device: i32) -> Option<GpuWorkView> {
        self.gpu_work_in(device, self.scope)
    }

    /// What ran on a device, by lines of `scope`; `None`: it was not recorded.
    pub fn gpu_work_in(&self, device: i32, scope: Scope) -> Option<GpuWorkView> {
        let state = self.device_state(device)?;
        (state.work.total.calls > 0).then(|| state.work.view(scope, &self.symbols))
    }

    /// How long the work of a device ran whose stack, and whether it was backward's, count.
    pub fn gpu_nanoseconds(&self, device: i32, mut counts: impl FnMut(u32, bool) -> bool) -> u64 {
        let sums = self.device_state(device).into_iter().flat_map(|state| &state.work.sums);
        sums.filter(|((stack, _, phase, _), _)| counts(*stack, *phase == Phase::Backward as u8))
            .fold(0, |sum, (_, totals)| sum.saturating_add(totals.nanoseconds))
    }

    /// What ran on a device, by optimizer steps, in their order; empty: it was not recorded.
    pub fn step_work(&self, device: i32) -> Vec<StepWorkView> {
        self.device_state(device).map(|state| state.work.steps.entries().copied().collect()).unwrap_or_default()
    }

    /// The name of what ran on a GPU, by its number in the trace.
    pub fn kernel_name(&self, kernel: u32) -> Arc<str> {
        self.symbols.kernel_name(kernel)
    }

    /// The class of a layer's module; `None` if it is not known.
    pub fn layer_class(&self, layer: u32) -> Option<Arc<str>> {
        self.symbols.layer_class(layer)
    }

    /// A device's memory over time.
    pub fn timeline(&self, device: i32) -> Timeline {
        self.device_state(device).map(DeviceState::timeline_view).unwrap_or_default()
    }

    /// A device's segments and the blocks in them.
    pub fn segments(&self, device: i32) -> SegmentMap {
        self.device_state(device).map(DeviceState::segments).unwrap_or_default()
    }

    /// What every stack holds on a device, by id. Call trees are sums of these.
    pub fn stacks(&self, device: i32) -> Vec<StackView> {
        self.device_state(device).map(DeviceState::stacks).unwrap_or_default()
    }

    /// The text of source lines, as far as the trace has it.
    pub fn sources(&self) -> &Arc<Sources> {
        &self.symbols.sources
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: u32) -> Vec<Arc<Line>> {
        self.symbols.climb(stack).map(|frame| frame.line.clone()).collect()
    }

    /// Whether torch.compile's code runs in place of a line, at least at times.
    pub fn runs_compiled(&self, line: &Arc<Line>) -> bool {
        self.symbols.is_compiled(line)
    }

    /// The number of stacks deeper than [`MAX_STACK_DEPTH`](super::MAX_STACK_DEPTH), whose outermost calls are not shown.
    pub fn deep_stacks(&self) -> usize {
        self.symbols.deep_stacks()
    }

    /// The name of a layer, as in [`LayerView`]; `None` for 0.
    pub fn layer_name(&self, layer: u32) -> Option<Arc<str>> {
        self.symbols.layer_name(layer)
    }

    /// A live block.
    pub fn block(&self, device: i32, address: u64) -> Option<BlockView> {
        self.device_state(device)?.block(address)
    }

    /// All live blocks of a device, by address.
    pub fn blocks(&self, device: i32) -> Vec<BlockView> {
        self.device_state(device).map(DeviceState::block_views).unwrap_or_default()
    }

    /// The arrays of other libraries that are held on a device, by address, in the form of blocks. Their times are not known.
    pub fn arrays(&self, device: i32) -> Vec<BlockView> {
        self.device_state(device).map(DeviceState::arrays).unwrap_or_default()
    }

    /// The tensors that tags name in the live block at an address, by their own addresses.
    pub fn tensors_in(&self, device: i32, block: u64) -> Vec<TensorView> {
        self.device_state(device).map(|state| state.tensors_in(block, &self.symbols)).unwrap_or_default()
    }

    /// The block at this address, if it was the last one freed on its device.
    pub fn freed(&self, device: i32, address: u64) -> Option<BlockView> {
        self.device_state(device)?.freed(address)
    }

    /// A live block, in the category it would have if it were freed now.
    pub fn block_if_freed(&self, device: i32, address: u64) -> Option<BlockView> {
        self.device_state(device)?.block_if_freed(address)
    }

    /// What was allocated in each range that the program names, and outside of them, by path; nothing if none of them
    /// allocated on the device.
    pub fn ranges(&self, device: i32) -> Vec<RangeView> {
        self.device_state(device).map(|state| state.ranges(&self.symbols)).unwrap_or_default()
    }

    /// What each stack holds on a device, for each range in which it allocated (0: none), by range and stack.
    pub fn stacks_in_ranges(&self, device: i32) -> Vec<(u32, StackView)> {
        self.device_state(device).map(DeviceState::stacks_in_ranges).unwrap_or_default()
    }

    /// The range that a thread is in; 0: none.
    pub fn range_of_thread(&self, thread: u32) -> u32 {
        self.threads.indexes.get(&thread).map_or(0, |index| self.threads.ranges[*index as usize])
    }

    /// The names of a range and of those around it.
    pub fn range_path(&self, range: u32) -> RangePath {
        self.symbols.range_path(range)
    }

    /// The layer that counts a block in [`Model::layers`].
    pub fn layer_of(&self, block: &BlockView) -> BlockLayer {
        let (root, name) = block_layer(block.owner, block.layer, &self.symbols);
        BlockLayer { root, name }
    }

    /// The totals of a device; zeros if it is not known.
    #[inline]
    pub fn totals(&self, device: i32) -> TotalsView {
        self.device_state(device).map(DeviceState::totals_view).unwrap_or_default()
    }

    /// The most of each of [`totals`](Self::totals), at whatever times.
    #[inline]
    pub fn peaks(&self, device: i32) -> TotalsView {
        self.device_state(device).map(DeviceState::peaks_view).unwrap_or_default()
    }

    /// The driver memory at an address ([`HOST`]: of the host).
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

    /// Whether physical memory of a segment is mapped at an address.
    pub fn is_mapped_segment(&self, device: i32, address: u64) -> bool {
        self.device_state(device).is_some_and(|state| state.driver.is_mapped_segment(address))
    }

    /// The approximate heap size of the model in bytes.
    pub fn heap_bytes(&self) -> usize {
        let devices = self.devices.iter().flatten().map(|device| device.heap_bytes()).sum::<usize>();
        let steps = self.steps.list.capacity() * size_of::<StepView>() + self.trainings.heap_bytes();
        devices + self.symbols.heap_bytes() + steps
    }

    /// The definition of a thread, if known.
    pub fn thread(&self, thread: u32) -> Option<&record::Thread> {
        self.symbols.threads.get(&thread)
    }

    /// Driver memory on a device ([`HOST`]: pinned and registered) outside PyTorch's allocator, the largest first.
    pub fn driver_memory(&self, device: i32) -> Vec<DriverView> {
        if device == HOST {
            return self.host.view();
        }
        self.device_state(device).map(|state| state.driver.view()).unwrap_or_default()
    }

    /// The libraries that took memory of a device outside PyTorch's allocator, with the most bytes that each call of theirs held.
    pub fn driver_peaks(&self, device: i32) -> Vec<(Arc<str>, u64)> {
        let Some(state) = self.device_state(device) else { return Vec::new() };
        let peaks = std::iter::zip(&state.driver.sources, &state.driver.held_by_source);
        peaks.map(|(source, held)| (source.library.clone(), held.peak)).collect()
    }

    /// The optimizer steps, with figures of all devices together.
    pub fn steps(&self) -> &[StepView] {
        &self.steps.list
    }

    /// The optimizer steps, with figures of one device.
    pub fn device_steps(&self, device: i32) -> &[StepView] {
        self.device_state(device).map(|state| &*state.steps.list).unwrap_or_default()
    }

    /// What a training did in a step, if it says so.
    pub fn training(&self, step: &StepView) -> Option<TrainingView> {
        self.trainings.of(step.indexes())
    }

    /// Whether a training says what it did in its steps.
    pub fn has_trainings(&self) -> bool {
        !self.trainings.list.is_empty()
    }

    /// Memory that accumulates on a device: over steps, and over forward passes before the peak.
    pub fn accumulations(&self, device: i32) -> Vec<AccumulationView> {
        let Some(state) = self.device_state(device) else { return Vec::new() };
        [over_steps(state, &self.symbols), over_passes(state, &self.symbols)].into_iter().flatten().collect()
    }

    /// Whether PyTorch's allocator uses expandable segments on a device.
    pub fn has_expandable_segments(&self, device: i32) -> bool {
        self.device_state(device).is_some_and(|state| state.driver.has_expandable_segments())
    }

    /// The private pools of CUDA graphs on a device that have segments or graphs, the largest first.
    pub fn private_pools(&self, device: i32) -> Vec<PrivatePoolView> {
        self.device_state(device).map(DeviceState::private_pools).unwrap_or_default()
    }

    /// PyTorch's id of the private pool of a capture; `None`: the capture has not ended, or failed.
    pub fn pool_of_capture(&self, device: i32, graph: u64) -> Option<(u64, u64)> {
        Some(self.device_state(device)?.driver.private.graphs.get(&graph)?.pool)
    }

    /// The ids of the frames of a stack, innermost first.
    pub fn frame_ids(&self, stack: u32) -> Vec<u32> {
        self.symbols.climb_frame_ids(stack)
    }

    /// The frames of a stack, innermost first, with the stack that ends in each.
    pub fn callers(&self, stack: u32) -> Vec<Caller> {
        let caller = |(stack, frame): (u32, &super::symbols::Frame)| Caller {
            stack,
            line: frame.line.clone(),
            is_users: frame.origin == CodeOrigin::User,
        };
        self.symbols.climb_stacks(stack).map(caller).collect()
    }

    /// Whether backward ran for allocations of a stack, or of stacks that it called, on a device.
    pub fn reached_by_backward(&self, device: i32, stack: u32) -> bool {
        let Some(state) = self.device_state(device) else { return false };
        // Each walk ends where another one has been.
        let mut known = HashSet::new();
        let cells = state.ledger.cells.iter().filter(|cell| cell.key.phase == Phase::Backward);
        cells.map(|cell| cell.key.stack).any(|below| {
            let mut new = self.symbols.climb_nodes(below).map(|(at, _)| at).take_while(|at| known.insert(*at));
            new.any(|at| at == stack)
        })
    }

    /// The call tree of a device: every block is counted at the innermost line of its stack.
    pub fn calls(&self, device: i32) -> CallTree {
        CallTree::new(&self.stacks(device), &self.symbols)
    }

    /// The out-of-memory events: the first 32 and the last 32, with lines of the scope of [`set_scope`](Self::set_scope).
    pub fn ooms(&self) -> Vec<OomView> {
        self.ooms_in(self.scope)
    }

    /// The same with the lines of `scope`.
    pub fn ooms_in(&self, scope: Scope) -> Vec<OomView> {
        self.ooms.view(|device| self.device_state(device), &self.symbols, scope)
    }

    /// The number of out-of-memory events.
    pub fn oom_count(&self) -> u64 {
        self.ooms.count
    }
}
