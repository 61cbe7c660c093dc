//! One thread's way through the schedule.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::layout::{Layout, Target, Unit};
use super::ring::{Holder, Ring};
use super::timing::Timing;
use super::{Shared, State};
use crate::backend::{Active, Event, Stream};
use crate::error::{Error, Result};

/// Runs what may make the thread wait, in a setting in which waiting is allowed: for Python, without the GIL. No lock is held
/// when it is called or when it returns.
pub type Outside<'a> = &'a mut dyn FnMut(&mut (dyn FnMut() + Send));

/// What [`Session::enter`] changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    pub released: &'a [Unit],
    pub acquired: &'a [Unit],
}

/// One thread's way through the schedule; each thread has its own.
pub struct Session {
    shared: Arc<Shared>,
    way: Way,
}

/// Where the thread is and what it holds.
struct Way {
    id: Holder,
    generation: u64,
    /// A forward has begun and not ended.
    running: bool,
    /// The last point; `None` before the first.
    position: Option<usize>,
    held: Vec<Unit>,
    /// What the caller knows to be held.
    told: Vec<Unit>,
    /// That may be something else than what is: after an error, or while waiting for another thread.
    adrift: bool,
    stream: Stream,
    /// The stream has waited for all copies up to this one.
    waited: u64,
    /// So many uses after the position are loaded, as long as the ring's epoch is this.
    walked: usize,
    epoch: u64,
    timing: Option<Timing>,
    released: Vec<Unit>,
    acquired: Vec<Unit>,
    marker: Marker,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, id: Holder) -> Self {
        let way = Way {
            id,
            generation: 0,
            running: false,
            position: None,
            held: Vec::new(),
            told: Vec::new(),
            adrift: false,
            stream: Stream(0),
            waited: 0,
            walked: 0,
            epoch: 0,
            timing: None,
            released: Vec::new(),
            acquired: Vec::new(),
            marker: Marker::default(),
        };
        Self { shared, way }
    }

    /// The thread reached a point. On return work queued on `stream` may use the acquired units, and none may use the released.
    /// `None`: what it holds is what it held.
    pub fn enter(&mut self, key: i64, stream: Stream, outside: Outside) -> Result<Option<Change<'_>>> {
        let changed = self.way.enter(&self.shared, key, stream, outside)?;
        Ok(changed.then_some(Change { released: &self.way.released, acquired: &self.way.acquired }))
    }

    /// The forward ended, well or not: lets go of everything, which is returned, and has the next forward's begin loaded.
    pub fn leave(&mut self, stream: Stream) -> Result<&[Unit]> {
        self.way.leave(&self.shared, stream)?;
        Ok(&self.way.released)
    }

    /// Whether `enter` and `leave` may take long without calling `outside`: copies from pageable memory are done in part by the
    /// thread that asks for them.
    pub fn may_stall(&self) -> bool {
        self.shared.stalls.load(Ordering::Relaxed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.way.running {
            let _ = self.way.leave(&self.shared, self.way.stream);
        }
        if let Some(mut timing) = self.way.timing.take()
            && let Ok(_active) = Active::on(&*self.shared.backend)
        {
            timing.destroy(&*self.shared.backend);
        }
    }
}

impl Way {
    fn enter(&mut self, shared: &Shared, key: i64, stream: Stream, outside: Outside) -> Result<bool> {
        let backend = &*shared.backend;
        let _active = Active::on(backend)?;
        if let Some(timing) = &mut self.timing {
            timing.end(backend, self.stream)?;
        }
        let mut state = shared.state.lock();
        self.renew(&state);
        let (target, expected) = state.layout.find(self.position, key).ok_or_else(|| unknown(&state, key))?;
        if !expected && matches!(target, Target::Point(_)) {
            state.counters.out_of_order += 1;
        }
        if !self.running {
            self.begin(shared, &mut state, stream);
        }
        let pending = match self.change_over(shared, &mut state, target, stream) {
            Ok(step) => step,
            Err(error) => {
                self.let_go_of_all(shared, &mut state);
                return Err(error);
            }
        };
        drop(state);
        let mut outcome = Ok(());
        match pending {
            Step::Done(None) => {}
            Step::Done(Some(event)) => outside(&mut || outcome = block(shared, event)),
            Step::InUse => outside(&mut || outcome = self.wait_and_acquire(shared, target, stream)),
        }
        outcome?;
        if let (Some(timing), Target::Point(point)) = (&mut self.timing, target) {
            timing.begin(backend, point, stream)?;
        }
        Ok(!self.released.is_empty() || !self.acquired.is_empty())
    }

    /// After another configuration nothing of before is true.
    fn renew(&mut self, state: &State) {
        if self.generation != state.generation {
            self.generation = state.generation;
            self.position = None;
            self.running = false;
            self.held.clear();
            self.told.clear();
            self.adrift = false;
            (self.waited, self.walked, self.epoch) = (0, 0, 0);
        }
    }

