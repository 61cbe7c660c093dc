//! Replay: the state of a trace with its latest events, to show them one by one.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::model::{Category, Model};
use crate::seek_target::SeekTarget;
use crate::sink::Sink;
use memlab_format::record::{DriverKind, Flags, Phase, Record};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// PyTorch's allocator allocated a block.
    Alloc,
    /// A block was freed.
    Free,
    /// Memory was taken from the driver; true: for a segment of PyTorch's allocator.
    DriverAlloc(DriverKind, bool),
    /// Driver memory was freed.
    DriverFree(DriverKind),
    /// Physical memory was mapped.
    Map,
    /// Physical memory was unmapped.
    Unmap,
    /// PyTorch ran out of memory; `bytes` were requested.
    Oom,
    /// An optimizer step ended; `address` is its index.
    Step,
    /// A thread entered or left a range; `address` is its range from now on.
    InRange,
    /// The use of the whole device was sampled: `bytes`.
    Used,
    /// `bytes` of the device's memory are in host memory from now on.
    Moved,
    /// The process ended.
    End,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventView {
    /// Number of the event in the trace, from 1.
    pub number: u64,
    /// Nanoseconds since the trace's start.
    pub time: u64,
    /// Kind of the event.
    pub kind: EventKind,
    /// The device; −1: the host, or none.
    pub device: i32,
    /// The thread; 0: none.
    pub thread: u32,
    /// Address; for a step, its index; for a range event, the range.
    pub address: u64,
    /// Bytes; 0 where not known.
    pub bytes: u64,
    /// Stack of the allocation, also for a free; 0: none.
    pub stack: u32,
    /// Layer of the allocation, also for a free; 0: none.
    pub layer: u32,
    /// The phase of the allocation.
    pub phase: Phase,
    /// The category of a freed block.
    pub category: Option<Category>,
    /// The CUDA function called.
    pub call: Option<Arc<str>>,
}

/// A model, and the latest events applied to it.
#[derive(Clone, Default)]
pub struct Replay {
    /// The state.
    pub model: Model,
    history: VecDeque<EventView>,
    history_length: usize,
    /// Number of the last event that is not kept, even if the history has room.
    kept_from: u64,
}

impl Replay {
    /// Returns an empty state that keeps the latest `history_length` events.
    pub fn with_history(history_length: usize) -> Self {
        Self { model: Model::new(), history: VecDeque::new(), history_length, kept_from: 0 }
    }

    /// Returns a replay of `model` without its past events, which keeps the latest `history_length` events from now on.
    pub fn from_model(model: Model, history_length: usize) -> Self {
        Self { kept_from: model.events(), model, history: VecDeque::new(), history_length }
    }

    /// Returns the latest events, oldest first.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &EventView> + ExactSizeIterator {
        self.history.iter()
    }

    /// Changes the number of events kept.
    pub fn set_history_length(&mut self, history_length: usize) {
        self.history_length = history_length;
        let surplus = self.history.len().saturating_sub(history_length);
        self.history.drain(..surplus);
    }

    /// Returns the maximum number of events kept.
    pub(crate) fn history_length(&self) -> usize {
        self.history_length
    }

    /// Returns how far back the history may reach, in events of the trace.
    ///
    /// This is more than its length, because the history omits some events, such as tags.
    fn window(&self) -> u64 {
        2 * self.history_length as u64
    }

    /// Returns true if the history is short because the replay started shortly before.
    pub(crate) fn lacks_events(&self) -> bool {
        let is_short = self.model.events() - self.kept_from < self.window();
        self.kept_from > 0 && is_short && self.history.len() < self.history_length
    }

    /// Returns the event number after which a replay to a moment keeps events.
    ///
    /// Clears the history if that leaves a gap.
    pub(crate) fn events_from(&mut self, at: SeekTarget) -> u64 {
        let SeekTarget::Event(number) = at else { return 0 };
        let from = number.saturating_sub(self.window());
        if self.model.events() < from {
            self.history.clear();
            self.kept_from = from;
        }
        from
    }

    #[inline(never)]
    fn apply_and_keep(&mut self, record: Record<'_>) {
        // Reads the event before the model forgets the block that it frees.
        let event = self.view(&record);
        self.model.apply(record);
        if let Some(mut event) = event {
            event.number = self.model.events();
            if event.kind == EventKind::Free
                && let Some(block) = self.model.freed(event.device, event.address)
            {
                (event.bytes, event.stack, event.layer) = (block.bytes, block.stack, block.layer);
                event.category = Some(block.category);
            }
            self.keep(event);
        }
    }

    fn keep(&mut self, event: EventView) {
        if self.history.len() >= self.history_length {
            self.history.pop_front();
        }
        self.history.push_back(event);
    }

    fn view(&self, record: &Record<'_>) -> Option<EventView> {
        let none = EventView {
            number: 0,
            time: record.time()?,
            kind: EventKind::End,
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
                kind: EventKind::Alloc,
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
                EventView { kind: EventKind::Free, device: e.device, thread: e.thread, address: e.address, ..none }
            }
            Record::DriverAlloc(e) => EventView {
                kind: EventKind::DriverAlloc(e.kind, e.flags.has(Flags::SEGMENT)),
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
                kind: EventKind::DriverFree(e.kind),
                device: e.device,
                thread: e.thread,
                address: e.address,
                bytes: self.model.driver_allocation(e.device, e.kind, e.address).map_or(0, |held| held.bytes),
                ..none
            },
            Record::Map(e) => EventView {
                kind: EventKind::Map,
                device: e.device,
                thread: e.thread,
                address: e.address,
                bytes: e.bytes,
                ..none
            },
            Record::Unmap(e) => EventView {
                kind: EventKind::Unmap,
                device: e.device,
                thread: e.thread,
                address: e.address,
                bytes: e.bytes,
                ..none
            },
            Record::Oom(e) => EventView {
                kind: EventKind::Oom,
                device: e.device,
                thread: e.thread,
                bytes: e.requested,
                stack: e.stack,
                layer: e.layer,
                ..none
            },
            Record::Step(e) => EventView { kind: EventKind::Step, thread: e.thread, address: e.index, ..none },
            Record::InRange(e) => {
                EventView { kind: EventKind::InRange, thread: e.thread, address: e.range.into(), ..none }
            }
            Record::Used(e) => EventView { kind: EventKind::Used, device: e.device, bytes: e.used, ..none },
            Record::Moved(e) => EventView { kind: EventKind::Moved, device: e.device, bytes: e.bytes, ..none },
            Record::End(_) => none,
            // Tags are left out: they are numerous, and describe blocks rather than events.
            _ => return None,
        })
    }
}

impl Sink for Replay {
    #[inline]
    fn take(&mut self, record: Record<'_>) -> ControlFlow<()> {
        if self.history_length > 0 {
            self.apply_and_keep(record);
        } else {
            self.model.apply(record);
        }
        ControlFlow::Continue(())
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn restart(&mut self) {
        *self = Self::with_history(self.history_length);
    }
}
