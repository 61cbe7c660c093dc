//! A moment of a trace with later knowledge: the final categories of its blocks, and names.
//!
//! A block becomes temporary when it is freed, and a parameter when it is tagged. The model corrects its sums at the peak
//! with this knowledge. This module does the same for single blocks, at any moment.

use std::ops::ControlFlow;

use hashbrown::HashMap;

use crate::model::{BlockView, Category, Model, TensorView};
use crate::seek_target::SeekTarget;
use crate::sink::Sink;
use memlab_format::record::Record;

/// Observes a replay up to a moment.
pub trait Observer {
    /// Called before a record is applied.
    fn before(&mut self, _record: &Record<'_>, _model: &Model) {}

    /// Called after a record was applied.
    fn after(&mut self, _model: &Model) {}
}

/// No observer.
impl Observer for () {}

/// Replays a trace to its end and keeps a snapshot of one moment.
pub struct SnapshotReplay<'o> {
    at: SeekTarget,
    observer: &'o mut dyn Observer,
    model: Model,
    snapshot: Option<Snapshot>,
}

struct Snapshot {
    model: Model,
    blocks: Vec<(i32, BlockView)>,
    /// Known tensors in these blocks.
    tensors: HashMap<(i32, u64), Vec<TensorView>>,
    /// Blocks of undecided category, by device and address.
    undecided: HashMap<(i32, u64), usize>,
    /// Devices whose use has not been sampled yet.
    unsampled: Vec<i32>,
    outside_process: Vec<(i32, Category, u64)>,
}

/// A moment of a trace, with the knowledge of its end.
pub struct ResolvedSnapshot {
    /// State at the moment, as known then.
    pub model: Model,
    /// State at the end, with all names.
    pub final_model: Model,
    /// Live blocks of the moment with their devices, by device and address, with final category and owner.
    pub blocks: Vec<(i32, BlockView)>,
    /// Tagged tensors in them, by device and address of the block.
    pub tensors: HashMap<(i32, u64), Vec<TensorView>>,
    /// True if the trace still contains the moment; otherwise `model` is its earliest state.
    pub is_available: bool,
    outside_process: Vec<(i32, Category, u64)>,
}

impl<'o> SnapshotReplay<'o> {
    /// Creates a replay that keeps the moment `at`.
    pub fn new(at: SeekTarget, observer: &'o mut dyn Observer) -> Self {
        Self { at, observer, model: Model::new(), snapshot: None }
    }

    /// Returns the snapshot, after the whole trace was replayed.
    pub fn finish(mut self) -> ResolvedSnapshot {
        let mut snapshot = match self.snapshot.take() {
            Some(snapshot) => snapshot,
            None => Snapshot::new(&self.model),
        };
        for (device, address) in snapshot.undecided.keys().copied().collect::<Vec<_>>() {
            snapshot.decide(device, address, self.model.block(device, address), &self.model);
        }
        ResolvedSnapshot {
            is_available: self.at.is_ahead_of(&snapshot.model),
            model: snapshot.model,
            final_model: self.model,
            blocks: snapshot.blocks,
            tensors: snapshot.tensors,
            outside_process: snapshot.outside_process,
        }
    }
}

impl Snapshot {
    fn new(model: &Model) -> Self {
        let devices = model.devices();
        let blocks: Vec<_> = devices
            .iter()
            .flat_map(|device| model.blocks(device.index).into_iter().map(|block| (device.index, block)))
            .collect();
        let undecided =
            std::iter::zip(&blocks, 0..).map(|((device, block), slot)| ((*device, block.address), slot)).collect();
        let unsampled = devices.iter().filter(|device| !device.used_is_known).map(|device| device.index).collect();
        let (model, tensors, outside_process) = (model.clone(), HashMap::new(), Vec::new());
        Self { model, blocks, tensors, undecided, unsampled, outside_process }
    }