    fn begin(&mut self, shared: &Shared, state: &mut State, stream: Stream) {
        self.stream = stream;
        self.waited = 0;
        if state.timed {
            self.timing.get_or_insert_default().restart(state.layout.points());
        } else if let Some(mut timing) = self.timing.take() {
            timing.destroy(&*shared.backend);
        }
    }

    /// Lets go of what the target does not need and takes what it does.
    fn change_over(&mut self, shared: &Shared, state: &mut State, target: Target, stream: Stream) -> Result<Step> {
        let backend = &*shared.backend;
        let layout = Arc::clone(&state.layout);
        let needed = layout.needed(target);
        self.marker.difference(&self.held, needed, &mut self.released, layout.units());
        self.marker.difference(needed, &self.held, &mut self.acquired, layout.units());
        if self.stream != stream {
            self.change_stream(shared, state, stream)?;
        } else {
            state.ring.mark(backend, stream, &self.released)?;
        }
        if !self.released.is_empty() {
            self.marker.keep_common(&mut self.held, needed, layout.units());
            self.released.iter().for_each(|&unit| state.ring.let_go(unit, self.id));
            shared.notify(state);
        }
        let queues = !self.running && !state.waiting.is_empty();
        if queues || self.is_blocked(&state.ring, &layout) {
            // Who waits holds nothing, else two could wait for each other.
            state.ring.mark(backend, stream, &self.held)?;
            self.held.iter().for_each(|&unit| state.ring.let_go(unit, self.id));
            self.held.clear();
            self.adrift = true;
            shared.notify(state);
            return Ok(Step::InUse);
        }
        let pending = self.acquire(shared, state, target, stream)?;
        self.tell(layout.units());
        Ok(Step::Done(pending))
    }

    /// The thread goes on on another stream: what it has used is in use on the old one until here.
    fn change_stream(&mut self, shared: &Shared, state: &mut State, stream: Stream) -> Result<()> {
        state.ring.mark(&*shared.backend, self.stream, &self.held)?;
        state.ring.mark(&*shared.backend, stream, &self.released)?;
        self.held.iter().for_each(|&unit| state.ring.move_hold(unit, self.id, stream));
        (self.stream, self.waited) = (stream, 0);
        Ok(())
    }

    /// Whether another thread holds what has to be overwritten.
    fn is_blocked(&self, ring: &Ring, layout: &Layout) -> bool {
        self.acquired.iter().any(|&unit| !ring.is_loaded(unit) && ring.is_in_use(layout, unit))
    }

    /// Loads and holds what is missing of the target, then what comes after. An event is returned if the thread has to wait.
    fn acquire(&mut self, shared: &Shared, state: &mut State, target: Target, stream: Stream) -> Result<Option<Event>> {
        let backend = &*shared.backend;
        let State { layout, ring, counters, fresh, .. } = state;
        for &unit in &self.acquired {
            if !ring.is_loaded(unit) {
                if ring.load(backend, layout, unit)? {
                    ring.epoch += 1;
                }
                counters.copies += 1;
                counters.copied_bytes += layout.bytes(unit);
                counters.on_demand += u64::from(!*fresh);
            }
        }
        for &unit in &self.acquired {
            ring.hold(unit, self.id, stream);
            self.held.push(unit);
        }
        self.running = true;
        if let Target::Point(point) = target {
            let uses = layout.uses_at(point);
            let next = self.position.map_or(0, |position| position + 1);
            self.walked = if point == next { self.walked.saturating_sub(uses) } else { 0 };
            self.position = Some(point);
        }
        self.prefetch(shared, state)?;
        state.ring.wait_for_copies(backend, stream, &self.held, &mut self.waited)
    }

    /// Waits until everything that the target needs can be had at once.
    fn wait_and_acquire(&mut self, shared: &Shared, target: Target, stream: Stream) -> Result<()> {
        let mut state = shared.state.lock();
        let layout = Arc::clone(&state.layout);
        self.acquired.clear();
        self.acquired.extend_from_slice(layout.needed(target));
        let begun = Instant::now();
        let ticket = state.tickets;
        state.tickets += 1;
        state.waiting.push(ticket);
        // Threads in the middle of a forward go first: those at its begin would only keep them from ending.
        while !(self.running || state.waiting.first() == Some(&ticket)) || self.is_blocked(&state.ring, &layout) {
            shared.released.wait(&mut state);
        }
        state.waiting.retain(|&other| other != ticket);
        shared.notify(&state);
        state.counters.waits += 1;
        state.counters.waited += begun.elapsed();
        match self.acquire(shared, &mut state, target, stream) {
            Ok(pending) => {
                self.tell(layout.units());
                drop(state);
                pending.map_or(Ok(()), |event| block(shared, event))
            }
            Err(error) => {
                self.let_go_of_all(shared, &mut state);
                Err(error)
            }
        }
    }

