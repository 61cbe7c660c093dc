//! The state of one device.

use super::anomalies::Anomalies;
use super::blocks::{Block, LiveBlocks};
use super::category_timeline::CategoryRecorder;
use super::cell::CellKey;
use super::classification::{Classification, effective_phase, first_classification};
use super::device_totals::{AllocationContext, OtherProcesses, Peak, RunProgress, Totals};
use super::driver_memory::{DriverMemory, HeldMemory, holds_arrays};
use super::forwards::Forwards;
use super::gpu_work::GpuWork;
use super::growth::Growth;
use super::ledger::Ledger;
use super::passes::Accumulation;
use super::steps::Steps;
use super::symbols::Symbols;
use super::tags::{TaggedTensor, Tags};
use super::timeline::TimelineRecorder;
use memlab_format::record::{self, Flags, Phase, TagCategory};

/// Largest plausible block: 16 TiB.
const MAX_BLOCK_BYTES: u64 = 1 << 44;

/// Lists of blocks: pending in backward, pending in the optimizer, possibly long-lived, and two lists of pending blocks per
/// thread.
const BACKWARD: u32 = 0;
const OPTIMIZER: u32 = 1;
pub(super) const POSSIBLY_LONG_LIVED: u32 = 2;
const FIRST_THREAD_LIST: u32 = 3;

/// Returns the number of lists for `threads` threads.
pub(super) fn lists(threads: u32) -> u32 {
    threads.saturating_mul(2).saturating_add(FIRST_THREAD_LIST)
}

/// Returns the list of blocks that `thread` (an index) allocated in forward.
fn in_forward(thread: u32) -> u32 {
    lists(thread)
}

/// Returns the list of blocks that `thread` allocated before forward.
fn before_forward(thread: u32) -> u32 {
    lists(thread).saturating_add(1)
}

/// A device.
#[derive(Clone, Default)]
pub(crate) struct DeviceState {
    pub(crate) info: Option<record::Device>,
    pub(crate) limit: Option<record::Limit>,
    /// Bandwidth of the link to the host.
    pub(crate) link: Option<record::Link>,
    pub(crate) others: OtherProcesses,
    pub(crate) totals: Totals,
    pub(crate) blocks: LiveBlocks,
    pub(crate) ledger: Ledger,
    pub(crate) tags: Tags,
    pub(crate) driver: DriverMemory,
    pub(crate) timeline: TimelineRecorder,
    pub(crate) category_timeline: CategoryRecorder,
    pub(crate) steps: Steps,
    pub(crate) growth: Growth,
    pub(crate) accumulation: Accumulation,
    pub(crate) forwards: Forwards,
    pub(crate) work: GpuWork,
    /// Most recently freed block.
    pub(crate) freed: Option<Block>,
}

impl DeviceState {
    /// Returns the bytes that PyTorch's allocator holds, as in [`Peak::torch`].
    #[inline]
    pub(crate) fn torch(&self) -> u64 {
        self.driver.totals.reserved.max(self.totals.allocated)
    }

    pub(crate) fn used(&self) -> u64 {
        self.driver.used(self.torch())
    }

