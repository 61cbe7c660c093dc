//! The units on the device, their holders, and what reads and copies have to wait for.

use super::checked_configuration::CheckedConfiguration;
use super::configuration::Unit;
use crate::backend::{Backend, Event, Stream, Transfer};
use crate::error::Result;
use crate::events::{EventId, Events};
use crate::pieces::{Piece, divide};
use crate::range::ByteRange;

/// The number of a session.
pub type Holder = u64;

/// A stream that used a unit, and its position when it released the unit.
#[derive(Clone, Copy)]
struct Reader {
    stream: Stream,
    event: EventId,
}

/// A session that holds a unit, and the stream it uses it on.
struct UnitHold {
    holder: Holder,
    stream: Stream,
}

#[derive(Default)]
struct UnitState {
    /// Its bytes are on the device, or being copied.
    loaded: bool,
    /// The event of its latest copy, if it is loaded and was copied.
    ready: Option<EventId>,
    /// The number of that copy.
    copy: u64,
    /// Readers that have released it since; the next copy here waits for them.
    readers: Vec<Reader>,
    /// The number of the last release.
    released: u64,
    holds: Vec<UnitHold>,
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
    units: Vec<UnitState>,
    /// By placement; these do not overlap.
    occupants: Vec<Occupant>,
    pub events: Events,
    /// The number of the last copy; copies execute in order.
    last_copy: u64,
    /// All copies up to this number are known to be done.
    last_done_copy: u64,
    /// Incremented when units were evicted that a session may have counted as loaded.
    pub epoch: u64,
    /// The number of the last release of a unit.
    last_release: u64,
    /// The events that the copy being queued already waits for.
    already_waited: Vec<EventId>,
    /// The pieces of that copy.
    pieces: Vec<Piece<u64>>,
}

impl Ring {
    pub fn new(stream: Stream, units: usize) -> Self {
        let mut ring = Self {
            stream,
            units: Vec::new(),
            occupants: Vec::new(),
            events: Events::default(),
            last_copy: 0,
            last_done_copy: 0,
            epoch: 1,
            last_release: 0,
            already_waited: Vec::new(),
            pieces: Vec::new(),
        };
        ring.clear(units);
        ring
    }

    /// Resets to `units` units, none loaded. All copies and readers must be done.
    pub fn clear(&mut self, units: usize) {
        for state in std::mem::take(&mut self.units) {
            let readers = state.readers.iter().map(|reader| reader.event);
            readers.chain(state.ready).for_each(|id| self.events.release(id));
        }
        self.occupants.clear();
        self.units.resize_with(units, UnitState::default);
        self.epoch += 1;
    }

    /// All copies are done.
    pub fn all_done(&mut self) {
        self.last_done_copy = self.last_copy;
    }

    pub fn is_loaded(&self, unit: Unit) -> bool {
        self.units[unit as usize].loaded
    }

    pub fn is_held(&self, unit: Unit) -> bool {
        !self.units[unit as usize].holds.is_empty()
    }

    pub fn hold(&mut self, unit: Unit, holder: Holder, stream: Stream) {
        self.units[unit as usize].holds.push(UnitHold { holder, stream });
    }

    pub fn release(&mut self, unit: Unit, holder: Holder) {
        let holds = &mut self.units[unit as usize].holds;
        if let Some(index) = holds.iter().position(|hold| hold.holder == holder) {
            holds.swap_remove(index);
        }
    }

    /// The holder continues on another stream.
    pub fn move_hold(&mut self, unit: Unit, holder: Holder, stream: Stream) {
        for hold in self.units[unit as usize].holds.iter_mut().filter(|hold| hold.holder == holder) {
            hold.stream = stream;
        }
    }

    /// What a copy there would overwrite.
    fn occupants_in(&self, placement: ByteRange) -> impl Iterator<Item = &Occupant> {
        let first = self.occupants.partition_point(|occupant| occupant.placement.end() <= placement.start);
        self.occupants[first..].iter().take_while(move |occupant| occupant.placement.start < placement.end())
    }

    /// The units whose bytes a copy of this one would overwrite, itself included.
    fn overlapped(&self, placement: ByteRange) -> impl Iterator<Item = Unit> {
        self.occupants_in(placement).map(|occupant| occupant.unit)
    }

    /// Whether a session holds units that a copy of this one would overwrite.
    pub fn is_in_use(&self, configuration: &CheckedConfiguration, unit: Unit) -> bool {
        match configuration.placement(unit) {
            Some(placement) => self.overlapped(placement).any(|other| self.is_held(other)),
            None => false,
        }
    }

    /// Whether the unit, `distance` uses after use `from`, may be loaded ahead: not over units that are held or needed sooner.
    pub fn may_prefetch(&self, configuration: &CheckedConfiguration, unit: Unit, from: usize, distance: usize) -> bool {
        let Some(placement) = configuration.placement(unit) else { return true };
        self.overlapped(placement).all(|other| {
            !self.is_held(other) && (!self.is_loaded(other) || configuration.distance(other, from) > distance)
        })
    }

    /// Queues the copy of a unit over the units in its placement, which must not be held. Returns whether something was
    /// evicted.
    pub fn load(&mut self, backend: &dyn Backend, configuration: &CheckedConfiguration, unit: Unit) -> Result<bool> {
        let ready = self.events.acquire(backend)?;
        let mut evicted = false;
        let queued = self
            .queue_copies(backend, configuration, unit, &mut evicted)
            .and_then(|()| backend.record(self.events.event(ready), self.stream));
        if let Err(error) = queued {
            self.events.release(ready);
            return Err(error.while_doing(|| format!("loading unit {unit}")));
        }
        self.last_copy += 1;
        let state = &mut self.units[unit as usize];
        let before = state.ready.replace(ready);
        (state.loaded, state.copy) = (true, self.last_copy);
        if let Some(before) = before {
            self.events.release(before);
        }
        if let Some(placement) = configuration.placement(unit) {
            let index = self.occupants.partition_point(|occupant| occupant.placement.start < placement.start);
            self.occupants.insert(index, Occupant { placement, unit });
        }
        Ok(evicted)
    }

