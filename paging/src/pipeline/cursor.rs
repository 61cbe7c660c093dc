//! The cursor of a thread in the schedule: its position, the units it holds, and the steps from one point to the next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::checked_configuration::{CheckedConfiguration, Target};
use super::configuration::Unit;
use super::core::{PipelineCore, PipelineState};
use super::ring::{Holder, Ring};
use super::timing::Timing;
use super::unit_set::UnitSet;
use super::unlocked::Unlocked;
use crate::backend::{Event, Stream};
use crate::error::{Error, Result};

/// Position of a thread, and the units it holds.
pub struct Cursor {
    pub(super) id: Holder,
    pub(super) generation: u64,
    /// True during a forward.
    pub(super) running: bool,
    /// Last point; `None` before the first.
    pub(super) position: Option<usize>,
    pub(super) held: Vec<Unit>,
    /// Units that were reported to the caller as held.
    pub(super) reported: Vec<Unit>,
    /// True if `reported` may differ from `held`: after an error, or while waiting for another thread.
    pub(super) out_of_sync: bool,
    pub(super) stream: Stream,
    /// Number of the last copy that the stream has waited for.
    ///
    /// It has waited for all earlier copies too.
    pub(super) waited: u64,
    /// Number of uses after the position that are loaded, while the ring's epoch is `epoch`.
    pub(super) walked: usize,
    pub(super) epoch: u64,
    pub(super) timing: Option<Timing>,
    pub(super) released: Vec<Unit>,
    pub(super) acquired: Vec<Unit>,
    pub(super) marker: UnitSet,
}

impl Cursor {
    pub fn new(id: Holder) -> Self {
        Self {
            id,
            generation: 0,
            running: false,
            position: None,
            held: Vec::new(),
            reported: Vec::new(),
            out_of_sync: false,
            stream: Stream(0),
            waited: 0,
            walked: 0,
            epoch: 0,
            timing: None,
            released: Vec::new(),
            acquired: Vec::new(),
            marker: UnitSet::default(),
        }
    }

    /// Moves to a point; see [`Session::enter`](super::Session::enter).
    ///
    /// Returns true if the held units changed.
    pub fn enter(&mut self, core: &PipelineCore, key: i64, stream: Stream, unlocked: Unlocked) -> Result<bool> {
        match self.go_to(core, key, stream, unlocked) {
            Ok(()) => {
                self.reported.clone_from(&self.held);
                Ok(!self.released.is_empty() || !self.acquired.is_empty())
            }
            Err(error) => {
                self.release_all(core);
                Err(error)
            }
        }
    }

    fn go_to(&mut self, core: &PipelineCore, key: i64, stream: Stream, unlocked: Unlocked) -> Result<()> {
        let backend = &*core.backend;
        if let Some(timing) = &mut self.timing {
            timing.end(backend, self.stream)?;
        }
        let mut state = core.state.lock();
        self.renew(&state);
        let (target, expected) = state.configuration.find(self.position, key).ok_or_else(|| unknown(&state, key))?;
        // A block that runs a batch in pieces reaches the same point with each piece.
        if !expected && matches!(target, Target::Point(point) if self.position != Some(point)) {
            state.counters.out_of_order += 1;
        }
        if !self.running {
            self.begin(core, &mut state, stream)?;
        }
        let step = self.change_over(core, &mut state, target, stream)?;
        drop(state);
        let pending = match step {
            Step::Done(pending) => pending,
            Step::InUse => self.wait_and_acquire(core, target, stream, unlocked)?,
        };
        if let Some(event) = pending {
            block(core, event, unlocked)?;
        }
        if let (Some(timing), Target::Point(point)) = (&mut self.timing, target) {
            timing.begin(backend, point, stream)?;
        }
        Ok(())
    }

    /// Resets the cursor after a new configuration.
    fn renew(&mut self, state: &PipelineState) {
        if self.generation != state.generation {
            self.generation = state.generation;
            self.position = None;
            self.running = false;
            self.held.clear();
            self.reported.clear();
            self.out_of_sync = false;
            (self.waited, self.walked, self.epoch) = (0, 0, 0);
        }
    }

    fn begin(&mut self, core: &PipelineCore, state: &mut PipelineState, stream: Stream) -> Result<()> {
        self.stream = stream;
        self.waited = 0;
        if state.timed {
            self.timing.get_or_insert_default().restart(state.configuration.points());
        } else if let Some(mut timing) = self.timing.take() {
            timing.destroy(&*core.backend);
        }
        if state.bounded {
            state.ring.invalidate();
            state.fork(&*core.backend, stream)?;
        }
        Ok(())
    }