    #[inline]
    pub(crate) fn allocate(
        &mut self,
        event: &record::Alloc,
        context: AllocationContext,
        symbols: &mut Symbols,
        anomalies: &mut Anomalies,
    ) {
        if event.bytes > MAX_BLOCK_BYTES {
            anomalies.impossible_events += 1;
            return;
        }
        self.advance_categories(event.time);
        let phase = effective_phase(event.layer, event.flags);
        if phase == Phase::Backward {
            if !self.totals.in_backward {
                self.accumulation.begin_backward(&self.ledger, self.totals.peak.event);
                self.growth.begin_backward();
            }
            self.totals.in_backward = true;
        } else if self.totals.in_backward {
            self.end_backward(symbols);
        }
        if self.blocks.find(event.address).is_some() {
            if event.flags.has(Flags::BEFORE) {
                return; // Allocated while memlab was loading, before it listed the existing blocks.
            }
            anomalies.lost_frees += 1;
            self.release(event.address, symbols);
        }

        let classification = first_classification(phase, event.flags, context.seen_forward);
        let AllocationContext { range, .. } = context;
        let key = CellKey { stack: event.stack, layer: event.layer, owner: 0, range, classification, phase };
        let cell = self.ledger.cell(key, symbols);
        self.ledger.allocate(cell, event.bytes, event.flags.has(Flags::GRADIENT_NODE));
        self.totals.born = self.totals.born.saturating_add(1);
        self.totals.allocations = self.totals.allocations.saturating_add(1);
        let slot = self.blocks.insert(Block::new(event.address, event.bytes, self.totals.born, event.time, cell));
        match classification {
            Classification::InForward => self.blocks.link(slot, in_forward(context.thread)),
            Classification::InBackward => self.blocks.link(slot, BACKWARD),
            Classification::InOptimizer => self.blocks.link(slot, OPTIMIZER),
            Classification::BeforeForward | Classification::BeforeAnyForward => {
                self.blocks.link(slot, before_forward(context.thread))
            }
            _ => {}
        }

        self.totals.allocated = self.totals.allocated.saturating_add(event.bytes);
        if self.driver.is_private(event.address) {
            self.totals.private_allocated = self.totals.private_allocated.saturating_add(event.bytes);
        }
        self.forwards.allocated(event.stack, self.totals.allocated);
        self.raise_categories();
        self.steps.note(self.totals.allocated);
        if self.totals.allocated > self.totals.peak.allocated {
            self.note_peak(event.time, context.reached);
        }
        self.note_allocated(event.time, context.reached);
    }

    /// Returns the bytes that the ledger counts: PyTorch's blocks, and other arrays.
    #[inline]
    fn counted(&self) -> u64 {
        self.totals.allocated.saturating_add(self.driver.totals.arrays)
    }

    #[inline]
    fn advance_categories(&mut self, time: u64) {
        self.category_timeline.advance(time, &self.ledger.by_category, self.counted());
    }

    #[inline]
    fn raise_categories(&mut self) {
        self.category_timeline.raise(&self.ledger.by_category, self.counted());
    }

    fn note_peak(&mut self, time: u64, reached: RunProgress) {
        self.ledger.epoch = self.ledger.epoch.wrapping_add(1);
        let driver = &self.driver.totals;
        self.totals.peak = Peak {
            allocated: self.totals.allocated,
            time,
            step: reached.steps,
            event: reached.events,
            born: self.totals.born,
            reserved: driver.reserved,
            libraries: driver.libraries,
            nccl: driver.nccl,
            arrays: driver.arrays,
            context: driver.context,
            other_processes: driver.other_processes,
            segments: driver.segments,
            private_allocated: self.totals.private_allocated,
            private_reserved: driver.private_reserved,
            moved: driver.moved,
            sampled: driver.sampled,
        };
    }

    /// Restarts all peaks from the current bytes.
    pub(crate) fn reset_peaks(&mut self, time: u64, reached: RunProgress) {
        self.note_peak(time, reached);
        self.totals.peak_used = self.used();
        self.driver.totals.peak_reserved = self.driver.totals.reserved;
        self.driver.totals.peak_moved = self.driver.totals.moved;
        self.ledger.reset_peaks();
        self.tags.reset_peaks();
    }

    pub(crate) fn restart_timelines(&mut self, time: u64) {
        self.timeline =
            TimelineRecorder::starting(time, self.totals.allocated, self.driver.totals.reserved, self.used());
        self.category_timeline = CategoryRecorder::default();
        self.advance_categories(time);
    }

    #[inline]
    pub(crate) fn free(
        &mut self,
        event: &record::Free,
        reached: RunProgress,
        symbols: &mut Symbols,
        anomalies: &mut Anomalies,
    ) {
        self.advance_categories(event.time);
        if self.release(event.address, symbols) {
            self.note_allocated(event.time, reached);
        } else {
            anomalies.unknown_frees += 1;
        }
    }

    /// Removes the block at `address`. Decides its category if that was pending.
    #[inline]
    fn release(&mut self, address: u64, symbols: &mut Symbols) -> bool {
        let Some((slot, block)) = self.blocks.remove(address) else { return false };
        if block.tagged {
            self.tags.forget(slot);
        }
        self.ledger.free(block.cell, block.bytes);
        self.forwards.freed(address, self.totals.in_backward);
        self.freed = Some(block);
        if block.born <= self.totals.peak.born {
            let key = self.ledger.cells[block.cell as usize].key;
            if key.classification.is_pending() {
                let decided =
                    self.ledger.cell(CellKey { classification: key.classification.if_freed(), ..key }, symbols);
                self.ledger.shift_at_peak(block.cell, decided, block.bytes);
            }
        }
        self.totals.allocated = self.totals.allocated.saturating_sub(block.bytes);
        if self.driver.is_private(address) {
            self.totals.private_allocated = self.totals.private_allocated.saturating_sub(block.bytes);
        }
        true
    }

