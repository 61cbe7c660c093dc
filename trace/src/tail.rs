//! The latest events of a trace, for showing them one by one.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::Sink;
use crate::model::{Category, Model};
use crate::record::{DriverKind, Flags, Phase, Record};

/// What kind of event it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// PyTorch's allocator handed out a block.
    Alloc,
    /// A block was given back to it.
    Free,
    /// Memory was taken from the driver; whether it became a segment of PyTorch's allocator.
    DriverAlloc(DriverKind, bool),
    /// Memory was given back to the driver.
    DriverFree(DriverKind),
    /// Physical memory was mapped.
    Map,
    /// Physical memory was unmapped.
    Unmap,
    /// PyTorch was out of memory: `bytes` is what was asked for.
    Oom,
    /// An optimizer step ended: `address` is its number.
    Step,
    /// The driver told the whole device's use, in `bytes`.
    Used,
    /// `bytes` of the device's memory lie in host memory from then on.
    Moved,
    /// The process ended.
    End,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventView {
    /// Which event of the trace it is, from 1.
    pub number: u64,
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// What happened.
    pub what: Happening,
    /// The device; −1: the host, or none.
    pub device: i32,
    /// The thread; 0: none.
    pub thread: u32,
    /// Where; of a step: its number.
    pub address: u64,
    /// How much; 0 where it is not known.
    pub bytes: u64,
    /// The stack that asked, of a free: that had asked for the block; 0: none.
    pub stack: u32,
    /// The layer that asked, of a free: that had asked; 0: none.
    pub layer: u32,
    /// The phase of what asked.
    pub phase: Phase,
    /// What a freed block had been used for.
    pub category: Option<Category>,
    /// The CUDA function called.
    pub call: Option<Arc<str>>,
}

/// A model, and the latest of the events that made it.
#[derive(Clone, Default)]
pub struct Replay {
    /// The state.
    pub model: Model,
    tail: VecDeque<EventView>,
    kept: usize,
}

impl Replay {
    /// Nothing yet; the latest `kept` events will be kept.
    pub fn keeping(kept: usize) -> Self {
        Self { model: Model::new(), tail: VecDeque::new(), kept }
    }

    /// A model without the events that made it; the latest `kept` to come will be kept.
    pub fn of(model: Model, kept: usize) -> Self {
        Self { model, tail: VecDeque::new(), kept }
    }

    /// The latest events, the oldest first.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &EventView> + ExactSizeIterator {
        self.tail.iter()
    }

    /// Keeps as many from now on.
    pub fn keep_latest(&mut self, kept: usize) {
        self.kept = kept;
        let surplus = self.tail.len().saturating_sub(kept);
        self.tail.drain(..surplus);
    }

    /// How many events are kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    fn keep(&mut self, event: EventView) {
        if self.tail.len() >= self.kept {
            self.tail.pop_front();
        }
        self.tail.push_back(event);
    }

    fn view(&self, record: &Record<'_>) -> Option<EventView> {
        let none = EventView {
            number: 0,
            time: record.time()?,
            what: Happening::End,
            device: -1,
            thread: 0,
            address: 0,
            bytes: 0,
            stack: 0,
            layer: 0,
            phase: Phase::Other,
            category: None,
            call: None,
        };
        Some(match record {
            Record::Alloc(e) => EventView {
                what: Happening::Alloc,
                device: e.device,
                thread: e.thread,
                address: e.address,
                bytes: e.bytes,
                stack: e.stack,
                layer: e.layer,
                phase: e.flags.phase(),
                ..none
            },
            Record::Free(e) => {
                EventView { what: Happening::Free, device: e.device, thread: e.thread, address: e.address, ..none }
            }
            Record::DriverAlloc(e) => EventView {
                what: Happening::DriverAlloc(e.kind, e.flags.has(Flags::SEGMENT)),
                device: e.device,
                thread: e.thread,
                address: e.address,
                bytes: e.bytes,
                stack: e.stack,
                layer: e.layer,
                phase: e.flags.phase(),
                call: Some(e.call.as_ref().into()),
                ..none
            },
            Record::DriverFree(e) => EventView {
                what: Happening::DriverFree(e.kind),
                device: e.device,
                thread: e.thread,
                address: e.address,
                bytes: self.model.driver_held(e.device, e.kind, e.address).map_or(0, |held| held.bytes),
                ..none
            },
            Record::Map(e) => EventView {
                what: Happening::Map,
                device: e.device,
                thread: e.thread,
                address: e.address,
                bytes: e.bytes,
                ..none
            },
            Record::Unmap(e) => EventView {
                what: Happening::Unmap,
                device: e.device,
                thread: e.thread,
                address: e.address,
                bytes: e.bytes,
                ..none
            },
            Record::Oom(e) => EventView {
                what: Happening::Oom,
                device: e.device,
                thread: e.thread,
                bytes: e.requested,
                stack: e.stack,
                layer: e.layer,
                ..none
            },
            Record::Step(e) => EventView { what: Happening::Step, thread: e.thread, address: e.index, ..none },
            Record::Used(e) => EventView { what: Happening::Used, device: e.device, bytes: e.used, ..none },
            Record::Moved(e) => EventView { what: Happening::Moved, device: e.device, bytes: e.bytes, ..none },
            Record::End(_) => none,
            // Tags come by the hundred and say what blocks are, not what happened.
            _ => return None,
        })
    }
}

impl Sink for Replay {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        // Before the model forgets what the event takes away.
        let event = if self.kept > 0 { self.view(&record) } else { None };
        self.model.apply(record);
        if let Some(mut event) = event {
            event.number = self.model.events();
            if event.what == Happening::Free
                && let Some(block) = self.model.freed(event.device, event.address)
            {
                (event.bytes, event.stack, event.layer) = (block.bytes, block.stack, block.layer);
                event.category = Some(block.category);
            }
            self.keep(event);
        }
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn restart(&mut self) {
        *self = Self::keeping(self.kept);
    }
}
