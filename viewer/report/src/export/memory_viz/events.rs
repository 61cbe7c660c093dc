//! Events of PyTorch's allocator, collected during the replay of a trace.

use std::collections::VecDeque;

use memlab_trace::record::{DriverKind, Flags, Record};
use memlab_trace::{Model, Observer};

/// Kind of event.
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
    /// PyTorch's name of the action.
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

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) action: Action,
    pub(super) device: i32,
    /// Address; for an out-of-memory error, the free bytes of the device.
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Stack of the allocation, also for a free.
    pub(super) stack: u32,
    /// Range in which the block was allocated; 0: none.
    pub(super) range: u32,
    /// Nanoseconds since the trace's start.
    pub(super) time: u64,
}

/// The latest events.
pub struct Events {
    kept: VecDeque<Event>,
    most: usize,
    left_out: u64,
}

impl Events {
    /// Keeps at most the latest `most` events.
    pub fn keeping(most: usize) -> Self {
        Self { kept: VecDeque::new(), most, left_out: 0 }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.kept.iter()
    }

    /// Number of earlier events that were dropped.
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

    /// Records the free of a live block at an address.
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
                // A live block at this address means that its free is missing from the trace.
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
