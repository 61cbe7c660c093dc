//! The units on the device, their holders, and what reads and copies have to wait for.

use std::time::Duration;

use super::configuration::Unit;
use super::events::{Events, Id};
use super::layout::Layout;
use crate::backend::{Backend, Event, Stream};
use crate::error::Result;
use crate::range::ByteRange;

/// The number of a session.
pub type Holder = u64;

/// A reader's stream, and its position when it released the unit.
#[derive(Clone, Copy)]
struct Mark {
    stream: Stream,
    event: Id,
}

#[derive(Default)]
struct State {
    /// Its bytes are on the device, or being copied.
    loaded: bool,
    /// The event of its latest copy, if it is loaded and was copied.
    ready: Option<Id>,
    /// The number of that copy.
    copy: u64,
    /// Readers that have released it since; the next copy here waits for them.
    marks: Vec<Mark>,
    holds: Vec<(Holder, Stream)>,
}

/// The owner of a part of the ring. No other unit's bytes are there, though its own may be stale.
#[derive(Clone, Copy)]
struct Occupant {
    placement: ByteRange,
    unit: Unit,
}

/// The device memory of all units, and the stream that fills it.
pub struct Ring {
    pub stream: Stream,
    units: Vec<State>,
    /// By placement; these do not overlap.
    occupants: Vec<Occupant>,
    pub events: Events,
    /// The number of the last copy; copies execute in order.
    copies: u64,
    /// All copies up to this number are known to be done.
    done: u64,
    /// Incremented when units were evicted that a session may have counted as loaded.
    pub epoch: u64,
    /// The session that prefetched last.
    pub prefetcher: Holder,
    waited: Vec<Id>,
}

impl Ring {
    pub fn new(stream: Stream, units: usize) -> Self {
        let mut ring = Self {
            stream,
            units: Vec::new(),
            occupants: Vec::new(),
            events: Events::default(),
            copies: 0,
            done: 0,
            epoch: 1,
            prefetcher: 0,
            waited: Vec::new(),
        };
        ring.clear(units);
        ring
    }

    /// Resets to `units` units, none loaded. All copies and readers must be done.
    pub fn clear(&mut self, units: usize) {
        for state in std::mem::take(&mut self.units) {
            let marks = state.marks.iter().map(|mark| mark.event);
            marks.chain(state.ready).for_each(|id| self.events.drop(id));
        }
        self.occupants.clear();
        self.units.resize_with(units, State::default);
        self.epoch += 1;
    }

    /// All copies are done.
    pub fn all_done(&mut self) {
        self.done = self.copies;
    }

    pub fn is_loaded(&self, unit: Unit) -> bool {
        self.units[unit as usize].loaded
    }

    pub fn is_held(&self, unit: Unit) -> bool {
        !self.units[unit as usize].holds.is_empty()
    }

    pub fn hold(&mut self, unit: Unit, holder: Holder, stream: Stream) {
        self.units[unit as usize].holds.push((holder, stream));
    }

    pub fn release(&mut self, unit: Unit, holder: Holder) {
        let holds = &mut self.units[unit as usize].holds;
        if let Some(index) = holds.iter().position(|hold| hold.0 == holder) {
            holds.swap_remove(index);
        }
    }

    /// The holder continues on another stream.
    pub fn move_hold(&mut self, unit: Unit, holder: Holder, stream: Stream) {
        for hold in self.units[unit as usize].holds.iter_mut().filter(|hold| hold.0 == holder) {
            hold.1 = stream;
        }
    }

    /// The units whose bytes a copy of this one would overwrite, itself included.
    fn overlapped(&self, placement: ByteRange) -> impl Iterator<Item = Unit> {
        let first = self.occupants.partition_point(|occupant| occupant.placement.end() <= placement.start);
        let rest = self.occupants[first..].iter();
        rest.take_while(move |occupant| occupant.placement.start < placement.end()).map(|occupant| occupant.unit)
    }