    /// Releases units that the target does not need, and acquires the units it does.
    fn change_over(
        &mut self,
        core: &PipelineCore,
        state: &mut PipelineState,
        target: Target,
        stream: Stream,
    ) -> Result<Step> {
        let backend = &*core.backend;
        let configuration = Arc::clone(&state.configuration);
        let needed = configuration.needed(target);
        self.marker.difference(&self.held, needed, &mut self.released, configuration.units());
        self.marker.difference(needed, &self.held, &mut self.acquired, configuration.units());
        if self.stream != stream {
            self.change_stream(core, state, stream)?;
        } else {
            state.ring.record_reader(backend, stream, &self.released)?;
        }
        if !self.released.is_empty() {
            self.marker.keep_common(&mut self.held, needed, configuration.units());
            self.released.iter().for_each(|&unit| state.ring.release(unit, self.id));
            core.notify(state);
        }
        let queues = !self.running && !state.waiting.is_empty();
        if queues || self.is_blocked(&state.ring, &configuration) {
            // A waiting thread holds nothing; otherwise two threads could wait for each other.
            state.ring.record_reader(backend, stream, &self.held)?;
            self.held.iter().for_each(|&unit| state.ring.release(unit, self.id));
            self.held.clear();
            self.out_of_sync = true;
            core.notify(state);
            return Ok(Step::InUse);
        }
        let pending = self.acquire(core, state, target, stream)?;
        self.report_changes(configuration.units());
        Ok(Step::Done(pending))
    }

    /// Continues on another stream.
    ///
    /// The units of the thread are in use on the old stream until now.
    fn change_stream(&mut self, core: &PipelineCore, state: &mut PipelineState, stream: Stream) -> Result<()> {
        state.ring.record_reader(&*core.backend, self.stream, &self.held)?;
        state.ring.record_reader(&*core.backend, stream, &self.released)?;
        self.held.iter().for_each(|&unit| state.ring.move_hold(unit, self.id, stream));
        (self.stream, self.waited) = (stream, 0);
        Ok(())
    }

    /// Returns true if acquiring would overwrite units held by another thread.
    fn is_blocked(&self, ring: &Ring, configuration: &CheckedConfiguration) -> bool {
        self.acquired.iter().any(|&unit| !ring.is_loaded(unit) && ring.is_in_use(configuration, unit))
    }

    /// Loads and holds the missing units of the target, then loads ahead.
    ///
    /// Returns an event if the thread has to wait for it.
    fn acquire(
        &mut self,
        core: &PipelineCore,
        state: &mut PipelineState,
        target: Target,
        stream: Stream,
    ) -> Result<Option<Event>> {
        let backend = &*core.backend;
        let PipelineState { configuration, ring, counters, fresh, bounded, .. } = state;
        let next = self.position.map_or(0, |position| position + 1);
        let is_in_turn =
            target == Target::Point(next) || (next == configuration.points() && target == Target::Point(0));
        let is_expected = *fresh || (*bounded && self.position.is_none());
        for &unit in &self.acquired {
            if !ring.is_loaded(unit) {
                // The unit could not be copied earlier over a unit that was in use until now.
                let is_expected = is_expected
                    || is_in_turn && self.released.iter().any(|&before| configuration.overlap(unit, before));
                if ring.load(backend, configuration, unit)? {
                    ring.epoch += 1;
                }
                counters.copies += 1;
                counters.copied_bytes += configuration.bytes(unit);
                counters.on_demand += u64::from(!is_expected);
            }
        }
        for &unit in &self.acquired {
            ring.hold(unit, self.id, stream);
            self.held.push(unit);
        }
        self.running = true;
        if let Target::Point(point) = target {
            let uses = configuration.uses_at(point);
            self.walked = if point == next { self.walked.saturating_sub(uses) } else { 0 };
            self.position = Some(point);
        }
        self.prefetch(core, state)?;
        state.ring.wait_for_copies(backend, stream, &self.held, &mut self.waited)
    }

    /// Waits until all units of the target can be acquired at once, and acquires them.
    fn wait_and_acquire(
        &mut self,
        core: &PipelineCore,
        target: Target,
        stream: Stream,
        unlocked: Unlocked,
    ) -> Result<Option<Event>> {
        let ticket = {
            let mut state = core.state.lock();
            self.check_generation(&state)?;
            self.acquired.clear();
            self.acquired.extend_from_slice(state.configuration.needed(target));
            state.counters.waits += 1;
            state.tickets += 1;
            let ticket = state.tickets;
            state.waiting.push(ticket);
            ticket
        };
        let mut outcome = Ok(None);
        let waited = unlocked(&mut || match self.wait_one_interval(core, target, stream, ticket) {
            Ok(None) => false,
            Ok(Some(pending)) => {
                outcome = Ok(pending);
                true
            }
            Err(error) => {
                outcome = Err(error);
                true
            }
        });
        if waited.is_err() || outcome.is_err() {
            let mut state = core.state.lock();
            state.waiting.retain(|&other| other != ticket);
            core.notify(&state);
        }
        waited.and(outcome)
    }

