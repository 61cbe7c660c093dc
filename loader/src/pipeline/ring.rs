//! What lies on the device, who holds it, and what has to be waited for before it may be read or overwritten.

use std::time::Duration;

use super::configuration::Unit;
use super::events::{Events, Id};
use super::layout::Layout;
use crate::backend::{Backend, Event, Stream};
use crate::error::Result;
use crate::range::ByteRange;

/// Number of a session.
pub type Holder = u64;

/// A reader's stream, and how far it was when it let go.
#[derive(Clone, Copy)]
struct Mark {
    stream: Stream,
    event: Id,
}

#[derive(Default)]
struct State {
    /// Its bytes are there, or on the cursor.
    loaded: bool,
    /// Set by its newest copy, if it is loaded and one was needed for that.
    ready: Option<Id>,
    /// Number of that copy.
    copy: u64,
    /// Readers that have let go since; the next copy here waits for them.
    marks: Vec<Mark>,
    holds: Vec<(Holder, Stream)>,
}

/// Owns a part of the ring: nobody else's bytes are there, though its own may be stale.
#[derive(Clone, Copy)]
struct Occupant {
    placement: ByteRange,
    unit: Unit,
}

/// The device memory of all units, and the stream that fills it.
pub struct Ring {
    pub stream: Stream,
    units: Vec<State>,
    /// By place, which do not overlap.
    occupants: Vec<Occupant>,
    pub events: Events,
    /// Copies are numbered; they are done in order.
    copies: u64,
    /// Copies that are known to be done, all up to here.
    done: u64,
    /// Goes up when something was evicted that a session may have counted on.
    pub epoch: u64,
    /// Who prefetched last.
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

    /// Begins anew with so many units, nothing of which is there. All copies must have ended, and all readers.
    pub fn clear(&mut self, units: usize) {
        for state in std::mem::take(&mut self.units) {
            let marks = state.marks.iter().map(|mark| mark.event);
            marks.chain(state.ready).for_each(|id| self.events.drop(id));
        }
        self.occupants.clear();
        self.units.resize_with(units, State::default);
        self.epoch += 1;
    }

    /// All copies have ended.
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

    /// The holder goes on on another stream.
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

    /// Whether somebody holds what a copy of this unit would overwrite.
    pub fn is_in_use(&self, layout: &Layout, unit: Unit) -> bool {
        match layout.placement(unit) {
            Some(placement) => self.overlapped(placement).any(|other| self.is_held(other)),
            None => false,
        }
    }

    /// Whether the unit may be loaded ahead, `distance` uses after use `from`: not over what is held or needed sooner.
    pub fn may_prefetch(&self, layout: &Layout, unit: Unit, from: usize, distance: usize) -> bool {
        let Some(placement) = layout.placement(unit) else { return true };
        self.overlapped(placement)
            .all(|other| !self.is_held(other) && (!self.is_loaded(other) || layout.distance(other, from) > distance))
    }

    /// Queues the copy of a unit over whatever lies in its place, which nobody may hold. Says whether something was evicted.
    pub fn load(&mut self, backend: &dyn Backend, layout: &Layout, unit: Unit) -> Result<bool> {
        let ready = self.events.take(backend)?;
        let mut evicted = false;
        let queued = self.make_room(backend, layout, unit, &mut evicted).and_then(|()| {
            for transfer in layout.transfers(unit) {
                // SAFETY: the configuration's promise (`Pipeline::configure`): the addresses are good until the next one. Who
                // overwrites waits for readers above, who reads waits for `ready`.
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

    /// The copies' stream waits for all that still read what lies there; then it belongs to nobody.
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

    /// Copies a unit again that is there, after all that read it now; those that hold it, and `stream`, go on with the new bytes.
    /// An event is returned when the calling thread has to wait itself.
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

    /// Notes how far `stream` is: what overwrites these units waits for that.
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

    /// Has `stream` wait for the copies of these units, unless it has waited for copy `waited` or a later one. An event is
    /// returned when the calling thread has to do the waiting.
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

    /// What is queued on `later` from here on waits for what is queued on `earlier`.
    pub fn order(&mut self, backend: &dyn Backend, earlier: Stream, later: Stream) -> Result<()> {
        let id = self.events.take(backend)?;
        let event = self.events.event(id);
        let ordered = backend.record(event, earlier).and_then(|()| backend.wait(later, event));
        self.events.drop(id);
        ordered.map(|_| ())
    }

    /// What lies in the ring is stale; readers of it are still waited for.
    pub fn invalidate(&mut self) {
        for index in 0..self.occupants.len() {
            self.forget(self.occupants[index].unit);
        }
        self.epoch += 1;
    }

    /// Its bytes are no longer there; says whether they were.
    fn forget(&mut self, unit: Unit) -> bool {
        let state = &mut self.units[unit as usize];
        if let Some(ready) = state.ready.take() {
            self.events.drop(ready);
        }
        std::mem::replace(&mut state.loaded, false)
    }

    /// Its bytes are there by somebody else's doing, and all streams know.
    pub fn assume_loaded(&mut self, unit: Unit) {
        self.units[unit as usize].loaded = true;
    }
}

/// Figures since the pipeline was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Forwards that have ended.
    pub forwards: u64,
    /// Units copied, apart from those that stay.
    pub copies: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Of those, units that were needed and neither there nor on the cursor, apart from where that cannot be otherwise: in the first
    /// forward, and once something was captured at the begin of each.
    pub on_demand: u64,
    /// Points that came in another order than the schedule says.
    pub out_of_order: u64,
    /// Units copied again because their bytes changed.
    pub reloads: u64,
    /// How often a thread waited for another one's units, or itself for a copy.
    pub waits: u64,
    /// How long those waits took.
    pub waited: Duration,
}