    /// Loads ahead, in the order of the schedule, until something is in the way that is needed sooner.
    fn prefetch(&mut self, shared: &Shared, state: &mut State) -> Result<()> {
        let State { layout, ring, counters, .. } = state;
        let uses = layout.uses();
        if ring.prefetcher != self.id {
            ring.prefetcher = self.id;
            ring.epoch += 1;
        }
        if self.epoch != ring.epoch {
            (self.epoch, self.walked) = (ring.epoch, 0);
        }
        let from = layout.uses_after(self.position);
        let mut ahead = layout.lookahead.map(|most| Ahead::new(&mut self.marker, &self.held, most, layout.units()));
        let mut walked = if ahead.is_some() { 0 } else { self.walked };
        while walked < uses.len() {
            let unit = uses[(from + walked) % uses.len()];
            if let Some(ahead) = &mut ahead
                && !ahead.admits(unit)
            {
                break;
            }
            if !ring.is_loaded(unit) {
                if !ring.may_prefetch(layout, unit, from, walked) {
                    break;
                }
                ring.load(&*shared.backend, layout, unit)?;
                counters.copies += 1;
                counters.copied_bytes += layout.bytes(unit);
            }
            walked += 1;
        }
        self.walked = walked;
        Ok(())
    }

    /// What the caller is to be told: normally what was done.
    fn tell(&mut self, units: usize) {
        if std::mem::take(&mut self.adrift) {
            self.marker.difference(&self.told, &self.held, &mut self.released, units);
            self.marker.difference(&self.held, &self.told, &mut self.acquired, units);
        }
        self.told.clone_from(&self.held);
    }

    fn leave(&mut self, shared: &Shared, stream: Stream) -> Result<()> {
        let backend = &*shared.backend;
        let _active = Active::on(backend)?;
        let mut state = shared.state.lock();
        self.renew(&state);
        self.released.clone_from(&self.told);
        self.told.clear();
        self.adrift = false;
        if !self.running {
            return Ok(());
        }
        if let Some(mut timing) = self.timing.take() {
            let ended = timing.end(backend, self.stream);
            self.timing = state.measured.replace(timing);
            ended?;
        }
        let mut marked = state.ring.mark(backend, self.stream, &self.held);
        if self.stream != stream {
            marked = marked.and(state.ring.mark(backend, stream, &self.held));
        }
        self.held.iter().for_each(|&unit| state.ring.let_go(unit, self.id));
        self.held.clear();
        self.running = false;
        if self.position.is_none_or(|position| position + 1 != state.layout.points()) {
            self.walked = 0;
        }
        self.position = None;
        state.counters.forwards += 1;
        state.fresh = false;
        shared.notify(&state);
        marked?;
        self.prefetch(shared, &mut state)
    }

    /// After an error: holds nothing, whatever else fails.
    fn let_go_of_all(&mut self, shared: &Shared, state: &mut MutexGuard<State>) {
        let _ = state.ring.mark(&*shared.backend, self.stream, &self.held);
        self.held.iter().for_each(|&unit| state.ring.let_go(unit, self.id));
        self.held.clear();
        self.walked = 0;
        self.adrift = true;
        shared.notify(state);
    }
}

/// How far a change went.
enum Step {
    /// The thread may have to wait for a copy.
    Done(Option<Event>),
    /// Another thread holds what has to be overwritten.
    InUse,
}

fn block(shared: &Shared, event: Event) -> Result<()> {
    let begun = Instant::now();
    let outcome = shared.backend.block(event);
    shared.waits.fetch_add(1, Ordering::Relaxed);
    shared.waited_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    outcome
}

#[cold]
fn unknown(state: &State, key: i64) -> Error {
    Error::Invalid(if state.layout.units() == 0 {
        "nothing is configured yet: a forward cannot begin".into()
    } else {
        format!("key {key} is neither in the schedule nor among the fallbacks")
    })
}

/// Differences of small sets of units.
#[derive(Default)]
struct Marker {
    marks: Vec<u64>,
    now: u64,
}

impl Marker {
    fn mark(&mut self, set: &[Unit], units: usize) {
        self.marks.resize(units.max(self.marks.len()), 0);
        self.now += 1;
        set.iter().for_each(|&unit| self.marks[unit as usize] = self.now);
    }

    fn has(&self, unit: Unit) -> bool {
        self.marks[unit as usize] == self.now
    }

    /// What of `set` is not in `without`.
    fn difference(&mut self, set: &[Unit], without: &[Unit], into: &mut Vec<Unit>, units: usize) {
        self.mark(without, units);
        into.clear();
        into.extend(set.iter().filter(|&&unit| !self.has(unit)));
    }

    fn keep_common(&mut self, set: &mut Vec<Unit>, with: &[Unit], units: usize) {
        self.mark(with, units);
        set.retain(|&unit| self.has(unit));
    }
}

/// Counts units loaded ahead, those held apart.
struct Ahead<'a> {
    seen: &'a mut Marker,
    left: usize,
}

impl<'a> Ahead<'a> {
    fn new(seen: &'a mut Marker, held: &[Unit], most: usize, units: usize) -> Self {
        seen.mark(held, units);
        Self { seen, left: most }
    }

    /// Whether the next unit may be ahead too.
    fn admits(&mut self, unit: Unit) -> bool {
        if self.seen.has(unit) {
            return true;
        }
        let admitted = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.seen.marks[unit as usize] = self.seen.now;
        admitted
    }
}