    /// Whether a session holds units that a copy of this one would overwrite.
    pub fn is_in_use(&self, layout: &Layout, unit: Unit) -> bool {
        match layout.placement(unit) {
            Some(placement) => self.overlapped(placement).any(|other| self.is_held(other)),
            None => false,
        }
    }

    /// Whether the unit, `distance` uses after use `from`, may be loaded ahead: not over units that are held or needed sooner.
    pub fn may_prefetch(&self, layout: &Layout, unit: Unit, from: usize, distance: usize) -> bool {
        let Some(placement) = layout.placement(unit) else { return true };
        self.overlapped(placement)
            .all(|other| !self.is_held(other) && (!self.is_loaded(other) || layout.distance(other, from) > distance))
    }

    /// Queues the copy of a unit over the units in its placement, which must not be held. Returns whether something was
    /// evicted.
    pub fn load(&mut self, backend: &dyn Backend, layout: &Layout, unit: Unit) -> Result<bool> {
        let ready = self.events.take(backend)?;
        let mut evicted = false;
        let queued = self.make_room(backend, layout, unit, &mut evicted).and_then(|()| {
            for transfer in layout.transfers(unit) {
                // SAFETY: the caller of `Pipeline::configure` promised that the addresses are valid until the next
                // configuration. `make_room` made this copy wait for readers; new readers wait for `ready`.
                unsafe { backend.copy(transfer, self.stream) }?;
            }
            backend.record(self.events.event(ready), self.stream)
        });
        if let Err(error) = queued {
            self.events.drop(ready);
            return Err(error.while_doing(|| format!("loading unit {unit}")));
        }
        self.copies += 1;
        let state = &mut self.units[unit as usize];
        let before = state.ready.replace(ready);
        (state.loaded, state.copy) = (true, self.copies);
        if let Some(before) = before {
            self.events.drop(before);
        }
        if let Some(placement) = layout.placement(unit) {
            let index = self.occupants.partition_point(|occupant| occupant.placement.start < placement.start);
            self.occupants.insert(index, Occupant { placement, unit });
        }
        Ok(evicted)
    }

    /// Makes the copy stream wait for all readers of the placement, and evicts the units in it.
    fn make_room(&mut self, backend: &dyn Backend, layout: &Layout, unit: Unit, evicted: &mut bool) -> Result<()> {
        self.waited.clear();
        let Some(placement) = layout.placement(unit) else { return self.wait_for_readers(backend, unit) };
        let first = self.occupants.partition_point(|occupant| occupant.placement.end() <= placement.start);
        while let Some(&Occupant { unit: other, .. }) =
            self.occupants.get(first).filter(|occupant| occupant.placement.start < placement.end())
        {
            self.wait_for_readers(backend, other)?;
            *evicted |= self.forget(other);
            self.occupants.remove(first);
        }
        Ok(())
    }

    fn wait_for_readers(&mut self, backend: &dyn Backend, unit: Unit) -> Result<()> {
        let marks = &mut self.units[unit as usize].marks;
        for mark in marks.iter() {
            if !self.waited.contains(&mark.event) {
                backend.wait(self.stream, self.events.event(mark.event))?;
                self.waited.push(mark.event);
            }
        }
        for mark in marks.drain(..) {
            self.events.drop(mark.event);
        }
        Ok(())
    }

    /// Copies a loaded unit again, after current readers. Its holders, and `stream`, see the new bytes from here on. Returns an
    /// event if the calling thread has to wait for it.
    pub fn reload(
        &mut self,
        backend: &dyn Backend,
        layout: &Layout,
        unit: Unit,
        stream: Stream,
    ) -> Result<Option<Event>> {
        let mut streams: Vec<Stream> = self.units[unit as usize].holds.iter().map(|hold| hold.1).collect();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        for &reader in &streams {
            self.mark(backend, reader, &[unit])?;
        }
        self.load(backend, layout, unit)?;
        let Some(ready) = self.units[unit as usize].ready else { return Ok(None) };
        let event = self.events.event(ready);
        let mut ordered = true;
        for &reader in &streams {
            ordered &= backend.wait(reader, event)?;
        }
        Ok((!ordered).then_some(event))
    }

