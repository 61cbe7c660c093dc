//! The units on the device, their holders, and the events that readers and copies wait for.

use super::checked_configuration::CheckedConfiguration;
use super::configuration::Unit;
use crate::backend::{Backend, Event, Stream, Transfer};
use crate::error::Result;
use crate::events::{EventId, Events};
use crate::pieces::{Piece, divide};
use crate::range::ByteRange;

/// Number of a session.
pub type Holder = u64;

/// A stream that used a unit, and its position when it released the unit.
#[derive(Clone, Copy)]
struct Reader {
    stream: Stream,
    event: EventId,
}

/// A session that holds a unit, and the stream on which it uses the unit.
struct UnitHold {
    holder: Holder,
    stream: Stream,
}

#[derive(Default)]
struct UnitState {
    /// True if the bytes are on the device, or being copied.
    loaded: bool,
    /// Event of the latest copy, if the unit is loaded and was copied.
    ready: Option<EventId>,
    /// Number of that copy.
    copy: u64,
    /// Readers that have released the unit since.
    ///
    /// The next copy here waits for them.
    readers: Vec<Reader>,
    /// Number of the last release.
    released: u64,
    holds: Vec<UnitHold>,
}

/// Owner of a part of the ring.
///
/// The part contains no bytes of another unit, but the owner's bytes may be stale.
#[derive(Clone, Copy)]
struct Occupant {
    placement: ByteRange,
    unit: Unit,
}

/// Device memory of all units, and the stream that fills it.
pub struct Ring {
    pub stream: Stream,
    units: Vec<UnitState>,
    /// Sorted by placement.
    ///
    /// Placements do not overlap.
    occupants: Vec<Occupant>,
    pub events: Events,
    /// Number of the last copy.
    ///
    /// Copies execute in order.
    last_copy: u64,
    /// Number of the last copy known to be done.
    ///
    /// All earlier ones are done too.
    last_done_copy: u64,
    /// Incremented when a unit is evicted that a session may have counted as loaded.
    pub epoch: u64,
    /// Number of the last release of a unit.
    last_release: u64,
    /// Events that the copy being queued already waits for.
    already_waited: Vec<EventId>,
    /// Pieces of that copy.
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

    /// Resets to `units` units, none loaded.
    ///
    /// All copies and readers must be done.
    pub fn clear(&mut self, units: usize) {
        for state in std::mem::take(&mut self.units) {
            let readers = state.readers.iter().map(|reader| reader.event);
            readers.chain(state.ready).for_each(|id| self.events.release(id));
        }
        self.occupants.clear();
        self.units.resize_with(units, UnitState::default);
        self.epoch += 1;
    }

    /// Marks all copies as done.
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

    /// Moves a hold to another stream of the same holder.
    pub fn move_hold(&mut self, unit: Unit, holder: Holder, stream: Stream) {
        for hold in self.units[unit as usize].holds.iter_mut().filter(|hold| hold.holder == holder) {
            hold.stream = stream;
        }
    }

    /// Occupants that a copy to `placement` would overwrite.
    fn occupants_in(&self, placement: ByteRange) -> impl Iterator<Item = &Occupant> {
        let first = self.occupants.partition_point(|occupant| occupant.placement.end() <= placement.start);
        self.occupants[first..].iter().take_while(move |occupant| occupant.placement.start < placement.end())
    }

    /// Units that a copy to `placement` would overwrite, including the unit being copied.
    fn overlapped(&self, placement: ByteRange) -> impl Iterator<Item = Unit> {
        self.occupants_in(placement).map(|occupant| occupant.unit)
    }

    /// Returns true if a session holds units that a copy of this unit would overwrite.
    pub fn is_in_use(&self, configuration: &CheckedConfiguration, unit: Unit) -> bool {
        match configuration.placement(unit) {
            Some(placement) => self.overlapped(placement).any(|other| self.is_held(other)),
            None => false,
        }
    }

    /// Returns true if the unit, `distance` uses after use `from`, may be loaded ahead.
    ///
    /// It must not overwrite units that are held or needed sooner.
    pub fn may_prefetch(&self, configuration: &CheckedConfiguration, unit: Unit, from: usize, distance: usize) -> bool {
        let Some(placement) = configuration.placement(unit) else { return true };
        self.overlapped(placement).all(|other| {
            !self.is_held(other) && (!self.is_loaded(other) || configuration.distance(other, from) > distance)
        })
    }

    /// Queues the copy of a unit over the units in its placement, which must not be held.
    ///
    /// Returns true if a unit was evicted.
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

    /// Queues the copies of a unit.
    ///
    /// Each copy waits for the readers of the bytes it overwrites.
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
            // The stream waits for the readers of the overwritten bytes, and new readers wait for an event after all copies.
            unsafe { backend.copy(&transfer, self.stream) }
        })
    }

    /// Pieces in which a unit is copied.
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

    /// Copies a loaded unit again, after its current readers.
    ///
    /// Later work of its holders and of `stream` sees the new bytes. Returns an event if the calling thread has to wait for
    /// it.
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

    /// Records the position of `stream`.
    ///
    /// Copies over these units wait for it.
    pub fn record_reader(&mut self, backend: &dyn Backend, stream: Stream, units: &[Unit]) -> Result<()> {
        if units.is_empty() {
            return Ok(());
        }
        let event = self.events.acquire(backend)?;
        if let Err(error) = backend.record(self.events.event(event), stream) {
            self.events.release(event);
            return Err(error.while_doing(|| "noting that weights are no longer in use".into()));
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

    /// Makes `stream` wait for the copies of these units, unless it has waited for copy `waited` or a later one.
    ///
    /// Returns an event if the calling thread has to wait for it.
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

    /// Makes later work on `later` wait for the work queued on `earlier`.
    pub fn order(&mut self, backend: &dyn Backend, earlier: Stream, later: Stream) -> Result<()> {
        let id = self.events.acquire(backend)?;
        let event = self.events.event(id);
        let ordered = backend.record(event, earlier).and_then(|()| backend.wait(later, event));
        self.events.release(id);
        ordered.map(|_| ())
    }

    /// Marks all units in the ring as stale.
    ///
    /// Later copies still wait for their readers.
    pub fn invalidate(&mut self) {
        for index in 0..self.occupants.len() {
            self.forget(self.occupants[index].unit);
        }
        self.epoch += 1;
    }

    /// Marks a unit as not loaded.
    ///
    /// Returns true if it was loaded.
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