    /// Acquires the units of the target if that is possible within one interval.
    ///
    /// Returns an event with them if the caller has to wait for it.
    fn wait_one_interval(
        &mut self,
        core: &PipelineCore,
        target: Target,
        stream: Stream,
        ticket: u64,
    ) -> Result<Option<Option<Event>>> {
        let begun = Instant::now();
        let mut state = core.state.lock();
        self.check_generation(&state)?;
        // Threads in a forward go first. Threads at the start of a forward would only delay them.
        while !(self.running || state.waiting.first() == Some(&ticket))
            || self.is_blocked(&state.ring, &state.configuration)
        {
            let is_over = core.released.wait_until(&mut state, begun + POLL_INTERVAL).timed_out();
            self.check_generation(&state)?;
            if is_over {
                state.counters.waited += begun.elapsed();
                return Ok(None);
            }
        }
        state.counters.waited += begun.elapsed();
        let pending = self.acquire(core, &mut state, target, stream)?;
        state.waiting.retain(|&other| other != ticket);
        core.notify(&state);
        self.report_changes(state.configuration.units());
        Ok(Some(pending))
    }

    fn check_generation(&self, state: &PipelineState) -> Result<()> {
        if self.generation == state.generation {
            return Ok(());
        }
        Err(Error::Failed(
            "the pipeline was closed, or configured anew, in the middle of a forward: run it again".into(),
        ))
    }

    /// Computes the changes to report.
    ///
    /// Normally these are the changes that were made.
    fn report_changes(&mut self, units: usize) {
        if std::mem::take(&mut self.out_of_sync) {
            self.marker.difference(&self.reported, &self.held, &mut self.released, units);
            self.marker.difference(&self.held, &self.reported, &mut self.acquired, units);
        }
    }

    /// See [`Session::leave`](super::Session::leave).
    pub fn leave(&mut self, core: &PipelineCore, stream: Stream) -> Result<()> {
        let backend = &*core.backend;
        let mut state = core.state.lock();
        self.renew(&state);
        self.released.clone_from(&self.reported);
        self.reported.clear();
        self.out_of_sync = false;
        if !self.running {
            return Ok(());
        }
        if let Some(mut timing) = self.timing.take() {
            let ended = timing.end(backend, self.stream);
            self.timing = state.measured.replace(timing);
            ended?;
        }
        let mut recorded = state.ring.record_reader(backend, self.stream, &self.held);
        if self.stream != stream {
            recorded = recorded.and(state.ring.record_reader(backend, stream, &self.held));
        }
        self.held.iter().for_each(|&unit| state.ring.release(unit, self.id));
        self.held.clear();
        self.running = false;
        if self.position.is_none_or(|position| position + 1 != state.configuration.points()) {
            self.walked = 0;
        }
        let foreseen = self.position.take().is_some();
        state.counters.forwards += 1;
        state.fresh = false;
        core.notify(&state);
        recorded?;
        if state.bounded {
            return state.join(backend, stream);
        }
        // A forward that reached no point of the schedule is not followed by another one.
        if foreseen { self.prefetch(core, &mut state) } else { Ok(()) }
    }

    /// Releases all units after an error, even if other steps fail.
    fn release_all(&mut self, core: &PipelineCore) {
        let mut state = core.state.lock();
        self.renew(&state);
        let _ = state.ring.record_reader(&*core.backend, self.stream, &self.held);
        self.held.iter().for_each(|&unit| state.ring.release(unit, self.id));
        self.held.clear();
        self.walked = 0;
        self.out_of_sync = true;
        core.notify(&state);
    }
}

/// Result of a step to another point.
enum Step {
    /// The thread may have to wait for a copy.
    Done(Option<Event>),
    /// Another thread holds units that would be overwritten.
    InUse,
}

/// Longest wait before the caller decides again whether to continue.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn block(core: &PipelineCore, event: Event, unlocked: Unlocked) -> Result<()> {
    let begun = Instant::now();
    let mut outcome = Ok(true);
    let waited = unlocked(&mut || {
        outcome = core.backend.block(event, POLL_INTERVAL);
        !matches!(outcome, Ok(false))
    });
    core.waits.fetch_add(1, Ordering::Relaxed);
    core.waited_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    waited.and(outcome.map(|_| ()))
}

#[cold]
fn unknown(state: &PipelineState, key: i64) -> Error {
    Error::Invalid(if state.configuration.units() == 0 {
        "nothing is configured yet: a forward cannot begin".into()
    } else {
        format!("key {key} is neither in the schedule nor among the fallbacks")
    })
}
