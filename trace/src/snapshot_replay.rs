//! A moment of a trace, with what only became known later: what its blocks turned out to be, and what things are called.
//!
//! Whether a block is temporary is known when it is given back, whether it is a parameter when a tag says so. The model
//! puts its figures at the peak right as it learns; this does the same for single blocks, at any moment.

use std::ops::ControlFlow;

use hashbrown::HashMap;

use crate::model::{BlockView, Category, Model};
use crate::record::Record;
use crate::seek_target::SeekTarget;
use crate::sink::Sink;

/// Looks on while a trace is replayed up to a moment.
pub trait Observer {
    /// A record is about to be added to the state.
    fn before(&mut self, _record: &Record<'_>, _model: &Model) {}

    /// It was added.
    fn after(&mut self, _model: &Model) {}
}

/// Nobody looks on.
impl Observer for () {}

/// Replays a trace to its end and remembers one moment of it.
pub struct SnapshotReplay<'o> {
    at: SeekTarget,
    observer: &'o mut dyn Observer,
    model: Model,
    reached: Option<Reached>,
}

struct Reached {
    moment: Model,
    blocks: Vec<(i32, BlockView)>,
    /// The blocks, by device and address, that are still what they were.
    undecided: HashMap<(i32, u64), usize>,
    /// Devices of which the driver has told nothing yet.
    unsampled: Vec<i32>,
    outside: Vec<(i32, Category, u64)>,
}

/// A moment of a trace, seen from its end.
pub struct ResolvedSnapshot {
    /// The state at the moment, as it was known then.
    pub model: Model,
    /// The state at the end: what things are called.
    pub final_model: Model,
    /// The live blocks of the moment with their devices, in order of device and address; category and owner are what they
    /// turned out to be.
    pub blocks: Vec<(i32, BlockView)>,
    /// Whether the trace still has the moment; otherwise `moment` is the earliest it has.
    pub is_available: bool,
    outside: Vec<(i32, Category, u64)>,
}

impl<'o> SnapshotReplay<'o> {
    /// Will remember the moment `at`.
    pub fn new(at: SeekTarget, observer: &'o mut dyn Observer) -> Self {
        Self { at, observer, model: Model::new(), reached: None }
    }

    /// What there is to see, after all is replayed.
    pub fn finish(mut self) -> ResolvedSnapshot {
        let mut reached = match self.reached.take() {
            Some(reached) => reached,
            None => Reached::new(&self.model),
        };
        for (device, address) in reached.undecided.keys().copied().collect::<Vec<_>>() {
            reached.decide(device, address, self.model.block(device, address));
        }
        ResolvedSnapshot {
            is_available: self.at.is_ahead_of(&reached.moment),
            model: reached.moment,
            final_model: self.model,
            blocks: reached.blocks,
            outside: reached.outside,
        }
    }
}

impl Reached {
    fn new(model: &Model) -> Self {
        let devices = model.devices();
        let blocks: Vec<_> = devices
            .iter()
            .flat_map(|device| model.blocks(device.index).into_iter().map(|block| (device.index, block)))
            .collect();
        let undecided =
            std::iter::zip(&blocks, 0..).map(|((device, block), slot)| ((*device, block.address), slot)).collect();
        let unsampled = devices.iter().filter(|device| !device.used_is_known).map(|device| device.index).collect();
        Self { moment: model.clone(), blocks, undecided, unsampled, outside: Vec::new() }
    }

    fn decide(&mut self, device: i32, address: u64, turned_out: Option<BlockView>) {
        let Some(slot) = self.undecided.remove(&(device, address)) else { return };
        if let (Some((_, block)), Some(turned_out)) = (self.blocks.get_mut(slot), turned_out) {
            (block.category, block.owner) = (turned_out.category, turned_out.owner);
        }
    }

    /// A record comes that may end a block of the moment.
    #[inline]
    fn watch(&mut self, record: &Record<'_>, model: &Model) {
        let (device, address) = match record {
            Record::Free(event) => (event.device, event.address),
            // Where the free was lost.
            Record::Alloc(event) => (event.device, event.address),
            // Those that are blocks by themselves.
            Record::DriverAlloc(event) => (event.device, event.address),
            Record::DriverFree(event) => (event.device, event.address),
            _ => return,
        };
        if self.undecided.contains_key(&(device, address)) {
            self.decide(device, address, model.block_if_freed(device, address));
        }
    }

    /// The driver told something: its first word on a device also serves for what was before.
    fn sampled(&mut self, model: &Model) {
        let outside = &mut self.outside;
        self.unsampled.retain(|device| {
            if !model.device(*device).is_some_and(|view| view.used_is_known) {
                return true;
            }
            let told = model.categories(*device).into_iter();
            let told = told.filter(|view| matches!(view.category, Category::Context | Category::OtherProcesses));
            outside.extend(told.map(|view| (*device, view.category, view.bytes)));
            false
        });
    }
}

impl Sink for SnapshotReplay<'_> {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        if self.reached.is_none() && self.at.is_before(&record, &self.model) {
            self.reached = Some(Reached::new(&self.model));
        }
        match &mut self.reached {
            None => {
                self.observer.before(&record, &self.model);
                self.model.apply(record);
                self.observer.after(&self.model);
            }
            Some(reached) => {
                reached.watch(&record, &self.model);
                let is_sample = matches!(record, Record::Used(_)) && !reached.unsampled.is_empty();
                self.model.apply(record);
                if is_sample {
                    reached.sampled(&self.model);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn restart(&mut self) {
        (self.model, self.reached) = (Model::new(), None);
    }
}

impl ResolvedSnapshot {
    /// What every category held on a device at the moment, in the order of [`Category::ALL`]. They sum to what was in use, and in host memory.
    pub fn categories(&self, device: i32) -> [(Category, u64); Category::COUNT] {
        let mut held = self.model.categories(device).map(|view| (view.category, view.bytes));
        // What blocks held by what was known then, and by what they turned out to be.
        for block in self.model.blocks(device) {
            held[block.category as usize].1 = held[block.category as usize].1.saturating_sub(block.bytes);
        }
        for (_, block) in self.blocks.iter().filter(|(on, _)| *on == device) {
            held[block.category as usize].1 = held[block.category as usize].1.saturating_add(block.bytes);
        }
        for (_, category, bytes) in self.outside.iter().filter(|(on, ..)| *on == device) {
            held[*category as usize].1 = held[*category as usize].1.saturating_add(*bytes);
        }
        held
    }

    /// The whole device's use at the moment: the sum of its categories, without what of it lay in host memory.
    pub fn used_bytes(&self, device: i32) -> u64 {
        let sum = self.categories(device).iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        sum.saturating_sub(self.host_bytes(device))
    }

    /// What of the process's memory of a device lay in host memory at the moment.
    pub fn host_bytes(&self, device: i32) -> u64 {
        self.model.device(device).map_or(0, |view| view.host_bytes)
    }
}
