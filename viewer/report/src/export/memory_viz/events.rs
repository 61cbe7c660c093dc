//! What PyTorch's allocator did, gathered while a trace is replayed.

use std::collections::VecDeque;

use memlab_trace::record::{DriverKind, Flags, Record};
use memlab_trace::{Model, Observer};

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Oom,
}

impl Action {
    /// As PyTorch calls it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Oom => "oom",
        }
    }
}

/// One thing done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) action: Action,
    pub(super) device: i32,
    /// Where; of an out-of-memory: what was free on the device.
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Of a free, too, the stack that had asked for the block.
    pub(super) stack: u32,
    /// Of a block, the range in which it was allocated; 0: none.
    pub(super) range: u32,
    /// Nanoseconds since the trace's start.
    pub(super) time: u64,
}

/// The latest of them.
pub struct Events {
    kept: VecDeque<Event>,
    most: usize,
    left_out: u64,
}

impl Events {
    /// Will keep the latest `most`.
    pub fn keeping(most: usize) -> Self {
        Self { kept: VecDeque::new(), most, left_out: 0 }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.kept.iter()
    }

    /// How many earlier ones were not kept.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn keep(&mut self, event: Event) {
        self.kept.push_back(event);
        if self.kept.len() > self.most {
            self.kept.pop_front();
            self.left_out += 1;
        }
    }

    /// The block at an address, if one lives there, is given back.
    fn free(&mut self, model: &Model, device: i32, address: u64, time: u64) {
        let Some(block) = model.block(device, address) else { return };
        for action in [Action::FreeRequested, Action::FreeCompleted] {
            self.keep(Event {
                action,
                device,
                address,
                bytes: block.bytes,
                stack: block.stack,
                range: block.range,
                time,
            });
        }
    }
}

impl Observer for Events {
    fn before(&mut self, record: &Record<'_>, model: &Model) {
        match record {
            Record::Alloc(e) => {
                // Where the free was lost.
                self.free(model, e.device, e.address, e.time);
                let (device, address, bytes, stack, time) = (e.device, e.address, e.bytes, e.stack, e.time);
                let range = model.range_of_thread(e.thread);
                self.keep(Event { action: Action::Alloc, device, address, bytes, stack, range, time });
            }
            Record::Free(e) => self.free(model, e.device, e.address, e.time),
            Record::DriverAlloc(e) if e.is_block() => {
                self.free(model, e.device, e.address, e.time);
                let (device, address, bytes, stack, time) = (e.device, e.address, e.bytes, e.stack, e.time);
                for (action, range) in [(Action::SegmentAlloc, 0), (Action::Alloc, model.range_of_thread(e.thread))] {
                    self.keep(Event { action, device, address, bytes, stack, range, time });
                }
            }
            // Physical memory becomes part of a segment when it is mapped.
            Record::DriverAlloc(e)
                if e.flags.has(Flags::SEGMENT) && e.kind.on_device() && e.kind != DriverKind::Physical =>
            {
                let (device, address, bytes, stack, time) = (e.device, e.address, e.bytes, e.stack, e.time);
                self.keep(Event { action: Action::SegmentAlloc, device, address, bytes, stack, range: 0, time });
            }
            Record::DriverFree(e) if e.kind != DriverKind::Physical => {
                let Some(held) = model.driver_allocation(e.device, e.kind, e.address).filter(|held| held.is_segment)
                else {
                    return;
                };
                if held.is_block {
                    self.free(model, e.device, e.address, e.time);
                }
                let (device, address, time) = (e.device, e.address, e.time);
                self.keep(Event {
                    action: Action::SegmentFree,
                    device,
                    address,
                    bytes: held.bytes,
                    stack: 0,
                    range: 0,
                    time,
                });
            }
            Record::Map(e) => {
                let physical = model.driver_allocation(e.device, DriverKind::Physical, e.handle);
                if physical.is_some_and(|held| held.is_segment) {
                    let (device, address, bytes, time) = (e.device, e.address, e.bytes, e.time);
                    self.keep(Event { action: Action::SegmentMap, device, address, bytes, stack: 0, range: 0, time });
                }
            }
            Record::Unmap(e) if model.is_mapped_segment(e.device, e.address) => {
                let (device, address, bytes, time) = (e.device, e.address, e.bytes, e.time);
                self.keep(Event { action: Action::SegmentUnmap, device, address, bytes, stack: 0, range: 0, time });
            }
            Record::Oom(e) => {
                let free = model.device(e.device).map_or(0, |view| view.total_bytes.saturating_sub(view.used_bytes));
                let (device, bytes, stack, time) = (e.device, e.requested, e.stack, e.time);
                self.keep(Event { action: Action::Oom, device, address: free, bytes, stack, range: 0, time });
            }
            _ => {}
        }
    }
}