    #[inline]
    fn note_allocated(&mut self, time: u64, reached: RunProgress) {
        // If memlab saw less reserved than allocated, the use changes with the allocations.
        if self.totals.allocated > self.driver.totals.reserved
            || !self.timeline.note_allocated(time, self.totals.allocated)
        {
            self.note_used(time, reached);
        }
    }

    /// Updates the peak of use and the timeline after driver memory changed.
    fn note_used(&mut self, time: u64, reached: RunProgress) {
        let used = self.used();
        // Without allocations of PyTorch, the peak is the maximum use.
        if self.totals.allocations == 0 && used > self.totals.peak_used {
            self.note_peak(time, reached);
        }
        self.totals.peak_used = self.totals.peak_used.max(used);
        self.timeline.note(time, self.totals.allocated, self.driver.totals.reserved, used);
    }

    pub(crate) fn driver_allocate(
        &mut self,
        event: &record::DriverAlloc<'_>,
        context: AllocationContext,
        symbols: &mut Symbols,
        anomalies: &mut Anomalies,
    ) {
        if event.bytes > MAX_BLOCK_BYTES {
            anomalies.impossible_events += 1;
            return;
        }
        self.advance_categories(event.time);
        let cell = holds_arrays(event).then(|| {
            let classification = Classification::OtherArrays;
            let phase = effective_phase(event.layer, event.flags);
            let AllocationContext { range, .. } = context;
            let key = CellKey { stack: event.stack, layer: event.layer, owner: 0, range, classification, phase };
            let cell = self.ledger.cell(key, symbols);
            self.ledger.allocate(cell, event.bytes, false);
            cell
        });
        let lost = self.driver.allocate(event, cell, anomalies);
        self.uncount(lost);
        self.raise_categories();
        self.note_used(event.time, context.reached);
    }

    /// Removes freed driver memory from the ledger, if it held arrays.
    fn uncount(&mut self, held: Option<HeldMemory>) {
        if let Some(HeldMemory { cell: Some(cell), bytes, .. }) = held {
            self.ledger.free(cell, bytes);
        }
    }

    /// Counts a block that PyTorch allocated directly from the driver, which is both block and driver memory.
    pub(crate) fn async_allocate(&mut self, event: &record::DriverAlloc<'_>) {
        if event.bytes <= MAX_BLOCK_BYTES {
            self.totals.async_blocks = self.totals.async_blocks.saturating_add(1);
            if let Some(lost) = self.driver.hold_block(event) {
                self.driver.discount(lost);
            }
        }
    }

    /// Frees such a block. Returns true if the freed driver memory was one.
    pub(crate) fn async_free(&mut self, event: &record::DriverFree, anomalies: &mut Anomalies) -> bool {
        let is_block = self.driver.held.get(&(event.kind, event.address)).is_some_and(HeldMemory::is_block);
        if is_block {
            self.driver.free(event, anomalies);
        }
        is_block
    }

    pub(crate) fn driver_free(&mut self, event: &record::DriverFree, reached: RunProgress, anomalies: &mut Anomalies) {
        self.advance_categories(event.time);
        let held = self.driver.free(event, anomalies);
        self.uncount(held);
        self.note_used(event.time, reached);
    }

    pub(crate) fn sample(&mut self, event: &record::Used, reached: RunProgress) {
        self.driver.sample(event, self.torch());
        let (driver, peak) = (&self.driver.totals, &mut self.totals.peak);
        if !peak.sampled {
            // The first sample also applies to the peak before it: a context does not shrink.
            peak.sampled = true;
            peak.context = driver.context;
            peak.other_processes = driver.other_processes;
            // Otherwise a sample after the peak would exceed it by the context alone.
            self.totals.peak_used = self.totals.peak_used.max(peak.used());
        }
        self.note_used(event.time, reached);
    }

