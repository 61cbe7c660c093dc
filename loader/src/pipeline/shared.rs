//! State shared by all threads of a pipeline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Condvar, Mutex};

use super::layout::Layout;
use super::ring::{Counters, Ring};
use super::timing::Timing;
use crate::arena::Arena;
use crate::backend::{Active, Backend, Stream};
use crate::error::Result;

pub struct Shared {
    pub backend: Arc<dyn Backend>,
    pub arena: Arc<Arena>,
    pub state: Mutex<State>,
    /// Units were released.
    pub released: Condvar,
    /// Copies block the thread that queues them.
    pub stalls: AtomicBool,
    pub waits: AtomicU64,
    pub waited_ns: AtomicU64,
}

pub struct State {
    pub layout: Arc<Layout>,
    /// Incremented with each configuration.
    pub generation: u64,
    pub ring: Ring,
    pub counters: Counters,
    /// No forward has ended since the configuration.
    pub fresh: bool,
    /// Replayed graphs fill the ring too, without notice. So a forward assumes an empty ring at its begin, and the caller's
    /// stream waits for its copies at its end.
    pub bounded: bool,
    /// Threads that wait for units of others, in order of arrival.
    pub waiting: Vec<u64>,
    pub tickets: u64,
    pub sessions: u64,
    pub timed: bool,
    /// The last timed forward.
    pub measured: Option<Timing>,
}

impl Shared {
    /// An empty state with a stream for copies.
    pub fn new(arena: Arc<Arena>, backend: Arc<dyn Backend>, stalls: bool) -> Result<Self> {
        let state = State {
            layout: Arc::default(),
            generation: 0,
            ring: Ring::new(backend.create_stream()?, 0),
            counters: Counters::default(),
            fresh: true,
            bounded: false,
            waiting: Vec::new(),
            tickets: 0,
            sessions: 0,
            timed: false,
            measured: None,
        };
        Ok(Self {
            backend,
            arena,
            state: Mutex::new(state),
            released: Condvar::new(),
            stalls: AtomicBool::new(stalls),
            waits: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        })
    }

    pub fn notify(&self, state: &State) {
        if !state.waiting.is_empty() {
            self.released.notify_all();
        }
    }

    /// Stops all copies. Forwards fail from now on.
    pub fn close(&self) {
        let _active = Active::on(&*self.backend);
        let mut state = self.state.lock();
        state.generation += 1;
        state.layout = Arc::default();
        self.backend.destroy_stream(state.ring.stream);
        state.ring.clear(0);
        state.waiting.clear();
        self.released.notify_all();
    }
}

impl State {
    /// Makes copies wait for the work queued on `stream`.
    pub fn fork(&mut self, backend: &dyn Backend, stream: Stream) -> Result<()> {
        let copies = self.ring.stream;
        self.ring.order(backend, stream, copies)
    }

    /// Makes `stream` wait for all copies.
    pub fn join(&mut self, backend: &dyn Backend, stream: Stream) -> Result<()> {
        let copies = self.ring.stream;
        self.ring.order(backend, copies, stream)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _active = Active::on(&*self.backend);
        let state = self.state.get_mut();
        if let Some(timing) = &mut state.measured {
            timing.destroy(&*self.backend);
        }
        state.ring.events.destroy(&*self.backend);
    }
}