    /// Records the position of `stream`: copies over these units wait for it.
    pub fn mark(&mut self, backend: &dyn Backend, stream: Stream, units: &[Unit]) -> Result<()> {
        if units.is_empty() {
            return Ok(());
        }
        let event = self.events.take(backend)?;
        if let Err(error) = backend.record(self.events.event(event), stream) {
            self.events.drop(event);
            return Err(error.while_doing(|| "noting that weights are no longer in use".into()));
        }
        for &unit in units {
            self.events.keep(event);
            let marks = &mut self.units[unit as usize].marks;
            match marks.iter_mut().find(|mark| mark.stream == stream) {
                Some(mark) => self.events.drop(std::mem::replace(&mut mark.event, event)),
                None => marks.push(Mark { stream, event }),
            }
        }
        self.events.drop(event);
        Ok(())
    }

    /// Makes `stream` wait for the copies of these units, unless it has waited for copy `waited` or a later one. Returns an
    /// event if the calling thread has to wait for it.
    pub fn wait_for_copies(
        &self,
        backend: &dyn Backend,
        stream: Stream,
        units: &[Unit],
        waited: &mut u64,
    ) -> Result<Option<Event>> {
        let copies = units.iter().filter_map(|&unit| {
            let state = &self.units[unit as usize];
            Some((state.copy, state.ready?))
        });
        let Some((copy, ready)) =
            copies.max_by_key(|(copy, _)| *copy).filter(|(copy, _)| *copy > self.done.max(*waited))
        else {
            return Ok(None);
        };
        let event = self.events.event(ready);
        let ordered =
            backend.wait(stream, event).map_err(|error| error.while_doing(|| "waiting for weights".into()))?;
        *waited = copy;
        Ok((!ordered).then_some(event))
    }

    /// Makes work queued on `later` from now on wait for the work queued on `earlier`.
    pub fn order(&mut self, backend: &dyn Backend, earlier: Stream, later: Stream) -> Result<()> {
        let id = self.events.take(backend)?;
        let event = self.events.event(id);
        let ordered = backend.record(event, earlier).and_then(|()| backend.wait(later, event));
        self.events.drop(id);
        ordered.map(|_| ())
    }

    /// All units in the ring are stale; their readers are still waited for.
    pub fn invalidate(&mut self) {
        for index in 0..self.occupants.len() {
            self.forget(self.occupants[index].unit);
        }
        self.epoch += 1;
    }

    /// Marks a unit as not loaded; returns whether it was.
    fn forget(&mut self, unit: Unit) -> bool {
        let state = &mut self.units[unit as usize];
        if let Some(ready) = state.ready.take() {
            self.events.drop(ready);
        }
        std::mem::replace(&mut state.loaded, false)
    }

    /// Marks a unit as loaded by another ring, without a copy to wait for.
    pub fn assume_loaded(&mut self, unit: Unit) {
        self.units[unit as usize].loaded = true;
    }
}

/// Figures since the pipeline was created.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Forwards ended.
    pub forwards: u64,
    /// Units copied, without those that stay.
    pub copies: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Units among them that were needed before their copy was queued. Not counted where that is unavoidable: in the first
    /// forward, and at the begin of each once something was captured.
    pub on_demand: u64,
    /// Points reached in another order than in the schedule.
    pub out_of_order: u64,
    /// Units copied again because their bytes changed.
    pub reloads: u64,
    /// How often a thread waited for units of another one, or for a copy.
    pub waits: u64,
    /// How long those waits took.
    pub waited: Duration,
}