    pub(crate) fn moved(&mut self, event: &record::Moved, reached: RunProgress) {
        self.driver.totals.moved = event.bytes;
        self.driver.totals.peak_moved = self.driver.totals.peak_moved.max(event.bytes);
        self.note_used(event.time, reached);
    }

    pub(crate) fn tag(&mut self, event: &record::Tag<'_>, symbols: &mut Symbols, anomalies: &mut Anomalies) {
        let Some(slot) = self.blocks.containing(event.address) else {
            anomalies.unknown_tags += 1;
            return;
        };
        let key = self.ledger.cells[self.blocks.get(slot).cell as usize].key;
        if event.category == TagCategory::Input {
            if key.classification.may_be_input() {
                self.blocks.unlink(slot);
                self.reclassify(slot, Classification::Input, key.owner, symbols);
            }
            return;
        }
        if key.classification.outranks(event.category) {
            return;
        }
        let owner = symbols.intern_owner(event.root, layer_of_tensor(event.category, &event.name));
        let name = symbols.intern_tensor(&event.name, &event.shard);
        let size = self.blocks.get(slot).bytes;
        let tensor = TaggedTensor { category: event.category, bytes: event.bytes.min(MAX_BLOCK_BYTES), owner, name };
        let Some((category, owner)) = self.tags.tag((slot, size), event.address, tensor, symbols) else { return };
        self.blocks.unlink(slot);
        self.blocks.get_mut(slot).tagged = true;
        self.reclassify(slot, category.into(), owner, symbols);
    }

    /// Changes classification and owner of a live block, and of its share of the peak if it was live then.
    pub(super) fn reclassify(&mut self, slot: u32, classification: Classification, owner: u32, symbols: &mut Symbols) {
        let block = *self.blocks.get(slot);
        let key = self.ledger.cells[block.cell as usize].key;
        let cell = self.ledger.cell(CellKey { classification, owner, ..key }, symbols);
        self.ledger.shift(block.cell, cell, block.bytes, block.born <= self.totals.peak.born);
        self.blocks.get_mut(slot).cell = cell;
    }

    /// Decides all blocks of a list as still live.
    fn settle(&mut self, list: u32, symbols: &mut Symbols) {
        while let Some(slot) = self.blocks.first(list) {
            self.blocks.unlink(slot);
            let key = self.ledger.cells[self.blocks.get(slot).cell as usize].key;
            let classification = key.classification.if_it_survives();
            self.reclassify(slot, classification, key.owner, symbols);
            if classification.may_become_long_lived(key.layer) {
                self.blocks.link(slot, POSSIBLY_LONG_LIVED);
            }
        }
    }

    /// Handles a thread that left forward.
    pub(crate) fn end_forward(&mut self, thread: u32, symbols: &mut Symbols) {
        self.settle(in_forward(thread), symbols);
    }

    /// Handles a thread that entered forward, after `events` events of the trace.
    pub(crate) fn begin_forward(&mut self, thread: u32, events: u64, symbols: &mut Symbols) {
        self.accumulation.begin_pass(&self.ledger, events, self.totals.peak.event);
        self.forwards.begin_forward(self.totals.born);
        self.growth.begin_pass(&mut self.ledger, self.totals.allocated);
        self.settle(before_forward(thread), symbols);
    }

    fn end_backward(&mut self, symbols: &mut Symbols) {
        self.totals.in_backward = false;
        self.settle(BACKWARD, symbols);
    }

    /// Handles the end of an optimizer step; `events` is the number of events so far, including this one.
    pub(crate) fn end_step(&mut self, event: &record::Step, events: u64, symbols: &mut Symbols) {
        self.end_backward(symbols);
        self.settle(OPTIMIZER, symbols);
        self.steps.end(event.index, event.time, self.totals.allocated, events);
        self.accumulation.backward_is_over(&self.ledger);
        self.growth.end_step(&mut self.ledger, self.totals.allocated);
    }
}

/// Returns the qualified name of a tensor's layer, from the name of the tensor.
fn layer_of_tensor(category: TagCategory, name: &str) -> &str {
    let parameter = match category {
        TagCategory::OptimizerState => name.split_once(':').map_or(name, |(parameter, _)| parameter),
        _ => name,
    };
    parameter.rsplit_once('.').map_or("", |(layer, _)| layer)
}