    /// Queues the copies of a unit, each after the readers of what it overwrites.
    fn queue_copies(
        &mut self,
        backend: &dyn Backend,
        configuration: &CheckedConfiguration,
        unit: Unit,
        evicted: &mut bool,
    ) -> Result<()> {
        self.already_waited.clear();
        let Some(placement) = configuration.placement(unit) else {
            self.wait_for_readers(backend, unit)?;
            return self.copy(backend, configuration.transfers(unit).iter().copied());
        };
        let pieces = self.pieces_of(configuration, unit, placement);
        for piece in &pieces {
            self.make_room(backend, piece.range, evicted)?;
            self.copy(backend, configuration.transfers_in(unit, piece.range))?;
        }
        self.pieces = pieces;
        Ok(())
    }

    fn copy(&self, backend: &dyn Backend, transfers: impl IntoIterator<Item = Transfer>) -> Result<()> {
        transfers.into_iter().try_for_each(|transfer| {
            // SAFETY: the caller of `Pipeline::configure` promised that the addresses are valid until the next configuration.
            // The stream waits for the readers of what is overwritten, and new readers wait for an event after all copies.
            unsafe { backend.copy(&transfer, self.stream) }
        })
    }

    /// The pieces in which a unit is copied.
    fn pieces_of(&mut self, configuration: &CheckedConfiguration, unit: Unit, placement: ByteRange) -> Vec<Piece<u64>> {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        pieces.extend(self.occupants_in(placement).map(|occupant| Piece {
            range: occupant.placement.intersection(placement),
            freed: self.units[occupant.unit as usize].released,
        }));
        let least = if configuration.is_divisible(unit) { configuration.least_piece } else { u64::MAX };
        divide(placement, least, &mut pieces);
        pieces
    }

    /// Makes the copy stream wait for all readers of a range, and evicts the units in it.
    fn make_room(&mut self, backend: &dyn Backend, range: ByteRange, evicted: &mut bool) -> Result<()> {
        let first = self.occupants.partition_point(|occupant| occupant.placement.end() <= range.start);
        while let Some(&Occupant { unit, .. }) =
            self.occupants.get(first).filter(|occupant| occupant.placement.start < range.end())
        {
            self.wait_for_readers(backend, unit)?;
            *evicted |= self.forget(unit);
            self.occupants.remove(first);
        }
        Ok(())
    }

    fn wait_for_readers(&mut self, backend: &dyn Backend, unit: Unit) -> Result<()> {
        let readers = &mut self.units[unit as usize].readers;
        for reader in readers.iter() {
            if !self.already_waited.contains(&reader.event) {
                backend.wait(self.stream, self.events.event(reader.event))?;
                self.already_waited.push(reader.event);
            }
        }
        for reader in readers.drain(..) {
            self.events.release(reader.event);
        }
        Ok(())
    }

    /// Copies a loaded unit again, after current readers. Its holders, and `stream`, see the new bytes from here on. Returns an
    /// event if the calling thread has to wait for it.
    pub fn reload(
        &mut self,
        backend: &dyn Backend,
        configuration: &CheckedConfiguration,
        unit: Unit,
        stream: Stream,
    ) -> Result<Option<Event>> {
        let mut streams: Vec<Stream> = self.units[unit as usize].holds.iter().map(|hold| hold.stream).collect();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        for &reading in &streams {
            self.record_reader(backend, reading, &[unit])?;
        }
        self.load(backend, configuration, unit)?;
        let Some(ready) = self.units[unit as usize].ready else { return Ok(None) };
        let event = self.events.event(ready);
        let mut ordered = true;
        for &reading in &streams {
            ordered &= backend.wait(reading, event)?;
        }
        Ok((!ordered).then_some(event))
    }

    /// Records the position of `stream`: copies over these units wait for it.
    pub fn record_reader(&mut self, backend: &dyn Backend, stream: Stream, units: &[Unit]) -> Result<()> {
        if units.is_empty() {
            return Ok(());
        }
        let event = self.events.acquire(backend)?;
        if let Err(error) = backend.record(self.events.event(event), stream) {
            self.events.release(event);
            return Err(error.while_doing(|| "recording the end of the use of weights".into()));
        }
        self.last_release += 1;
        for &unit in units {
            self.events.retain(event);
            let UnitState { readers, released, .. } = &mut self.units[unit as usize];
            *released = self.last_release;
            match readers.iter_mut().find(|reader| reader.stream == stream) {
                Some(reader) => self.events.release(std::mem::replace(&mut reader.event, event)),
                None => readers.push(Reader { stream, event }),
            }
        }
        self.events.release(event);
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
            copies.max_by_key(|(copy, _)| *copy).filter(|(copy, _)| *copy > self.last_done_copy.max(*waited))
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
        let id = self.events.acquire(backend)?;
        let event = self.events.event(id);
        let ordered = backend.record(event, earlier).and_then(|()| backend.wait(later, event));
        self.events.release(id);
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
            self.events.release(ready);
        }
        std::mem::replace(&mut state.loaded, false)
    }

    /// Marks a unit as loaded by another ring, without a copy to wait for.
    pub fn assume_loaded(&mut self, unit: Unit) {
        self.units[unit as usize].loaded = true;
    }
}