    /// Sets the final category of an undecided block.
    ///
    /// `model` is the state in which the block still lives.
    fn decide(&mut self, device: i32, address: u64, turned_out: Option<BlockView>, model: &Model) {
        let Some(slot) = self.undecided.remove(&(device, address)) else { return };
        if let (Some((_, block)), Some(turned_out)) = (self.blocks.get_mut(slot), turned_out) {
            (block.category, block.owner) = (turned_out.category, turned_out.owner);
            let tensors = model.tensors_in(device, address);
            if !tensors.is_empty() {
                self.tensors.insert((device, address), tensors);
            }
        }
    }

    /// Decides the category of a block that the next record may free.
    #[inline]
    fn watch(&mut self, record: &Record<'_>, model: &Model) {
        let (device, address) = match record {
            Record::Free(event) => (event.device, event.address),
            // The block's free was lost.
            Record::Alloc(event) => (event.device, event.address),
            // Blocks allocated directly from the driver.
            Record::DriverAlloc(event) => (event.device, event.address),
            Record::DriverFree(event) => (event.device, event.address),
            _ => return,
        };
        if self.undecided.contains_key(&(device, address)) {
            self.decide(device, address, model.block_if_freed(device, address), model);
        }
    }

    /// Applies the first sample of a device to the moment before it, too.
    fn sampled(&mut self, model: &Model) {
        let outside_process = &mut self.outside_process;
        self.unsampled.retain(|device| {
            if !model.device(*device).is_some_and(|view| view.used_is_known) {
                return true;
            }
            let sampled = model.categories(*device).into_iter();
            let sampled = sampled.filter(|view| matches!(view.category, Category::Context | Category::OtherProcesses));
            outside_process.extend(sampled.map(|view| (*device, view.category, view.bytes)));
            false
        });
    }
}

impl Sink for SnapshotReplay<'_> {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        if self.snapshot.is_none() && self.at.is_before(&record, &self.model) {
            self.snapshot = Some(Snapshot::new(&self.model));
        }
        match &mut self.snapshot {
            None => {
                self.observer.before(&record, &self.model);
                self.model.apply(record);
                self.observer.after(&self.model);
            }
            Some(snapshot) => {
                snapshot.watch(&record, &self.model);
                let is_sample = matches!(record, Record::Used(_)) && !snapshot.unsampled.is_empty();
                self.model.apply(record);
                if is_sample {
                    snapshot.sampled(&self.model);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn restart(&mut self) {
        (self.model, self.snapshot) = (Model::new(), None);
    }
}

impl ResolvedSnapshot {
    /// Returns the blocks of lines and layers on a device at the moment: PyTorch's blocks, and arrays of other libraries.
    pub fn attributed(&self, device: i32) -> impl Iterator<Item = BlockView> {
        let blocks = self.blocks.iter().filter(move |(on, _)| *on == device).map(|(_, block)| *block);
        blocks.chain(self.model.arrays(device))
    }

    /// Returns the memory of every category on a device at the moment, in the order of [`Category::ALL`].
    ///
    /// The sum is the use of the device plus the memory in host memory.
    pub fn categories(&self, device: i32) -> [(Category, u64); Category::COUNT] {
        let mut held = self.model.categories(device).map(|view| (view.category, view.bytes));
        // Replaces the categories of the moment by the final ones.
        for block in self.model.blocks(device) {
            held[block.category as usize].1 = held[block.category as usize].1.saturating_sub(block.bytes);
        }
        for (_, block) in self.blocks.iter().filter(|(on, _)| *on == device) {
            held[block.category as usize].1 = held[block.category as usize].1.saturating_add(block.bytes);
        }
        for (_, category, bytes) in self.outside_process.iter().filter(|(on, ..)| *on == device) {
            held[*category as usize].1 = held[*category as usize].1.saturating_add(*bytes);
        }
        held
    }

    /// Returns the use of the whole device at the moment: the sum of its categories, without memory in host memory.
    pub fn used_bytes(&self, device: i32) -> u64 {
        let sum = self.categories(device).iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        sum.saturating_sub(self.host_bytes(device))
    }

    /// Returns the bytes of the process's device memory in host memory at the moment.
    pub fn host_bytes(&self, device: i32) -> u64 {
        self.model.device(device).map_or(0, |view| view.host_bytes)
    }
}
